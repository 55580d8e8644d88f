package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

func TestTimeoutWinner(t *testing.T) {
	contest{
		sql: "select lock.acquire_timeout($1) from (select $2::integer) as round",
		fresh: func(t *testing.T, e *env, id string) {
			admin(t, e, "select lock.create_timeout($1, '1 hour')", id)
		},
		again: func(t *testing.T, e *env, id string) {
			admin(t, e, "update lock.timeout set ts = ts - interval '61 minutes' where task_id = $1", id)
		},
		mutate: func(t *testing.T, e *env) {
			mutate(t, e, "acquire_timeout", `case
                when lock_internal.utc(timeout.ts) + timeout.timeout < lock_internal.utc(right_now)
                then lock_internal.uncontended(timeout.task_id) or grabbed
              end`, "exists (select from lock.timeout as seen where seen.task_id = acquire_timeout.task_id and seen.ts + seen.timeout < right_now)")
		},
	}.run(t)
}

// The statements of the SQL page, in its order; its epoch of 2015 is long past.
func TestTimeoutSQLPage(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	for id, length := range map[string]string{"daily_task_a": "1 day", "daily_task_b": "1 day", "hourly_task_a": "1 hour"} {
		answers(s, true, "select lock.create_timeout($1, $2::text::interval)", id, length)
		admin(t, e, "update lock.timeout set ts = to_timestamp(1445412480) where task_id = $1", id)
	}
	answers(s, true, "select lock.acquire_timeout('hourly_task_a')")
	answers(s, false, "select lock.acquire_timeout('hourly_task_a')")
	answers(s, false, "select lock.acquire_timeout('hourly_task_a')")
	answers(s, true, "select lock.acquire_timeout('daily_task_a')")
	admin(t, e, "update lock.timeout set ts = ts - interval '1 hour'")
	answers(s, true, "select lock.acquire_timeout('hourly_task_a')")
	answers(s, false, "select lock.acquire_timeout('daily_task_a')")
	s.fails("P0002", "select lock.acquire_timeout('never made')")
}

func TestTimeoutTransactions(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.create_timeout('a', '1 hour')")
	answers(s, true, "select not locked and free_in = '0' and ts = '-infinity' and not clock_was_set_back from lock.timeout_status")
	s.exec("begin")
	answers(s, true, "select lock.acquire_timeout('a')")
	answers(s, false, "select lock.acquire_timeout('a')")
	s.exec("rollback")
	grantedAfterRollback(t, e, "select lock.acquire_timeout('a')")
	s.denied("select lock.acquire_timeout('a')")
	answers(s, true, "select locked and free_in between '59 minutes' and '1 hour' and free_at = ts + timeout from lock.timeout_status")
	admin(t, e, "update lock.timeout set ts = ts - interval '2 hours'")
	deniedAfterCommit(t, e, "select lock.acquire_timeout('a')")

	// The wait does not age the decision: it is made by the clock after it.
	admin(t, e, "update lock.timeout set ts = ts - interval '2 hours'")
	holder, waiter := e.session(t), e.session(t)
	holder.exec("begin")
	answers(holder, true, "select lock.acquire_timeout('a')")
	p, granted := startGet[bool](waiter, "select lock.acquire_timeout('a')")
	p.blocked()
	before := get[time.Time](s, "select clock_timestamp()")
	holder.exec("rollback")
	p.ends()
	if !*granted {
		t.Fatal("denied")
	}
	answers(s, true, "select ts > $1 from lock.timeout_status", before)
}

func TestTimeoutStaleSnapshot(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	for _, level := range levels[1:] {
		a, b := e.session(t), e.session(t)
		answers(a, true, "select lock.create_timeout($1, '1 hour')", level)
		b.exec("begin isolation level " + level + "; select 1")
		answers(a, true, "select lock.acquire_timeout($1)", level)
		b.fails("40001", "select lock.acquire_timeout($1)", level)
		b.exec("rollback")
		answers(b, false, "select lock.acquire_timeout($1)", level)
	}
}

func TestTimeoutBoundary(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	answers(e.session(t), true, "select lock.create_timeout('a', '300 microseconds')")
	const call, stored = "lock.acquire_timeout('a')", "select ts from lock.timeout"
	if gap := smallestGap(t, e, call, stored); gap != 301*time.Microsecond {
		t.Fatalf("the smallest gap is %v", gap)
	}
	mutate(t, e, "acquire_timeout", "< lock_internal.utc(right_now)", "<= lock_internal.utc(right_now)")
	if gap := smallestGap(t, e, call, stored); gap != 300*time.Microsecond {
		t.Fatalf("the checker does not catch <=: the smallest gap is %v", gap)
	}
}

