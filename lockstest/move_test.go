//go:build unix

package lockstest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func run(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(ctx, sql, args...)
	must(t, err)
}

// listen returns what waits for the next notification on a channel and returns its payload.
func listen(t *testing.T, pool *pgxpool.Pool, channel string) (heard func() string) {
	t.Helper()
	conn := connect(t, pool.Config().ConnString())
	_, err := conn.Exec(ctx, "listen "+channel)
	must(t, err)
	return func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		n, err := conn.WaitForNotification(ctx)
		must(t, err)
		return n.Payload
	}
}

func TestRewind(t *testing.T) {
	t.Parallel()
	const busy = "select count(*) from lock.capture(1)"
	for _, c := range []struct {
		name, table, key string
		row, unknown     Row
		make             []string
		ask              string // answers 0 or false now, and 1 or true an hour later
	}{
		{"Throttle", "throttled_resource", "resource_id", Throttle("x"), Throttle("y"),
			[]string{"select lock.create_throttled_resource('x', '1 hour')", "select lock.lock_throttled_resource('x', 'me')"},
			"select lock.lock_throttled_resource('x', 'me')::integer"},
		{"Throttle of two permits", "throttled_permit", "resource_id", Throttle("x"), Throttle("y"),
			[]string{"select lock.create_throttled_resource('x', '1 hour', 2)", "select lock.lock_throttled_resource('x', 'me')", "select lock.lock_throttled_resource('x', 'me')"},
			"select lock.lock_throttled_resource('x', 'me')::integer"},
		{"Timeout", "timeout", "task_id", Timeout("x"), Timeout("y"),
			[]string{"select lock.create_timeout('x', '1 hour')", "select lock.acquire_timeout('x')"},
			"select lock.acquire_timeout('x')::integer"},
		{"TimeSlot", "time_slot", "task_id", TimeSlot("x"), TimeSlot("y"),
			[]string{"select lock.acquire_time_slot('x', '1 hour', '2001-01-01 12:30+00')"},
			"select lock.acquire_time_slot('x', '1 hour', '2001-01-01 12:30+00')::integer"},
		{"RateLimit", "rate_limit", "limit_id", RateLimit("x"), RateLimit("y"),
			[]string{"select from lock.take('x', 1, '1 hour')"},
			"select granted::integer from lock.take('x', 1, '1 hour')"},
		{"Task that is put off", "task", "id", Task("default", "x"), Task("other", "x"),
			[]string{"select lock.create_task('x', available_at => clock_timestamp() + interval '1 hour')"}, busy},
		{"Task that is captured", "task", "id", Task("default", "x"), Task("default", "y"),
			[]string{"select lock.create_task('x', timeout => '1 hour')", busy}, busy},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := Pool(t)
			for _, sql := range c.make {
				run(t, pool, sql)
			}
			if get[int](t, pool, c.ask) != 0 {
				t.Fatal("it is granted at once")
			}
			columns := `select array_agg(row.key || ' ' || left(row.value, 13) order by row.key)
				from lock.` + c.table + ` as stored, jsonb_each_text(to_jsonb(stored)) as row
				join pg_attribute on attrelid = 'lock.` + c.table + `'::regclass and attname = row.key
				where atttypid in ('timestamptz'::regtype, 'timestamptz[]'::regtype, 'timestamp'::regtype) and row.value not in ('infinity', '-infinity')`
			Rewind(t, pool, c.row, time.Hour)
			if get[int](t, pool, c.ask) != 1 {
				t.Error("it is not granted an hour later")
			}
			run(t, pool, "delete from lock.throttled_resource")
			run(t, pool, "delete from lock."+c.table)
			for _, sql := range c.make {
				run(t, pool, sql)
			}
			before := get[[]string](t, pool, columns)
			Rewind(t, pool, c.row, 48*time.Hour)
			for n, after := range get[[]string](t, pool, columns) {
				if after == before[n] {
					t.Errorf("a time of lock.%s was not moved: %s", c.table, after)
				}
			}
			fails(t, "there is no "+c.unknown.what, func(t testing.TB) { Rewind(t, pool, c.unknown, time.Hour) })
			fails(t, "is not back", func(t testing.TB) { Rewind(t, pool, c.row, 0) })
		})
	}
	t.Run("by less than a slot stays in the slot", func(t *testing.T) {
		t.Parallel()
		pool := Pool(t)
		// The slots are so long that the test never meets the end of one; the data point is one of
		// long ago.
		run(t, pool, "select lock.acquire_time_slot('now', '36525 days'), lock.acquire_time_slot('point', '1 hour', '2001-01-01 12:30+00')")
		Rewind(t, pool, TimeSlot("now"), time.Hour)
		Rewind(t, pool, TimeSlot("point"), time.Hour)
		if get[bool](t, pool, "select lock.acquire_time_slot('now', '36525 days')") {
			t.Error("the slot is granted twice")
		}
		if !get[bool](t, pool, "select slot_start = '2001-01-01 11:00+00' from lock.time_slot where task_id = 'point'") {
			t.Error("the data point's slot is not an hour earlier")
		}
	})
	t.Run("of what was never granted changes nothing", func(t *testing.T) {
		t.Parallel()
		pool := Pool(t)
		run(t, pool, "select lock.create_throttled_resource('x', '1 hour'), lock.create_timeout('x', '1 hour'), lock.acquire_time_slot('x', '1 hour')")
		run(t, pool, "select lock.force_release_time_slot('x', 'a test')")
		for _, row := range []Row{Throttle("x"), Timeout("x"), TimeSlot("x")} {
			Rewind(t, pool, row, time.Hour)
		}
		if !get[bool](t, pool, "select lock.lock_throttled_resource('x', 'me') and lock.acquire_timeout('x') and lock.acquire_time_slot('x', '1 hour')") {
			t.Error("it is denied")
		}
	})
	t.Run("tells the idle workers of a task's queue", func(t *testing.T) {
		t.Parallel()
		pool := Pool(t)
		run(t, pool, "select lock.create_task('x', 'q', available_at => clock_timestamp() + interval '1 hour')")
		heard := listen(t, pool, "lock_task")
		Rewind(t, pool, Task("q", "x"), time.Hour)
		if queue := heard(); queue != "q" {
			t.Errorf("heard of queue %q", queue)
		}
	})
}

