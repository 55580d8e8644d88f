package tests

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// levels are the isolation levels that every kind must be right under.
var levels = []string{"read committed", "repeatable read", "serializable"}

// rounds is how often a race is run; LOCKS_TEST_ROUNDS multiplies it.
func rounds(t *testing.T, n int) int {
	t.Helper()
	value := os.Getenv("LOCKS_TEST_ROUNDS")
	if value == "" {
		return n
	}
	factor, err := strconv.Atoi(value)
	must(t, err)
	return n * factor
}

// A crowd is 64 connections that call one function at the same moment.
type crowd struct {
	e     *env
	conns []*pgx.Conn
}

func (e *env) crowd(t *testing.T) *crowd {
	t.Helper()
	c := &crowd{e: e, conns: make([]*pgx.Conn, 64)}
	for i := range c.conns {
		conn, err := pgx.Connect(ctx, e.url)
		must(t, err)
		t.Cleanup(func() { conn.Close(ctx) })
		c.conns[i] = conn
	}
	return c
}

// race lets every connection run sql, which returns a boolean, once and all together, each in a transaction whose snapshot, under
// snapshot isolation, is older than the start. Who is told 40001 tries again. It returns how many committed a true.
func (c *crowd) race(t *testing.T, level, sql string, args ...any) int {
	t.Helper()
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	wins := make([]bool, len(c.conns))
	errs := make([]error, len(c.conns))
	ready.Add(len(c.conns))
	for i, conn := range c.conns {
		done.Go(func() {
			first := true
			for range 1000 {
				errs[i] = func() error {
					if _, err := conn.Exec(ctx, "begin isolation level "+level+"; select 1"); err != nil {
						return err
					}
					if first {
						first = false
						ready.Done()
						<-start
					}
					if err := conn.QueryRow(ctx, sql, args...).Scan(&wins[i]); err != nil {
						return err
					}
					_, err := conn.Exec(ctx, "commit")
					return err
				}()
				if errs[i] == nil {
					return
				}
				wins[i] = false
				if _, err := conn.Exec(ctx, "rollback"); err != nil || code(errs[i]) != "40001" {
					return
				}
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	total := 0
	for i := range c.conns {
		if errs[i] != nil {
			t.Fatalf("%s under %s: %v", sql, level, errs[i])
		}
		if wins[i] {
			total++
		}
	}
	return total
}

// A contest is one kind's race for an id.
type contest struct {
	sql    string                                // $1 is the id, $2 the round
	fresh  func(t *testing.T, e *env, id string) // makes what a new id needs; nil: nothing
	again  func(t *testing.T, e *env, id string) // makes a used id free again; nil: the next round does
	mutate func(t *testing.T, e *env)            // seeds the bug
}

// run checks that exactly one of the crowd wins each round, and that the seeded bug makes it more.
func (c contest) run(t *testing.T) {
	e := open(t, advisory)
	crowd := e.crowd(t)
	if c.fresh == nil {
		c.fresh = func(*testing.T, *env, string) {}
	}
	if c.again == nil {
		c.again = func(*testing.T, *env, string) {}
	}
	n := 0
	play := func(level string, id string) int {
		n++
		return crowd.race(t, level, c.sql, id, n)
	}
	for _, level := range levels {
		count := rounds(t, 60)
		if level == "read committed" {
			count = rounds(t, 200)
		}
		t.Run(level+", new ids", func(t *testing.T) {
			for i := range count {
				id := fmt.Sprintf("%s %d", level, i)
				c.fresh(t, e, id)
				if won := play(level, id); won != 1 {
					t.Fatalf("round %d: %d callers won", i, won)
				}
			}
		})
		t.Run(level+", a known id", func(t *testing.T) {
			id := "known under " + level
			c.fresh(t, e, id)
			play(level, id)
			for i := range count {
				c.again(t, e, id)
				if won := play(level, id); won != 1 {
					t.Fatalf("round %d: %d callers won", i, won)
				}
			}
		})
	}
	// lock_internal.uncontended is a hint: on YugabyteDB it is always true, and where buckets are taken by strangers it is false.
	for _, hint := range []string{"true", "false"} {
		t.Run("the hint is always "+hint, func(t *testing.T) {
			admin(t, e, "create or replace function lock_internal.uncontended(id text) returns boolean language sql as 'select "+hint+"'")
			for _, level := range levels {
				id := "hint " + hint + " under " + level
				c.fresh(t, e, id)
				for i := range rounds(t, 60) {
					if i > 0 {
						c.again(t, e, id)
					}
					if won := play(level, id); won != 1 {
						t.Fatalf("%s, round %d: %d callers won", level, i, won)
					}
				}
			}
		})
	}
	t.Run("the checker catches a grab that does not look again", func(t *testing.T) {
		c.mutate(t, e)
		const id = "mutated"
		c.fresh(t, e, id)
		play("read committed", id)
		for i := range 3000 {
			c.again(t, e, id)
			if won := play("read committed", id); won > 1 {
				t.Logf("round %d: %d callers won", i, won)
				return
			}
		}
		t.Fatal("two callers never won")
	})
}

// admin runs SQL as superuser.
func admin(t *testing.T, e *env, sql string, args ...any) {
	t.Helper()
	if _, err := e.admin.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// startGet is start for a statement with one value, which is there once the statement ended.
func startGet[T any](s *session, sql string, args ...any) (*pending, *T) {
	p := &pending{s: s, sql: sql, done: make(chan error, 1)}
	value := new(T)
	go func() { p.done <- s.conn.QueryRow(ctx, sql, args...).Scan(value) }()
	return p, value
}

const explainWAL = "explain (analyze, wal, costs off, timing off, summary off, format json) "

// wroteNothing checks what explainWAL said about a call, and that the session's open transaction has no id.
func (s *session) wroteNothing(plan string) {
	s.t.Helper()
	if !strings.Contains(plan, `"WAL Records": 0,`) || !strings.Contains(plan, `"WAL Bytes": 0`) {
		s.t.Fatalf("WAL was written: %s", plan)
	}
	answers(s, true, "select pg_current_xact_id_if_assigned() is null")
}

// denied checks that a call answers false, at once and without writing anything.
func (s *session) denied(sql string) {
	s.t.Helper()
	s.exec("begin")
	answers(s, false, sql)
	s.wroteNothing(get[string](s, explainWAL+sql))
	s.exec("rollback")
}

// grantedAfterRollback checks that a call that waits for an open transaction's grant is granted when that rolls back.
func grantedAfterRollback(t *testing.T, e *env, sql string) {
	t.Helper()
	holder, waiter := e.session(t), e.session(t)
	holder.exec("begin")
	answers(holder, true, sql)
	p, granted := startGet[bool](waiter, sql)
	p.blocked()
	holder.exec("rollback")
	p.ends()
	if !*granted {
		t.Fatalf("%s: denied although the holder rolled back", sql)
	}
}

// deniedAfterCommit checks that it is denied when that commits, having written nothing.
func deniedAfterCommit(t *testing.T, e *env, sql string) {
	t.Helper()
	holder, waiter := e.session(t), e.session(t)
	holder.exec("begin")
	answers(holder, true, sql)
	waiter.exec("begin")
	p, plan := startGet[string](waiter, explainWAL+sql)
	p.blocked()
	holder.exec("commit")
	p.ends()
	waiter.wroteNothing(*plan)
	answers(waiter, false, sql)
	waiter.exec("commit")
}

// smallestGap lets one caller spin on an id until it was granted 1000 times, and returns the shortest time between two grants.
func smallestGap(t *testing.T, e *env, call, stored string) time.Duration {
	t.Helper()
	s := e.sessionAs(t, e.super)
	s.exec("set synchronous_commit = off") // a commit comes between a grant and the next try
	s.exec("create temp table if not exists gap (length interval); truncate gap")
	s.exec(fmt.Sprintf(`do $$
		declare
			earlier  timestamptz;
			later    timestamptz;
		begin
			for n in 1 .. 1000 loop
				loop
					exit when %s;
				end loop;
				later := (%s);
				insert into gap values (later - earlier);
				earlier := later;
				commit;
			end loop;
		end $$`, call, stored))
	return get[time.Duration](s, "select min(length) from gap")
}

// zoneAfterChange is a time zone whose clocks went an hour forward, or back, twelve hours ago.
func zoneAfterChange(s *session, forward bool) string {
	change, other := "extract(doy from utc)::integer - 1 || '/' || extract(hour from utc)", "(extract(doy from utc)::integer + 180) % 365"
	zone := "format('AAA0BBB-1,%s,%s', " + change + ", " + other + ")"
	if !forward {
		zone = "format('AAA0BBB-1,%s,%s', " + other + ", " + change + ")"
	}
	return get[string](s, "select "+zone+" from (select now() at time zone 'UTC' - interval '12 hours' as utc) as ago")
}

func TestSmallStandby(t *testing.T) {
	if target.own == nil {
		t.Skip("needs a server of its own, to make a standby of it")
	}
	if _, err := os.Stat(target.own.BinDir + "/pg_basebackup"); err != nil {
		t.Skip("pg_basebackup is not installed beside the server")
	}
	t.Parallel()
	e := open(t, advisory)
	e.session(t).exec("select lock.acquire_mutex('a'), lock.create_timeout('a', '1 hour'), lock.acquire_time_slot('a', '1 hour'), lock.create_throttled_resource('a', '1 hour')")
	standby, err := target.own.Standby(ctx)
	must(t, err)
	t.Cleanup(func() { standby.Stop() })
	config, err := pgx.ParseConfig(e.url)
	must(t, err)
	for user, calls := range map[string][]string{
		"locks_app": {
			"create_mutex('a')", "acquire_mutex('a')", "acquire_mutex('b')", "release_mutex('a')", "release_mutex('b')", "create_timeout('a', '1 hour')",
			"acquire_timeout('a')", "acquire_time_slot('a', '1 hour')", "acquire_time_slot('b', '1 hour')",
			"create_throttled_resource('a', '1 hour')", "lock_throttled_resource('a', 'why')",
		},
		"locks_owner": {
			"force_release_mutex('a', 'why')", "force_release_timeout('a', 'why')", "force_release_time_slot('a', 'why')", "force_release_throttled_resource('a', 'why')",
			"drop_unused_mutexes('1 day')", "drop_unused_timeouts('1 day')", "drop_unused_time_slots('1 day')", "drop_unused_throttled_resources('1 day')",
		},
	} {
		s := e.sessionAs(t, standby.URL(user, config.Database))
		for _, call := range calls {
			s.fails("25006", "select lock."+call)
		}
	}
}

// No call scans or sorts: how many pages it touches does not grow with the rows.
func TestSmallPlans(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	const rows, few = 200000, 600
	for _, c := range []struct {
		table, columns, values string
		calls                  []string
		drop                   string
	}{
		{"mutex", "task_id, released_at", "'id' || n, now()", []string{
			"create_mutex('new')", "acquire_mutex('id77')", "acquire_mutex('id77')", "release_mutex('id77')", "release_mutex('id77')", "acquire_mutex('newer')",
			"force_release_mutex('newer', 'test')",
		}, "drop_unused_mutexes"},
		{"timeout", "task_id, timeout", "'id' || n, '1 hour'", []string{
			"create_timeout('new', '1 hour')", "create_timeout('id77', '2 hours')", "acquire_timeout('id77')", "acquire_timeout('id77')",
			"force_release_timeout('id77', 'test')",
		}, "drop_unused_timeouts"},
		{"time_slot", "task_id, slot_start", "'id' || n, '2000-01-01'", []string{
			"acquire_time_slot('new', '1 hour')", "acquire_time_slot('id77', '1 hour')", "acquire_time_slot('id77', '1 hour')",
			"force_release_time_slot('id77', 'test')",
		}, "drop_unused_time_slots"},
		{"throttled_resource", "resource_id, throttle_interval", "'id' || n, '1 hour'", []string{
			"create_throttled_resource('new', '1 hour')", "lock_throttled_resource('id77', 'test')", "lock_throttled_resource('id77', 'test')",
			"force_release_throttled_resource('id77', 'test')",
		}, "drop_unused_throttled_resources"},
	} {
		t.Run(c.table, func(t *testing.T) {
			s.exec(fmt.Sprintf("insert into lock.%s (%s) select %s from generate_series(1, %d) n", c.table, c.columns, c.values, rows))
			s.exec("vacuum analyze lock." + c.table)
			if all := get[int](s, "select relpages from pg_class where oid = $1::text::regclass", "lock."+c.table); all < 2*few {
				t.Fatalf("%d pages are too few to tell a scan from a look-up", all)
			}
			for _, call := range c.calls {
				n := least(func() int {
					s.exec("begin")
					defer s.exec("rollback")
					n, _ := buffersOnce(s, "select lock."+call)
					return n
				})
				if n > 100 {
					t.Errorf("%s touched %d pages", call, n)
				}
				s.exec("select lock." + call)
			}
			drop := func(want int) int {
				t.Helper()
				return least(func() int {
					before := get[int](s, "select count(*)::integer from lock."+c.table)
					n, _ := buffersOnce(s, "select lock."+c.drop+"('30 days', 10)")
					if after := get[int](s, "select count(*)::integer from lock."+c.table); before-after != want {
						t.Fatalf("%s dropped %d, want %d", c.drop, before-after, want)
					}
					return n
				})
			}
			if n := drop(0); n > few {
				t.Errorf("%s touched %d pages to drop nothing", c.drop, n)
			}
			old := map[string]string{"mutex": "released_at = '2001-01-01'", "timeout": "ts = '-infinity'", "time_slot": "granted_at = '2001-01-01'",
				"throttled_resource": "last_locked = '-infinity', last_locker_details = ''"}[c.table]
			s.exec(fmt.Sprintf("update lock.%s set %s, unused_since = '2001-01-01'", c.table, old))
			s.exec("vacuum analyze lock." + c.table)
			if n := drop(10); n > few {
				t.Errorf("%s touched %d pages to drop 10 of all", c.drop, n)
			}
			s.exec("drop index lock." + c.table + "_unused_since_idx")
			if n := drop(10); n <= few {
				t.Errorf("the checker does not see a missing index: %d pages", n)
			}
		})
	}
}

// The server's lock table is not used up by a transaction that touches many ids.
func TestSmallManyIDs(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("begin")
	for _, call := range []string{"lock.acquire_mutex('id' || n)", "lock.release_mutex('id' || n)", "lock.acquire_time_slot('id' || n, '1 hour')"} {
		answers(s, 10000, "select count(*) filter (where "+call+")::integer from generate_series(1, 10000) n")
	}
	answers(s, true, "select count(*) between 1 and 1024 from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
	s.exec("commit")
}