func TestTimeoutZones(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.create_timeout('a', '1 day')")
	for _, forward := range []bool{true, false} {
		s.exec("select set_config('timezone', $1, false)", zoneAfterChange(s, forward))
		hours := map[bool]float64{true: 23, false: 25}[forward]
		answers(s, hours*3600, "select extract(epoch from ts + interval '1 day' - ts)::float8 from (select now() - interval '23.5 hours' as ts) as yesterday")
		for _, c := range []struct {
			ago  string
			want bool
		}{{"22:59:00", false}, {"23:59:00", false}, {"24:00:01", true}, {"24:59:00", true}} {
			admin(t, e, "update lock.timeout set ts = clock_timestamp() - $1::text::interval", c.ago)
			answers(s, !c.want, "select locked from lock.timeout_status")
			answers(s, c.want, "select lock.acquire_timeout('a')")
		}
	}
	// Months are calendar arithmetic, in UTC.
	answers(s, true, "select lock.create_timeout('m', '1 month')")
	s.exec("set timezone = 'Pacific/Kiritimati'")
	for from, to := range map[string]string{
		"2026-01-31 12:00+00": "2026-02-28 12:00+00", "2024-01-31 12:00+00": "2024-02-29 12:00+00", "2026-02-28 23:30+00": "2026-03-28 23:30+00",
	} {
		admin(t, e, "update lock.timeout set ts = $1::text::timestamptz where task_id = 'm'", from)
		answers(s, true, "select free_at = $1::text::timestamptz from lock.timeout_status where task_id = 'm'", to)
	}
}

func TestTimeoutClockSetBack(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.create_timeout('a', '1 hour')")
	ahead := func(by string) {
		admin(t, e, "update lock.timeout set ts = clock_timestamp() + $1::text::interval", by)
	}
	t.Run("by little: denied for that much longer", func(t *testing.T) {
		ahead("50 minutes")
		s.denied("select lock.acquire_timeout('a')")
		answers(s, true, "select clock_was_set_back and free_in > '1 hour 49 minutes' from lock.timeout_status")
	})
	for _, by := range []string{"2 hours", "10 years", "infinity"} {
		t.Run(by+": denied for one interval from the first denial", func(t *testing.T) {
			if by == "infinity" {
				admin(t, e, "update lock.timeout set ts = 'infinity'")
			} else {
				ahead(by)
			}
			before := get[time.Time](s, "select clock_timestamp()")
			answers(s, true, "select clock_was_set_back from lock.timeout_status")
			s.exec("begin")
			answers(s, false, "select lock.acquire_timeout('a')")
			s.exec("rollback")
			answers(s, true, "select clock_was_set_back from lock.timeout_status")
			answers(s, false, "select lock.acquire_timeout('a')")
			answers(s, true, "select ts between $1 and clock_timestamp() and not clock_was_set_back from lock.timeout_status", before)
			s.denied("select lock.acquire_timeout('a')")
			admin(t, e, "update lock.timeout set ts = ts - interval '1 hour'")
			answers(s, true, "select lock.acquire_timeout('a')")
		})
	}
}

func TestTimeoutCreate(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.create_timeout('a', '1 hour')")
	s.denied("select lock.create_timeout('a', '60 minutes')")
	answers(s, true, "select lock.acquire_timeout('a')")
	answers(s, false, "select lock.create_timeout('a', '30 days')")
	answers(s, false, "select lock.create_timeout('a', '1 month')")
	answers(s, "1 mon", "select timeout::text from lock.timeout_status")
	admin(t, e, "update lock.timeout set ts = now() - interval '2 hours'")
	answers(s, false, "select lock.acquire_timeout('a')")
	answers(s, false, "select lock.create_timeout('a', '1 hour')")
	answers(s, true, "select lock.acquire_timeout('a')")
	for _, bad := range []string{"0", "-1 second", "101 years", "1 month -28 days", "-1 month 30 days 1 hour"} {
		s.fails("22023", "select lock.create_timeout('b', $1::text::interval)", bad)
	}
	if target.number >= 170000 {
		s.fails("22023", "select lock.create_timeout('b', 'infinity')")
	}
	s.fails("22004", "select lock.create_timeout('b', null)")
	s.fails("22004", "select lock.create_timeout(null, '1 hour')")
	s.fails("22023", "select lock.create_timeout('', '1 hour')")
	s.fails("22004", "select lock.acquire_timeout(null)")
	s.fails("22023", "select lock.acquire_timeout('')")
	answers(s, true, "select lock.create_timeout('c', '100 years')")
	answers(s, true, "select lock.acquire_timeout('c')")
	answers(s, false, "select lock.acquire_timeout('c')")
	answers(s, 2, "select count(*)::integer from lock.timeout_status")
}