func TestExpire(t *testing.T) {
	t.Parallel()
	pool := Pool(t)
	fails(t, `there is no lease on "l"`, func(t testing.TB) { Expire(t, pool, "l") })
	const acquire = "select count(*) from lock.acquire_lease('l', 'me', '1 hour', 2)"
	run(t, pool, acquire)
	run(t, pool, acquire)
	run(t, pool, "select lock.acquire_lease('other', 'me', '1 hour')")
	heard := listen(t, pool, "lock_lease")
	Expire(t, pool, "l")
	if name := heard(); name != "l" {
		t.Errorf("heard of %q", name)
	}
	if get[int](t, pool, acquire)+get[int](t, pool, acquire) != 2 || get[int](t, pool, acquire) != 0 {
		t.Error("not both permits are free")
	}
	if get[int](t, pool, "select count(*) from lock.lease_holder where name = 'other'") != 1 {
		t.Error("another name's lease ended, too")
	}
	run(t, pool, "update lock.lease set expires_at = clock_timestamp() - interval '1 hour'")
	fails(t, `there is no lease on "l"`, func(t testing.TB) { Expire(t, pool, "l") })
}

func TestKill(t *testing.T) {
	t.Parallel()
	pool := Pool(t)
	victim, bystander := connect(t, pool.Config().ConnString()), connect(t, Pool(t).Config().ConnString())
	_, err := victim.Exec(ctx, "begin; select lock.exclusive(1)")
	must(t, err)
	pid := victim.PgConn().PID()
	Kill(t, pool, pid)
	if !get[bool](t, pool, "select lock.try_exclusive(1)") {
		t.Error("its lock is not free")
	}
	if _, err := victim.Exec(ctx, "select 1"); err == nil {
		t.Error("it lives")
	}
	fails(t, "there is no other session", func(t testing.TB) { Kill(t, pool, pid) })
	fails(t, "there is no other session", func(t testing.TB) { Kill(t, pool, 0) })
	fails(t, "there is no other session", func(t testing.TB) { Kill(t, pool, bystander.PgConn().PID()) })
	if err := bystander.Ping(ctx); err != nil {
		t.Errorf("another database's session: %v", err)
	}
}

func TestOthersMayNot(t *testing.T) {
	t.Parallel()
	s, err := other()
	must(t, err)
	role, database := fresh("stranger"), fresh("strange")
	owner, stranger := s.URL("postgres", "postgres"), s.URL(role, database)
	conn := connect(t, owner)
	for _, sql := range []string{"create role " + role + " login", "create database " + database} {
		_, err := conn.Exec(ctx, sql)
		must(t, err)
	}
	must(t, migrate(ctx, within(owner, database)))
	_, err = connect(t, within(owner, database)).Exec(ctx, "select lock.grant_to('"+role+"')")
	must(t, err)
	pool, err := pgxpool.New(ctx, stranger)
	must(t, err)
	defer pool.Close()
	run(t, pool, "select lock.acquire_time_slot('x', '1 hour')")
	for _, row := range []Row{Throttle("x"), Timeout("x"), TimeSlot("x"), Task("q", "x")} {
		fails(t, "for the owner of schema lock", func(t testing.TB) { Rewind(t, pool, row, time.Hour) })
	}
	fails(t, "for the owner of schema lock", func(t testing.TB) { Expire(t, pool, "x") })
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"postgres://me:secret@host:1/x?sslmode=disable&pool_max_conns=99", "postgres://me:secret@host:1/y?sslmode=disable&pool_max_conns=99"},
		{"postgresql://host", "postgresql://host/y"},
		{"host=host dbname=x user=me", "host=host dbname=x user=me dbname=y"},
	} {
		got := within(c[0], "y")
		if config, err := pgxpool.ParseConfig(got); got != c[1] || err != nil || config.ConnConfig.Database != "y" {
			t.Errorf("%s: %s, %v", c[0], got, err)
		}
	}
}
