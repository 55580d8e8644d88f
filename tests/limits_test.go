package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The settings by which a server ends what its clients do, and the SQLSTATEs that each may answer with.
var limits = map[string]string{
	"statement_timeout":                   "57014",
	"lock_timeout":                        "55P03",
	"idle_in_transaction_session_timeout": "25P03",
	"transaction_timeout":                 "25P04", // 17 and newer
}

// limitsTables say what was committed, in the transaction that did it.
const limitsTables = `
	create table counter as select 0 as n;
	create table counted (n integer primary key);
	create table granted (what text, id text, primary key (what, id));
	create table mutex_log (id text, owner text, step text, primary key (owner, step));
	create table lease_log (name text, token bigint, step text, primary key (name, token, step));
	create table task_log (id text primary key);
	create table request_log (request_id bigint primary key);
	grant select, insert, update on counter, counted, granted, mutex_log, lease_log, task_log, request_log to locks_app;
	select lock.create_timeout('id ' || n, '1 hour'), lock.create_throttled_resource('id ' || n, '1 hour') from generate_series(1, 20) n;
	select lock.create_tasks(array(select 'task ' || n from generate_series(1, 200) n));
	select lock.enqueue('update', 'entity ' || n % 5) from generate_series(1, 100) n`

// limited lets clients with low limits, set at random, do everything, and says what is wrong afterwards.
func limited(t *testing.T, e *env, times int) (wrong []string) {
	t.Helper()
	admin(t, e, limitsTables)
	known := map[string]bool{}
	for setting, state := range limits {
		if setting != "transaction_timeout" || target.number >= 170000 {
			known[state] = true
		}
	}
	holder := e.sessionAs(t, e.super) // for as long as the clients are at work
	holder.exec("begin; select lock.exclusive('held'); select from lock.acquire_mutex('held')")

	var mu sync.Mutex
	seen := map[string]int{}
	fault := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		wrong = append(wrong, fmt.Sprintf(format, args...))
	}
	// A step is a transaction.
	yes := func(tx pgx.Tx, sql string, args ...any) (answer bool, err error) {
		return answer, tx.QueryRow(ctx, sql, args...).Scan(&answer)
	}
	insert := func(tx pgx.Tx, table string, args ...any) error {
		places := "$1"
		for n := 2; n <= len(args); n++ {
			places += fmt.Sprintf(", $%d", n)
		}
		_, err := tx.Exec(ctx, "insert into "+table+" values ("+places+")", args...)
		return err
	}
	grant := func(what, sql string) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			id := fmt.Sprint("id ", 1+rand.N(20))
			granted, err := yes(tx, sql, id)
			if err == nil && granted {
				err = insert(tx, "granted", what, id)
			}
			return err
		}
	}
	steps := []func(tx pgx.Tx) error{
		func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "select lock.exclusive('counter')"); err != nil {
				return err
			}
			var n int
			if err := tx.QueryRow(ctx, "select n from counter").Scan(&n); err != nil {
				return err
			}
			if err := insert(tx, "counted", n); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "update counter set n = $1", n+1)
			return err
		},
		grant("timeout", "select lock.acquire_timeout($1)"),
		grant("throttle", "select lock.lock_throttled_resource($1, 'somebody')"),
		grant("time slot", "select lock.acquire_time_slot($1, '1 hour', '2026-01-01 UTC')"),
		func(tx pgx.Tx) error { // a mutex, by its owner's name
			id, owner := fmt.Sprint("mutex ", rand.N(3)), fmt.Sprintf("%x", rand.Uint64())
			acquired, err := yes(tx, "select lock.acquire_mutex($1, $2)", id, owner)
			if err == nil && acquired {
				err = insert(tx, "mutex_log", id, owner, "acquired")
			}
			return err
		},
		func(tx pgx.Tx) error {
			var id, owner string
			err := tx.QueryRow(ctx, "select task_id, owner from lock.mutex_status where acquired and task_id <> 'held' order by random() limit 1").Scan(&id, &owner)
			if err != nil {
				return err
			}
			released, err := yes(tx, "select lock.release_mutex($1, $2)", id, owner)
			if err == nil && released {
				err = insert(tx, "mutex_log", id, owner, "released")
			}
			return err
		},
		func(tx pgx.Tx) error {
			var name string
			var token int64
			err := tx.QueryRow(ctx, "select name, token from lock.acquire_lease($1, 'somebody', '1 hour', 2)", fmt.Sprint("lease ", rand.N(3))).Scan(&name, &token)
			if err == nil {
				err = insert(tx, "lease_log", name, token, "acquired")
			}
			return err
		},
		func(tx pgx.Tx) error {
			var name string
			var token int64
			err := tx.QueryRow(ctx, "select name, token from lock.lease_holder order by random() limit 1").Scan(&name, &token)
			if err != nil {
				return err
			}
			released, err := yes(tx, "select lock.release_lease($1, $2)", name, token)
			if err == nil && released {
				err = insert(tx, "lease_log", name, token, "released")
			}
			return err
		},
		func(tx pgx.Tx) error {
			var id string
			var attempt int64
			if err := tx.QueryRow(ctx, "select id, attempt from lock.capture(1)").Scan(&id, &attempt); err != nil {
				return err
			}
			done, err := yes(tx, "select lock.set_status($1, 'done', $2::bigint)", id, attempt)
			if err == nil && done {
				err = insert(tx, "task_log", id)
			}
			return err
		},
		func(tx pgx.Tx) error {
			process := requestProcess()
			rows, err := tx.Query(ctx, "select request_id from lock.capture_request($1)", process)
			if err != nil {
				return err
			}
			captured, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			for _, id := range captured {
				if err == nil {
					err = insert(tx, "request_log", id)
				}
			}
			if err == nil {
				_, err = tx.Exec(ctx, "select lock.settle_request($1)", process)
			}
			return err
		},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select lock.exclusive('held')")
			return err
		},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select lock.try_exclusive('held', '1 hour')")
			return err
		},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select lock.acquire_mutex('held')")
			return err
		},
		func(tx pgx.Tx) error { // longer than any limit
			_, err := tx.Exec(ctx, "select pg_sleep(0.2)")
			return err
		},
	}
	const waiting = 4 // so many of the last steps need an end
	client := func() {
		config, err := pgx.ParseConfig(e.app)
		must(t, err)
		ends, dies := false, false
		for setting, state := range limits {
			if known[state] && rand.N(2) == 0 {
				config.RuntimeParams[setting] = fmt.Sprint(1 + rand.N(30))
				ends = ends || setting == "statement_timeout" || setting == "transaction_timeout"
				dies = dies || state[:2] == "25"
			}
		}
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			if !known[code(err)] {
				fault("connect: %v", err)
			}
			return
		}
		defer conn.Close(ctx)
		for range 5 {
			n := rand.N(len(steps))
			if n >= len(steps)-waiting && !ends {
				n = 0
			}
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if err := steps[n](tx); err != nil {
					return err
				}
				if dies && rand.N(3) == 0 {
					limited, cancel := context.WithTimeout(ctx, patience)
					defer cancel()
					_, err := tx.Conn().WaitForNotification(limited) // none comes: the limit ends the session
					return err
				}
				return nil
			})
			var pg *pgconn.PgError
			switch {
			case err == nil || errors.Is(err, pgx.ErrNoRows):
			case errors.As(err, &pg) && known[pg.Code]:
				mu.Lock()
				seen[pg.Code]++
				mu.Unlock()
			case !errors.As(err, &pg) && dies && conn.IsClosed():
			default:
				fault("step %d with %v: %v", n, config.RuntimeParams, err)
			}
			if conn.IsClosed() {
				return
			}
		}
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range times {
				client()
			}
		})
	}
	wg.Wait()
	holder.exec("rollback")
	t.Logf("ended: %v", seen)
	for state := range known {
		if seen[state] == 0 {
			fault("nothing was ended by %s", state)
		}
	}
	// Whoever was ended holds nothing.
	eventually(t, "all back ends have ended", func() bool {
		var left int
		must(t, e.admin.QueryRow(ctx, "select count(*) from pg_stat_activity where datname = current_database() and usename = 'locks_app' and (state <> 'idle' or xact_start is not null)").Scan(&left))
		return left == 0
	})
	super := e.sessionAs(t, e.super)
	for what, sql := range map[string]string{
		"locks":             "select count(*) from pg_locks where locktype in ('advisory', 'tuple', 'transactionid') and database = (select oid from pg_database where datname = current_database())",
		"held keys":         "select count(*) from unnest('{held,counter}'::text[]) name where not lock.try_exclusive(name)",
		"the counter":       "select abs(n - (select count(*) from counted)) from counter",
		"mutexes":           "select count(*) from lock.mutex_status full join (select id, sum(case step when 'acquired' then 1 else -1 end) held from mutex_log group by id) log on id = task_id where task_id <> 'held' and coalesce(held, 0) <> acquired::integer",
		"leases":            "select count(*) from (select name, token from lease_log group by name, token having count(*) = 1) log full join lock.lease_holder using (name, token) where log.token is null or lease_holder.token is null",
		"tasks":             "select count(*) from (select id from lock.task where status = 'done') done full join task_log using (id) where done.id is null or task_log.id is null",
		"captured tasks":    "select count(*) from lock.task where status = 'in_progress'",
		"requests":          "select count(*) from (select request_id from lock.request where settled_at is not null) done full join request_log using (request_id) where done.request_id is null or request_log.request_id is null",
		"captured requests": "select count(*) from lock.request_batch",
		"timeouts":          "select count(*) from granted full join (select task_id id from lock.timeout where ts > '-infinity') used using (id) where what = 'timeout' and used.id is null",
		"findings":          "select count(*) from lock.check() where severity = 'error' and subject <> 'fsync'",
	} {
		if n := get[int64](super, sql); n != 0 {
			fault("%s: %d", what, n)
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

// Clients whose server ends their statements, waits and transactions early get the SQLSTATEs of that and no other, hold nothing afterwards, and have
// done all or nothing.
func TestClientLimits(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "its waits have no such limits")
	eachEngine(t, func(t *testing.T, e *env) {
		for _, wrong := range limited(t, e, rounds(t, 40)) {
			t.Error(wrong)
		}
	})
	t.Run("the checker catches a lock that is not taken", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "acquire_timeout", "for no key update skip locked", "")
		admin(t, e, "create or replace function lock.exclusive(name text) returns void language sql as 'select'")
		if wrong := limited(t, e, rounds(t, 40)); len(wrong) == 0 {
			t.Error("found nothing")
		} else {
			t.Log(wrong[0])
		}
	})
}