func TestTimeoutForcedRelease(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	answers(s, true, "select lock.create_timeout('a', '1 hour')")
	answers(owner, false, "select lock.force_release_timeout('a', 'why')")
	answers(s, true, "select lock.acquire_timeout('a')")
	answers(owner, true, "select lock.force_release_timeout('a', 'the report was wrong')")
	answers(s, true, "select lock.acquire_timeout('a')")
	answers(owner, "timeout a the report was wrong locks_owner 01:00:00", `
		select concat_ws(' ', kind, id, reason, released_by, previous ->> 'timeout') from lock.forced_release`)
	owner.fails("P0002", "select lock.force_release_timeout('b', 'why')")
	owner.fails("22023", "select lock.force_release_timeout('a', ' ')")
	s.fails("42501", "select lock.force_release_timeout('a', 'why')")
}

func TestTimeoutDropUnused(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	for i := range 25 {
		answers(s, true, "select lock.create_timeout($1, '1 hour')", fmt.Sprintf("short %d", i))
		answers(s, true, "select lock.create_timeout($1, '1 year')", fmt.Sprintf("long %d", i))
	}
	s.exec("select lock.acquire_timeout(task_id) from lock.timeout_status")
	answers(owner, int64(0), "select lock.drop_unused_timeouts('30 days')")
	admin(t, e, "update lock.timeout set ts = ts - interval '40 days', unused_since = unused_since - interval '40 days'")
	// What is wrong about unused_since does no harm: these are locked for most of a year yet.
	admin(t, e, "update lock.timeout set unused_since = '2000-01-01' where task_id like 'long%'")
	s.exec("begin")
	answers(s, true, "select lock.acquire_timeout('short 0')")
	answers(owner, int64(10), "select lock.drop_unused_timeouts('30 days', 10)")
	answers(owner, int64(14), "select lock.drop_unused_timeouts('30 days')")
	answers(owner, int64(0), "select lock.drop_unused_timeouts('30 days')")
	s.exec("commit")
	answers(owner, 26, "select count(*)::integer from lock.timeout")
	s.fails("P0002", "select lock.acquire_timeout('short 1')")
	answers(s, false, "select lock.acquire_timeout('long 1')")

	// One that is dropped while somebody acquires it is gone, whichever way they waited.
	admin(t, e, "update lock.timeout set ts = ts - interval '40 days', unused_since = unused_since - interval '40 days' where task_id = 'short 0'")
	owner.exec("begin")
	answers(owner, int64(1), "select lock.drop_unused_timeouts('30 days')")
	a, b := e.session(t), e.session(t)
	pa := a.start("select lock.acquire_timeout('short 0')").blocked()
	pb := b.start("select lock.acquire_timeout('short 0')").blocked()
	owner.exec("commit")
	wantCode(t, pa.wait(), "P0002", pa.sql)
	wantCode(t, pb.wait(), "P0002", pb.sql)
	answers(owner, 25, "select count(*)::integer from lock.timeout")
}

func TestTimeoutGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	q := db.New(e.pool)
	created, err := q.CreateTimeout(ctx, db.CreateTimeoutParams{TaskID: "a", Timeout: time.Hour})
	must(t, err)
	if !created {
		t.Fatal("not created")
	}
	status, err := q.GetTimeoutStatus(ctx, "a")
	must(t, err)
	if status.Locked || status.Ts.InfinityModifier != pgtype.NegativeInfinity || status.FreeIn != 0 {
		t.Fatalf("%+v", status)
	}
	timeout := locks.NewTimeout(e.pool)
	for _, want := range []bool{true, false} {
		got, err := timeout.Acquire(ctx, "a")
		must(t, err)
		if got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	status, err = q.GetTimeoutStatus(ctx, "a")
	must(t, err)
	if !status.Locked || status.FreeIn <= 0 || status.FreeIn > time.Hour {
		t.Fatalf("%+v", status)
	}
	_, err = timeout.Acquire(ctx, "never made")
	wantCode(t, err, "P0002", "unknown id")
}
