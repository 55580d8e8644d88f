//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks/lockstest/server"
)

var (
	address   string // of the tests' server
	databases atomic.Int64
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(clientEnv) != "" {
		client()
		return 0
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // of the panics that are meant
	ctx := context.Background()
	s, err := server.Start(ctx, server.Options{})
	if errors.Is(err, server.ErrNoBinaries) {
		fmt.Println("skipped:", err)
		return 0
	} else if err != nil {
		log.Print(err)
		return 1
	}
	defer s.Stop()
	address = s.URL("postgres", "postgres")
	if err := prepare(ctx, address); err != nil {
		log.Print(err)
		return 1
	}
	return m.Run()
}

// A swap is a text of a function, and what stands in its place in a broken copy.
type swap struct{ file, old, new string }

// Where a race has to be met, the broken copy sleeps in the gap that it opens.
const pause = "pg_sleep(0.005) is not null"

// Each of these is a mistake that somebody could make, and what the checkers must say of it.
var bugs = []struct {
	name  string
	kind  string
	swaps []swap
	want  []string
	runs  time.Duration // at least; default: half a second
	calls int64         // at least; default: 1000
}{
	{
		name: "an exclusive lock that others share", kind: "key",
		swaps: []swap{{"key/try_exclusive", "pg_try_advisory_xact_lock(", "pg_try_advisory_xact_lock_shared("}, {"key/exclusive", "pg_try_advisory_xact_lock(", "pg_try_advisory_xact_lock_shared("}},
		want:  []string{"no order of these calls", "held the key and read the same"},
	},
	{
		name: "a shared lock that is none", kind: "key",
		swaps: []swap{{"key/try_shared", "pg_try_advisory_xact_lock_shared(", "int8ge(9223372036854775807, "}},
		want:  []string{"no order of these calls", "changed beside a shared holder"},
	},
	{
		name: "a key that is denied for no reason", kind: "key",
		swaps: []swap{{"key/try_exclusive", "pg_try_advisory_xact_lock(", "int8eq(0, "}},
		want:  []string{"denied, and nobody had it"},
	},
	{
		name: "a release without the owner", kind: "mutex",
		swaps: []swap{
			{"mutex/release_mutex", "and held.owner is not distinct from release_mutex.owner", ""},
			{"mutex/release_mutex", "and mutex.owner is not distinct from release_mutex.owner", ""},
		},
		want: []string{"no order of these calls"},
	},
	{
		name: "a mutex that looks before it takes", kind: "mutex",
		swaps: []swap{{"mutex/acquire_mutex", "and not free.acquired\n            for no key update skip locked", "and not free.acquired and " + pause}},
		want:  []string{"no order of these calls"},
	},
	{
		name: "a lease without its token", kind: "lease", runs: 2 * time.Second,
		swaps: []swap{{"lease/release_lease", "and lease.token = release_lease.token", "and lease.token = (select max(newest.token) from lock.lease as newest where newest.name = release_lease.name)"}},
		want:  []string{"no order of these calls"},
	},
	{
		name: "a fence that is not held until the commit", kind: "lease", runs: 3 * time.Second, calls: 100,
		swaps: []swap{{"lease/assert_lease", "    for key share;\n    if expires_at > clock_timestamp() then\n", "    ;\n    if expires_at > clock_timestamp() then\n        perform pg_sleep(0.6 * (assert_lease.token % 2));\n"}},
		want:  []string{"written by a lower token"},
	},
	{
		name: "permits that are counted before the gate", kind: "lease",
		swaps: []swap{{"lease/acquire_lease", "and free.token = (select before.token from lock.lease_name as before where before.name = acquire_lease.name)", "and " + pause}},
		want:  []string{"no order of these calls"},
	},
	{
		name: "a throttle that looks before it locks", kind: "throttle",
		swaps: []swap{{"throttle/lock_throttled_resource", "and ready.permits = 1\n            for no key update skip locked", "and ready.permits = 1 and " + pause}},
		want:  []string{"more grants than permits"},
	},
	{
		name: "permits that are looked at before they are locked", kind: "throttle",
		swaps: []swap{{"throttle/lock_throttled_permit", "            order by ready.last_locked\n            limit 1\n            for no key update skip locked", "              and " + pause + "\n            order by ready.last_locked\n            limit 1"}},
		want:  []string{"more grants than permits"},
	},
	{
		name: "a timeout that looks before it locks", kind: "timeout",
		swaps: []swap{{"timeout/acquire_timeout", "lock_internal.utc(clock_timestamp())\n            for no key update skip locked", "lock_internal.utc(clock_timestamp()) and " + pause}},
		want:  []string{"more grants than permits"},
	},
	{
		name: "a time slot that looks before it locks", kind: "time_slot",
		swaps: []swap{{"time_slot/acquire_time_slot", "and older.slot_start < (select moment.slot from moment)\n            for no key update skip locked", "and older.slot_start < (select moment.slot from moment) and " + pause}},
		want:  []string{"no order of these calls"},
	},
	{
		name: "a time slot that is granted once more", kind: "time_slot",
		swaps: []swap{{"time_slot/acquire_time_slot", "and older.slot_start < (select", "and older.slot_start <= (select"}},
		want:  []string{"no order of these calls"},
	},
	{
		name: "a bucket that reads before it locks", kind: "rate_limit",
		swaps: []swap{{"rate_limit/take", "for no key update\n", "and " + pause + "\n"},
			{"rate_limit/take", "greatest(rate_limit.full_at, clock_timestamp())", "greatest(bucket.full_at, clock_timestamp())"}},
		want: []string{"more tokens than the burst"},
	},
	{
		name: "a bucket that forgets the burst", kind: "rate_limit",
		swaps: []swap{{"rate_limit/take", "full_at - ahead", "full_at - ahead * 2"}},
		want:  []string{"more tokens than the burst"},
	},
	{
		name: "a bucket whose clock goes back", kind: "rate_limit",
		swaps: []swap{{"rate_limit/take", "full_at = greatest(rate_limit.full_at, clock_timestamp()) + weight", "full_at = greatest(rate_limit.full_at, clock_timestamp() - (random() < 0.3)::integer * interval '1 minute') + weight - (random() < 0.3)::integer * interval '100 milliseconds'"}},
		want:  []string{"more tokens than the burst"},
	},
	{
		name: "a capture without skip locked and without its recheck", kind: "task",
		swaps: []swap{
			{"task/settle_and_capture", "mark and began\n                    order by task.available_at\n                    limit greatest(left_over - aside, 0)\n                    for update skip locked", "mark and began and " + pause + "\n                    order by task.available_at\n                    limit greatest(left_over - aside, 0)"},
			{"task/settle_and_capture", "and task.status = coalesce(wanted, task.status)\n", ""},
		},
		want: []string{"no order of these calls"},
	},
	{
		name: "a key that is counted without its lock", kind: "task", runs: 2 * time.Second,
		swaps: []swap{
			{"task/choose_by_key", "where lock_internal.try_task_key(walk.number)", "where true"},
			{"task/choose_by_key", "exit when cardinality(numbers) = cardinality(held);", "exit when cardinality(numbers) = cardinality(held) and " + pause + ";"},
		},
		want: []string{"two tasks of a key in progress at one time"},
	},
	{
		name: "a settle without the attempt", kind: "task", runs: 2 * time.Second,
		swaps: []swap{{"task/set_status", "task.attempt = set_status.attempt and task.status", "task.status"}, {"task/settle", "and task.attempt = result.attempt", ""}},
		want:  []string{"no order of these calls"},
	},
	{
		name: "a settle of what is settled", kind: "task",
		swaps: []swap{{"task/set_status", " and task.status = 'in_progress')", ")"}},
		want:  []string{"no order of these calls"},
	},
	{
		name: "a creation that forgets one", kind: "task",
		swaps: []swap{{"task/create_tasks", "    order by given.id", "    where given.place < 8\n    order by given.id"}},
		want:  []string{"it was created and is gone"},
	},
	{
		// The locks of the rows keep two captures of the same requests apart; of later ones they do not, when it skips what is locked.
		name: "an entity lock that is given up before the commit", kind: "request",
		swaps: []swap{
			{"request/try_entity", "when lock_internal.is_advisory() then pg_catalog.pg_try_advisory_xact_lock(", "when true then lock_internal.nothing("},
			{"request/capture_request", "where request.request_id = any (taken)", "where request.request_id = any (array(select r.request_id from lock.request as r where r.request_id = any (taken) and r.request_status = 'new' for update skip locked))"},
		},
		want: []string{"two workers had the entity at the same time"},
	},
	{
		name: "requests without the entity's lock, the lock of their rows, and the recheck", kind: "request",
		swaps: []swap{
			{"request/try_entity", "when lock_internal.is_advisory() then pg_catalog.pg_try_advisory_xact_lock(", "when true then lock_internal.nothing("},
			{"request/capture_request", "and request.request_status = 'new'\n                    returning", "returning"},
		},
		want: []string{"a request was done twice", "it was done more than once"},
	},
	{
		name: "a capture of the newest request alone", kind: "request",
		swaps: []swap{{"request/capture_request", "select array_agg(work.request_id order by work.request_id)", "select array[max(work.request_id)]"}},
		want:  []string{"was passed over"},
	},
	{
		name: "a settle of all that the entity has", kind: "request",
		swaps: []swap{{
			"request/settle_request", "where request.request_id = any (array(select unnest(batch.request_ids) from batch));",
			`where request.settled_at is null and (request.queue_id, request.entity_id) in (
				select own.queue_id, own.entity_id from lock.request as own where own.request_id in (select unnest(batch.request_ids) from batch));`,
		}},
		want: []string{"it is complete, and nobody did it"},
	},
	{
		name: "a capture that takes newer updates with a refused batch", kind: "worker", runs: 3 * time.Second, calls: 300,
		swaps: []swap{{"request/capture_request", "limit capture_request.max", "limit 2147483647"}},
		want:  []string{"a refused batch was handled again"},
	},
	{
		name: "a settle that is content with less than it expects", kind: "worker", runs: 3 * time.Second, calls: 300,
		swaps: []swap{{"request/settle_request", "if settled <> settle_request.expects then", "if false then"}},
		want:  []string{"it is complete, and nobody did it"},
	},
}

// A scratch database, and a run on it in this process.
func tortured(t *testing.T, kinds []string, runs time.Duration, calls int64, swaps []swap, damage ...string) *checker {
	t.Helper()
	return torturedAt(t, address, nil, kinds, runs, calls, swaps, damage...)
}

// torturedAt is tortured with workers who connect to url, after some statements of a superuser.
func torturedAt(t *testing.T, url string, before, kinds []string, runs time.Duration, calls int64, swaps []swap, damage ...string) *checker {
	t.Helper()
	ctx := context.Background()
	admin, err := pgx.Connect(ctx, address)
	must(t, err)
	defer admin.Close(ctx)
	name := fmt.Sprintf("torture_%d", databases.Add(1))
	_, err = admin.Exec(ctx, "create database "+name+" owner torture_owner template "+database)
	must(t, err)
	conn, err := adminConn(ctx, address, name)
	must(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `create function lock_internal.nothing(integer, integer) returns boolean language sql as 'select true';
		grant execute on function lock_internal.nothing to public`)
	must(t, err)
	broken := map[string]string{}
	for _, s := range swaps {
		text := broken[s.file]
		if text == "" {
			source, err := os.ReadFile("../sql/functions/" + s.file + ".sql")
			must(t, err)
			text = string(source)
		}
		if !strings.Contains(text, s.old) {
			t.Fatalf("%s.sql does not have %q: this mistake cannot be made any more as it is written here", s.file, s.old)
		}
		broken[s.file] = strings.ReplaceAll(text, s.old, s.new)
	}
	for file, text := range broken {
		if _, err := conn.Exec(ctx, text); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	for _, sql := range before {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	config := clientConfig{URL: url, Database: name, Dir: t.TempDir(), Start: now(), Seed: 1, Client: 1, Workers: 8, Kinds: kinds, Linger: 10 * time.Millisecond}
	// Long enough for what has to expire, and on a slow machine until enough was called.
	var count atomic.Int64
	work, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	go func() {
		for began := time.Now(); work.Err() == nil; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > runs && count.Load() > calls {
				cancel()
			}
		}
	}()
	config.work(work, &count, func(err error) { t.Log(err) })
	must(t, drain(ctx, address, address, name, config.Dir, config.Start))
	for _, sql := range damage {
		tag, err := conn.Exec(ctx, sql)
		must(t, err)
		if tag.RowsAffected() == 0 {
			t.Fatalf("nothing to damage: %s", sql)
		}
	}
	c, err := check(ctx, address, name, config.Dir, config.Start)
	must(t, err)
	if n := c.Checked[kinds[0]]; n < 100 {
		t.Errorf("only %d calls", n)
	}
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// times is how often a checker found what has this text.
func (c *checker) times(text string) (n int) {
	for what, found := range c.Found {
		if strings.Contains(what, text) {
			n += found
		}
	}
	return n
}

func (c *checker) says(texts ...string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return c.times(text) == 0 })
}

func (c *checker) rejects(t *testing.T, want ...string) {
	t.Helper()
	for _, text := range want {
		if n := c.times(text); n == 0 {
			t.Errorf("nothing says %q; it says %v", text, c.Found)
		} else {
			t.Logf("%q: %d times", text, n)
		}
	}
}

func TestSeededBugs(t *testing.T) {
	for _, bug := range bugs {
		t.Run(strings.ReplaceAll(bug.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			runs, calls := bug.runs, bug.calls
			if runs == 0 {
				runs = 500 * time.Millisecond
			}
			if calls == 0 {
				calls = 1000
			}
			c := tortured(t, []string{bug.kind}, runs, calls, bug.swaps)
			if !c.says(bug.want...) { // a machine that is busy meets fewer races in a time
				c = tortured(t, []string{bug.kind}, 5*runs, 5*calls, bug.swaps)
			}
			c.rejects(t, bug.want...)
		})
	}
}

// What the checkers say of a loss, when the database has lost it.
func TestLosses(t *testing.T) {
	t.Parallel()
	c := tortured(t, []string{"task", "request"}, time.Second, 1000, nil,
		"delete from lock.task where id = (select min(id) from lock.task)",
		"update lock.task set status = 'failed' where id = (select min(id) from lock.task)",
		"update lock.task set attempt = 0 where id = (select max(id) from lock.task)",
		"delete from lock.request where request_id = (select min(request_id) from lock.request)",
		"update lock.request set request_status = 'error' where request_id = (select min(request_id) from lock.request)",
		"delete from torture.work where request = (select max(request_id) from lock.request)",
	)
	c.rejects(t, "it was created and is gone", "it ended as failed", "its attempt is behind what was given",
		"it was enqueued and is gone", "it ended as error", "it is complete, and nobody did it")
	if c.Lost["task"] != 2 || c.Lost["request"] != 3 {
		t.Errorf("lost: %v", c.Lost)
	}
}

// The functions as they are.
func TestNothingIsWrong(t *testing.T) {
	t.Parallel()
	var all []string
	for _, k := range kinds {
		all = append(all, k.name)
	}
	c := tortured(t, all, 1500*time.Millisecond, 5000, nil)
	for _, example := range c.Examples {
		t.Error(example)
	}
	for _, k := range kinds {
		if n := c.Outcomes[k.name]; n.Yes == 0 || n.No == 0 && k != workerKind || n.Unknown > 0 {
			t.Errorf("%s: %+v", k.name, n)
		}
	}
}
