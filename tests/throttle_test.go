package tests

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

const throttled = "select lock.lock_throttled_resource('Expensive Cache Rebuild #1', '%s')"

// The page's two scenarios and its remark on rollback.
func TestThrottlePage(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, other := e.session(t), e.session(t)
	pass := func() {
		admin(t, e, "update lock.throttled_resource set last_locked = last_locked - interval '16 seconds' where last_locked > '-infinity'")
	}
	answers(s, true, "select lock.create_throttled_resource('Expensive Cache Rebuild #1', '15 seconds')")
	answers(s, true, "select last_locked = '-infinity' and last_locker_details = '' and not throttled and free_in = '0' from lock.throttled_resource_status")

	t.Run("serially", func(t *testing.T) {
		s.exec("begin")
		answers(s, true, fmt.Sprintf(throttled, "apphost 1 pid 1234"))
		s.exec("commit")
		other.denied(fmt.Sprintf(throttled, "apphost 1 pid 5435"))
		answers(s, "Expensive Cache Rebuild #1 00:00:15 apphost 1 pid 1234 t", `
			select concat_ws(' ', resource_id, throttle_interval, last_locker_details, last_locked between now() - interval '15 seconds' and now())
			from lock.throttled_resource_status`)
		answers(s, true, "select throttled and free_in between '0' and '15 seconds' and free_at = last_locked + interval '15 seconds' from lock.throttled_resource_status")
	})
	t.Run("concurrently", func(t *testing.T) {
		pass()
		holder := e.sessionAs(t, e.super)
		holder.exec("begin")
		answers(holder, true, fmt.Sprintf(throttled, "apphost 2 pid 543"))
		other.denied(fmt.Sprintf(throttled, "concurrent caller"))
		// The holder's transaction goes on for 120 seconds: what it stored ages, and the others are still denied at once.
		holder.exec("update lock.throttled_resource set last_locked = last_locked - interval '120 seconds'")
		other.denied(fmt.Sprintf(throttled, "concurrent caller"))
		answers(other, "apphost 1 pid 1234", "select last_locker_details from lock.throttled_resource_status")
		holder.exec("commit")
		// The interval counts from the grant, and is over by now.
		answers(other, "apphost 2 pid 543 t", "select concat_ws(' ', last_locker_details, free_in = '0') from lock.throttled_resource_status")
		answers(other, true, fmt.Sprintf(throttled, "120 seconds later"))
		other.denied(fmt.Sprintf(throttled, "right after that"))
	})
	t.Run("rolled back", func(t *testing.T) {
		pass()
		before := get[string](s, "select throttled_resource_status::text from lock.throttled_resource_status")
		s.exec("begin")
		answers(s, true, fmt.Sprintf(throttled, "half-hearted"))
		other.denied(fmt.Sprintf(throttled, "concurrent caller"))
		s.exec("rollback")
		answers(s, before, "select throttled_resource_status::text from lock.throttled_resource_status")
		answers(other, true, fmt.Sprintf(throttled, "the next"))
	})
	t.Run("an unknown resource", func(t *testing.T) {
		s.fails("P0002", "select lock.lock_throttled_resource('Expensive Cache Rebuild #2', 'apphost 1')")
	})
}

// The interval of a holder that commits late counts from the grant, not from the commit.
func TestThrottleLateCommit(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	holder, other := e.session(t), e.session(t)
	answers(other, true, "select lock.create_throttled_resource('Expensive Cache Rebuild #1', '1 millisecond')")
	holder.exec("begin")
	answers(holder, true, fmt.Sprintf(throttled, "holder"))
	before := get[time.Time](other, "select clock_timestamp()")
	eventually(t, "the interval passes", func() bool {
		other.denied(fmt.Sprintf(throttled, "other"))
		return get[bool](other, "select clock_timestamp() > $1::timestamptz + interval '1 millisecond'", before)
	})
	holder.exec("commit")
	answers(other, true, fmt.Sprintf(throttled, "other"))
}

func TestThrottleRefusesDetails(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	answers(s, true, "select lock.create_throttled_resource('a', '1 hour')")
	answers(s, true, "select lock.lock_throttled_resource('a', ' why ')")
	s.fails("22004", "select lock.lock_throttled_resource('a', null)")
	for _, details := range []string{"''", "'  '", `E' \t\n\x0b'`, "repeat('x', 1025)"} {
		s.fails("22023", "select lock.lock_throttled_resource('a', "+details+")")
	}
	owner.fails("23514", "insert into lock.throttled_resource (resource_id, throttle_interval) values ('b', '0')")
	owner.fails("23514", "insert into lock.throttled_resource (resource_id, throttle_interval, last_locked) values ('b', '1 hour', now())")
	owner.fails("23514", "insert into lock.throttled_resource (resource_id, throttle_interval, last_locker_details) values ('b', '1 hour', 'why')")
	answers(owner, 1, "select count(*)::integer from lock.throttled_resource")
}

func TestThrottleGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	q := db.New(e.pool)
	_, err := q.CreateThrottledResource(ctx, db.CreateThrottledResourceParams{ResourceID: "a", ThrottleInterval: time.Hour, Permits: 1})
	must(t, err)
	status, err := q.GetThrottledResourceStatus(ctx, "a")
	must(t, err)
	if status.Throttled || status.LastLocked.InfinityModifier != pgtype.NegativeInfinity {
		t.Fatalf("%+v", status)
	}
	throttle := locks.NewThrottle(e.pool, "host 1")
	for _, want := range []bool{true, false} {
		got, err := throttle.Acquire(ctx, "a")
		must(t, err)
		if got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	status, err = q.GetThrottledResourceStatus(ctx, "a")
	must(t, err)
	if !status.Throttled || status.LastLockerDetails != "host 1" || status.FreeIn <= 0 || status.FreeIn > time.Hour {
		t.Fatalf("%+v", status)
	}
	_, err = locks.NewThrottle(e.pool, "").Acquire(ctx, "a")
	wantCode(t, err, "22023", "no details")
}

// A throttle that makes its resource: on a pool and inside a transaction, once and not again, and a denial writes nothing.
func TestThrottleEvery(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	throttle := locks.NewThrottle(e.pool, "me").Every(time.Hour, 2)
	for _, want := range []bool{true, true, false} {
		if got, err := throttle.Acquire(ctx, "new"); err != nil || got != want {
			t.Fatalf("%v, %v, want %v", got, err, want)
		}
	}
	tx, err := e.pool.Begin(ctx)
	must(t, err)
	defer tx.Rollback(ctx)
	inside := locks.NewThrottle(tx, "me").Every(time.Hour, 2)
	for _, c := range []struct {
		id   string
		want bool
	}{{"new", false}, {"in a transaction", true}} {
		if got, err := inside.Acquire(ctx, c.id); err != nil || got != c.want {
			t.Fatalf("%s: %v, %v", c.id, got, err)
		}
		var wrote bool
		must(t, tx.QueryRow(ctx, "select pg_current_xact_id_if_assigned() is not null").Scan(&wrote))
		if wrote != c.want {
			t.Errorf("%s: wrote %v", c.id, wrote)
		}
	}
	must(t, tx.Rollback(ctx))
	// Another limit holds from then on, and counts what was granted before.
	if got, err := locks.NewThrottle(e.pool, "me").Every(time.Hour, 3).Acquire(ctx, "new"); err != nil || !got {
		t.Error(got, err)
	}
	if got, err := locks.NewThrottle(e.pool, "me").Acquire(ctx, "new"); err != nil || got {
		t.Error(got, err)
	}
	for _, bad := range []locks.Throttle{throttle.Every(0, 1), throttle.Every(-time.Hour, 1), throttle.Every(time.Hour, 0), throttle.Every(time.Hour, 101)} {
		_, err := bad.Acquire(ctx, "bad")
		wantCode(t, err, "22023", "bad limits")
	}
	_, err = locks.NewThrottle(e.pool, "me").Acquire(ctx, "bad")
	wantCode(t, err, "P0002", "never made")
}

// A resource of several permits: each grant takes one, an open transaction keeps nobody from the others, and the view says what is left.
func TestThrottlePermits(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, other, owner := e.session(t), e.session(t), e.sessionAs(t, e.owner)
	const status = `select concat_ws(' ', permits_left || '/' || permits, throttled, last_locker_details, free_in > '0', next_permit_at - last_locked) from lock.throttled_resource_status`
	ask := func(who string) string { return "select lock.lock_throttled_resource('a', '" + who + "')" }
	answers(s, true, "select lock.create_throttled_resource('a', '1 hour', 3)")
	answers(s, "3/3 f  f", status)
	s.denied("select lock.create_throttled_resource('a', '60 minutes', 3)")
	answers(s, true, ask("first"))
	answers(s, "2/3 f first f 01:00:00", status)
	s.exec("begin")
	answers(s, true, ask("open"))
	answers(other, "2/3 f first f 01:00:00", status)
	answers(other, true, ask("third"))
	other.denied(ask("fourth"))
	answers(other, "1/3 f third f", "select regexp_replace(("+status+"), ' [^ ]*$', '')")
	s.exec("rollback")
	answers(s, true, ask("again"))
	s.denied(ask("fourth"))
	answers(s, "0/3 t again t", "select regexp_replace(("+status+"), ' [^ ]*$', '')")
	answers(s, true, "select free_at = next_permit_at and free_in between '59 minutes' and '1 hour' from lock.throttled_resource_status")
	answers(s, "permit again", "select mode || ' ' || details from lock.activity where kind = 'throttle'")

	// The permit of the oldest grant is the one that becomes free.
	owner.exec("update lock.throttled_permit set last_locked = last_locked - interval '1 hour' where last_locker_details = 'first'")
	answers(s, "1/3", "select permits_left || '/' || permits from lock.throttled_resource_status")
	answers(s, true, ask("first again"))
	s.denied(ask("fourth"))

	// An operator takes all of it back, and waits for an open transaction that was granted it.
	owner.exec("update lock.throttled_permit set last_locked = last_locked - interval '2 hours'")
	answers(owner, false, "select lock.force_release_throttled_resource('a', 'free')")
	s.exec("begin")
	answers(s, true, ask("mistaken"))
	p := owner.start("select lock.force_release_throttled_resource('a', 'why')").blocked()
	s.exec("commit")
	p.ends()
	answers(owner, "3 mistaken", "select jsonb_array_length(previous -> 'throttled_permit') || ' ' || (jsonb_path_query_first(previous, '$.throttled_permit[*].last_locker_details ? (@ == \"mistaken\")') #>> '{}') from lock.forced_release")
	answers(s, "3/3 f  f", status)
	for i := range 3 {
		answers(s, true, ask(fmt.Sprint(i)))
	}
	s.denied(ask("fourth"))

	for permits, want := range map[string]string{"0": "22023", "-1": "22023", "101": "22023", "2147483647": "22023", "null": "22004"} {
		s.fails(want, "select lock.create_throttled_resource('a', '1 hour', "+permits+")")
		s.fails(want, "select lock.create_throttled_resource('b', '1 hour', "+permits+")")
	}
	answers(owner, 1, "select count(*)::integer from lock.throttled_resource")
	answers(owner, 3, "select count(*)::integer from lock.throttled_permit")
	answers(s, true, "select lock.create_throttled_resource('hundred', '100 years', 100)")
	answers(s, 100, "select count(*) filter (where lock.lock_throttled_resource('hundred', 'x'))::integer from generate_series(1, 101)")
}

// Of 64 callers at once exactly as many are granted as there are permits. A call that does not lock what it tests grants one twice.
func TestThrottleCrowd(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	crowd := e.crowd(t)
	for _, level := range levels {
		for round := range 3 {
			id := fmt.Sprintf("%s %d", level, round)
			admin(t, e, "select lock.create_throttled_resource($1, '1 hour', 10)", id)
			if won := crowd.race(t, level, "select lock.lock_throttled_resource($1, 'crowd')", id); won != 10 {
				t.Fatalf("%s: %d callers won", id, won)
			}
		}
	}
	// twoPermits lets two transactions ask at once for two permits, and counts the grants, with those of two callers afterwards.
	twoPermits := func(id string) (granted int) {
		const ask = "select lock.lock_throttled_resource($1, 'x')"
		a, b := e.session(t), e.session(t)
		answers(a, true, "select lock.create_throttled_resource($1, '1 hour', 2)", id)
		a.exec("begin")
		answers(a, true, ask, id)
		p, won := startGet[bool](b, ask, id)
		eventually(t, "the second one is answered, or waits", func() bool { return len(p.done) > 0 || e.waiting(t, b.pid) })
		a.exec("commit")
		p.ends()
		granted = 1
		for _, won := range []bool{*won, get[bool](a, ask, id), get[bool](a, ask, id)} {
			if won {
				granted++
			}
		}
		return granted
	}
	if n := twoPermits("two"); n != 2 {
		t.Fatalf("%d grants of 2 permits", n)
	}
	mutate(t, e, "lock_throttled_permit", "for no key update skip locked\n        )\n        returning", ")\n        returning")
	if n := twoPermits("mutated"); n != 3 {
		t.Fatalf("the checker does not catch a call that does not lock what it tests: %d grants", n)
	}
}

// Among any three grants of two permits there is more than the interval, to the microsecond.
func TestThrottlePermitsBoundary(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	s.exec("set synchronous_commit = off; create temp table at (at timestamptz)")
	answers(s, true, "select lock.create_throttled_resource('a', '300 microseconds', 2)")
	smallest := func() time.Duration {
		s.exec("truncate at")
		s.exec(`do $$
			begin
				for n in 1 .. 2000 loop
					loop
						exit when lock.lock_throttled_resource('a', 'x');
					end loop;
					insert into at select max(last_locked) from lock.throttled_permit;
					commit;
				end loop;
			end $$`)
		return get[time.Duration](s, "select min(at - before) from (select at, lag(at, 2) over (order by at) as before from at) as pair")
	}
	if gap := smallest(); gap <= 300*time.Microsecond {
		t.Fatalf("three grants within %v", gap)
	}
	// A clock that stands still meets the boundary itself.
	e.stopClock(t, "lock_throttled_permit")
	grantedAt := func(microseconds int) bool {
		admin(t, e, "update lock.throttled_permit set last_locked = '2020-01-01Z'")
		s.exec(fmt.Sprintf("set test.clock = '2020-01-01 00:00:00.%06dZ'", microseconds))
		return get[bool](s, "select lock.lock_throttled_resource('a', 'x')")
	}
	if grantedAt(300) || !grantedAt(301) {
		t.Error("the interval does not end after 300 microseconds")
	}
	mutate(t, e, "lock_throttled_permit", "if free then", "if true then")
	if grantedAt(300) {
		t.Error("the update does not ask again")
	}
	mutate(t, e, "lock_throttled_permit", "< lock_internal.utc(", "<= lock_internal.utc(")
	if !grantedAt(300) {
		t.Error("the checker does not catch a microsecond")
	}
}

// What happens to a window when interval and permits change.
func TestThrottleChanges(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	pass := func(by string) {
		owner.exec("update lock.throttled_resource set last_locked = last_locked - $1::text::interval, previously_locked = previously_locked - $1::text::interval", by)
		owner.exec("update lock.throttled_permit set last_locked = last_locked - $1::text::interval, previously_locked = previously_locked - $1::text::interval", by)
	}
	// free is how many are granted now; they are rolled back.
	free := func(want int) {
		t.Helper()
		left := get[int](s, "select permits_left from lock.throttled_resource_status")
		s.exec("begin")
		answers(s, want, "select count(*) filter (where lock.lock_throttled_resource('a', 'free'))::integer from generate_series(1, 110)")
		s.exec("rollback")
		if left != want {
			t.Fatalf("the view says %d are left, and %d are", left, want)
		}
	}
	change := func(interval string, permits int) {
		t.Helper()
		answers(s, false, "select lock.create_throttled_resource('a', $1::text::interval, $2)", interval, permits)
	}
	grant := func() {
		t.Helper()
		answers(s, true, "select lock.lock_throttled_resource('a', 'grant')")
	}
	answers(s, true, "select lock.create_throttled_resource('a', '1 hour')")
	grant()
	pass("2 hours")
	grant()
	free(0)
	change("1 hour", 5) // added alone: free at once
	free(4)
	change("1 day", 5) // the day has two grants, and the older one is as old as any that is forgotten can be
	free(0)
	pass("22 hours 1 minute")
	free(4)
	grant()
	grant()
	change("1 day", 1) // two of the day: the newest counts
	free(0)
	change("1 day", 100) // three are known to lie in the day, and what is forgotten is no newer than the second
	free(0)
	pass("23 hours 59 minutes")
	free(0)
	pass("2 minutes")
	free(100)
	answers(s, true, "select last_locker_details = 'grant' and not throttled from lock.throttled_resource_status")
	change("1 hour", 2)
	grant()
	answers(owner, true, "select lock.force_release_throttled_resource('a', 'test')")
	change("1 year", 3) // released by force: forgotten
	free(3)

	// A change waits for an open transaction, and keeps its grant.
	s.exec("begin")
	grant()
	p := e.session(t).start("select lock.create_throttled_resource('a', '1 year', 1)").blocked()
	s.exec("commit")
	p.ends()
	free(0)
}

// Whoever is about to lock a permit while interval or permits change is granted nothing by the rule before.
func TestThrottleChangesMeanwhile(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "a statement that meets a change starts again there")
	const gate = "(pg_advisory_xact_lock_shared(7) is not null) and "
	// meet stops a call at the gate, where its snapshot is older than the change, and returns how many were granted with two that follow.
	meet := func(t *testing.T, e *env, change string) (granted int) {
		t.Helper()
		keeper, caller, other := e.sessionAs(t, e.super), e.session(t), e.session(t)
		keeper.exec("begin; select pg_advisory_xact_lock(7)")
		p, won := startGet[bool](caller, "select lock.lock_throttled_resource('a', 'caller')")
		p.blocked()
		other.exec("select lock.create_throttled_resource('a', " + change + ")")
		keeper.exec("commit")
		p.ends()
		for _, won := range []bool{*won, get[bool](other, "select lock.lock_throttled_resource('a', 'x')"), get[bool](other, "select lock.lock_throttled_resource('a', 'x')")} {
			if won {
				granted++
			}
		}
		return granted
	}
	t.Run("one permit becomes two", func(t *testing.T) {
		for _, guard := range []bool{true, false} {
			e := open(t, advisory)
			e.session(t).exec("select lock.create_throttled_resource('a', '1 hour')")
			mutate(t, e, "lock_throttled_resource", "lock_internal.utc(ready.last_locked)", gate+"lock_internal.utc(ready.last_locked)")
			if !guard {
				mutate(t, e, "lock_throttled_resource", "and ready.permits = 1", "")
			}
			if n := meet(t, e, "'1 hour', 2"); n != map[bool]int{true: 2, false: 3}[guard] {
				t.Fatalf("guarded: %v, %d granted", guard, n)
			}
		}
	})
	t.Run("the interval grows", func(t *testing.T) {
		for _, guard := range []bool{true, false} {
			e := open(t, advisory)
			s := e.session(t)
			s.exec("select lock.create_throttled_resource('a', '1 microsecond', 2)")
			answers(s, 2, "select count(*) filter (where lock.lock_throttled_resource('a', 'x'))::integer from generate_series(1, 2)")
			mutate(t, e, "lock_throttled_permit", "lock_internal.utc(ready.last_locked)", gate+"lock_internal.utc(ready.last_locked)")
			if !guard { // the rows stay, and the interval is the snapshot's
				mutate(t, e, "create_throttled_resource",
					"delete from lock.throttled_permit\n", "update lock.throttled_permit set throttle_interval = create_throttled_resource.throttle_interval\n",
					"as counted;", "as counted on conflict do nothing;")
				mutate(t, e, "lock_throttled_permit", "ready.throttle_interval", "(select r.throttle_interval from lock.throttled_resource as r where r.resource_id = lock_throttled_permit.resource_id)")
			}
			if n := meet(t, e, "'1 hour', 2"); n != map[bool]int{true: 0, false: 1}[guard] {
				t.Fatalf("guarded: %v, %d granted", guard, n)
			}
		}
	})
}

// A resource of several permits is dropped when none was granted for long, and never while a transaction has one.
func TestThrottlePermitsDrop(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	const drop, lock = "select lock.drop_unused_throttled_resources('30 days')", "select lock.lock_throttled_resource('a', 'x')"
	age := func() {
		owner.exec("update lock.throttled_resource set unused_since = unused_since - interval '40 days'")
		owner.exec("update lock.throttled_permit set last_locked = last_locked - interval '40 days'")
	}
	s.exec("select lock.create_throttled_resource('a', '1 hour', 3), lock.create_throttled_resource('b', '1 hour', 3), lock.lock_throttled_resource('b', 'x')")
	age()
	answers(s, true, lock)
	answers(owner, true, "select unused_since > now() at time zone 'UTC' - interval '1 hour' from lock.throttled_resource where resource_id = 'a'")
	answers(owner, int64(1), drop)
	s.fails("P0002", "select lock.lock_throttled_resource('b', 'x')")
	owner.exec("update lock.throttled_resource set unused_since = unused_since - interval '40 days'") // as if that had not been stored
	answers(owner, int64(0), drop)
	age()
	s.exec("begin")
	answers(s, true, lock)
	answers(owner, int64(0), drop)
	mutate(t, e, "drop_unused_throttled_resources", "or throttled_resource.permits = idle.permits", "or true", "for update skip locked\n    );\n    with", "\n    );\n    with")
	owner.start(drop).blocked()
	s.exec("rollback")
}

// Permits whose grants lie in the future are taken; those far ahead are pulled back by the first denial, the only one that writes.
func TestThrottlePermitsClockSetBack(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	const ask = "select lock.lock_throttled_resource('a', 'x')"
	set := func(to string) {
		admin(t, e, "update lock.throttled_permit set last_locked = "+to+", previously_locked = "+to+" - interval '70 minutes'")
	}
	left := func(want int) {
		t.Helper()
		answers(s, want, "select permits_left from lock.throttled_resource_status")
	}
	answers(s, true, "select lock.create_throttled_resource('a', '1 hour', 2)")
	answers(s, true, ask)
	answers(s, true, ask)
	set("clock_timestamp() + interval '50 minutes'")
	s.denied(ask)
	answers(s, true, "select clock_was_set_back and free_in > '1 hour 49 minutes' from lock.throttled_resource_status")
	set("clock_timestamp() - interval '2 hours'")
	admin(t, e, "update lock.throttled_permit set last_locked = clock_timestamp() + interval '10 years' where permit = 1")
	left(1)
	answers(s, true, ask) // while another one is left, that one only counts as taken
	answers(s, true, "select clock_was_set_back from lock.throttled_resource_status")
	for _, ahead := range []string{"clock_timestamp() + interval '2 hours'", "clock_timestamp() + interval '10 years'", "'infinity'::timestamptz"} {
		set(ahead)
		before := get[time.Time](s, "select clock_timestamp()")
		answers(s, false, ask)
		answers(s, true, "select last_locked between $1 and clock_timestamp() and not clock_was_set_back and last_locker_details = 'x' from lock.throttled_resource_status", before)
		s.denied(ask)
		left(0)
		answers(s, false, "select lock.create_throttled_resource('a', '1 hour', 4)") // the grants before are not ahead any more either
		answers(s, false, "select clock_was_set_back from lock.throttled_resource_status")
		answers(s, false, "select lock.create_throttled_resource('a', '1 hour', 2)")
		admin(t, e, "update lock.throttled_permit set last_locked = last_locked - interval '1 hour'")
		left(2)
	}
}

// No call reads the whole table: how many pages it touches does not grow with the resources.
func TestThrottlePermitsPlans(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	s.exec("insert into lock.throttled_resource (resource_id, throttle_interval, permits) select 'id' || n, '1 hour', 100 from generate_series(1, 2000) n")
	s.exec(`insert into lock.throttled_permit (resource_id, permit, throttle_interval, last_locked, last_locker_details)
		select 'id' || n, permit, '1 hour', now() - permit * case when n <= 1000 then interval '1 second' else '1 minute' end, 'x'
		from generate_series(1, 2000) n, generate_series(1, 100) permit order by n, permit`)
	s.exec("vacuum analyze lock.throttled_resource, lock.throttled_permit")
	touched := func(id string, want bool) int {
		return least(func() int {
			s.exec("begin")
			defer s.exec("rollback")
			n, _ := buffersOnce(s, "select lock.lock_throttled_resource('"+id+"', 'x')")
			answers(s, want, "select count(*) = 1 from lock.throttled_permit where resource_id = $1 and last_locked > now()", id)
			return n
		})
	}
	granted, denied := touched("id1077", true), touched("id77", false)
	if granted > 60 || denied > 30 {
		t.Errorf("%d pages for a grant, %d for a denial", granted, denied)
	}
	s.exec("alter table lock.throttled_permit drop constraint throttled_permit_pkey")
	if n := touched("id77", false); n < 80 {
		t.Errorf("the checker does not see a missing index: %d pages", n)
	}
}

// No window of the interval in force has more grants than permits, in histories at random: with time that passes, transactions that
// stay open and roll back, intervals and permits that change, and a clock that is set back. In those without changes nobody is
// denied a permit that is left.
func TestThrottleHistories(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "clocks of nodes differ")
	const seeds, steps = 60, 150
	t.Run("none has too many", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		for seed := range uint64(seeds) {
			if wrong := play(t, e, seed, steps); wrong != "" {
				t.Errorf("seed %d, %s", seed, wrong)
			}
		}
	})
	for name, broken := range map[string][]string{
		"an interval a third too short": {"lock_throttled_permit", "permit.throttle_interval", "permit.throttle_interval * 0.7", "ready.throttle_interval", "ready.throttle_interval * 0.7"},
		"a permit too many":             {"create_throttled_resource", "generate_series(1, create_throttled_resource.permits)", "generate_series(1, create_throttled_resource.permits + 1)"},
		"older grants forgotten":        {"create_throttled_resource", "max(permit.previously_locked)", "null"},
		"previous grants not kept":      {"lock_throttled_permit", "previously_locked = throttled_permit.last_locked", "previously_locked = throttled_permit.previously_locked"},
		"the only one's previous":       {"lock_throttled_resource", "previously_locked = throttled_resource.last_locked", "previously_locked = throttled_resource.previously_locked"},
		"permits lost when lowered":     {"create_throttled_resource", "max(permit.last_locked) filter", "max('-infinity'::timestamptz) filter"},
		"the newest not kept":           {"create_throttled_resource", "gone.last_locked desc", "gone.last_locked"},
		"a permit left out":             {"lock_throttled_permit", "where ready.resource_id = lock_throttled_permit.resource_id", "where ready.permit > 1 and ready.resource_id = lock_throttled_permit.resource_id"},
	} {
		t.Run("the checker catches: "+name, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, broken[0], broken[1:]...)
			for seed := range uint64(seeds) {
				if wrong := play(t, e, seed, steps); wrong != "" {
					t.Logf("seed %d, %s", seed, wrong)
					return
				}
			}
			t.Fatal("not caught")
		})
	}
}

// A history is what happened to one resource. The database's clock is never moved: what it stored is. All times are in microseconds.
type history struct {
	s, held  *session
	id       string
	random   *rand.Rand
	calm     bool // nothing is changed, and the clock is not set back
	interval int64
	permits  int
	times    []int64 // of the grants, as far back from now as they really were
	asked    int
	open     int64 // the grant of the transaction that is open; 0: none is
	permit   int   // its permit
	owed     int64 // what that permit's stored times are yet to be moved by
}

// play runs a history, and returns what is wrong with it.
func play(t *testing.T, e *env, seed uint64, steps int) string {
	t.Helper()
	h := &history{s: e.sessionAs(t, e.super), held: e.sessionAs(t, e.super), id: fmt.Sprint("seed ", seed), random: rand.New(rand.NewPCG(seed, 0)), calm: seed%3 == 0}
	defer h.s.conn.Close(ctx)
	defer h.held.conn.Close(ctx)
	h.s.exec("set synchronous_commit = off")
	h.change()
	for step := range steps {
		if wrong := h.step(); wrong != "" {
			return fmt.Sprintf("step %d: %s", step, wrong)
		}
	}
	return ""
}

func (h *history) change() {
	if h.interval == 0 || h.random.IntN(2) == 0 {
		h.interval = []int64{60, 600, 3600, 86400}[h.random.IntN(4)] * 1_000_000
	}
	if h.permits == 0 || h.random.IntN(3) > 0 {
		h.permits = []int{1, 2, 3, 5, 8}[h.random.IntN(5)]
	}
	h.s.exec("select lock.create_throttled_resource($1, $2 * interval '1 microsecond', $3)", h.id, h.interval, h.permits)
}

// ask makes a call in a session, and returns the time of the grant, or 0, and its permit.
func (h *history) ask(s *session) (at int64, permit int) {
	h.asked++
	details := fmt.Sprint("call ", h.asked)
	if !get[bool](s, "select lock.lock_throttled_resource($1, $2)", h.id, details) {
		return 0, 0
	}
	err := s.conn.QueryRow(ctx, `
		select (extract(epoch from last_locked) * 1000000)::bigint, permit from lock.throttled_permit where resource_id = $1 and last_locker_details = $2
		union all
		select (extract(epoch from last_locked) * 1000000)::bigint, 1 from lock.throttled_resource where resource_id = $1 and last_locker_details = $2`,
		h.id, details).Scan(&at, &permit)
	must(h.s.t, err)
	return at, permit
}

// move adds to the stored times that the open transaction does not keep; permit 0 is every one.
func (h *history) move(by int64, permit int) {
	if h.open == 0 || h.permits > 1 {
		h.s.exec(`update lock.throttled_permit
			set last_locked = last_locked + $2 * interval '1 microsecond', previously_locked = previously_locked + $2 * interval '1 microsecond'
			where resource_id = $1 and permit <> $3 and ($4 = 0 or permit = $4)`, h.id, by, h.permit, permit)
	}
	if h.open == 0 && h.permits == 1 {
		h.s.exec(`update lock.throttled_resource
			set last_locked = last_locked + $2 * interval '1 microsecond', previously_locked = previously_locked + $2 * interval '1 microsecond'
			where resource_id = $1`, h.id, by)
	}
	if h.open != 0 {
		h.owed += by
	}
}

// granted adds a grant, and says which window has too many.
func (h *history) granted(at int64) string {
	h.times = append(h.times, at)
	for _, end := range h.times {
		if n := h.within(end); end >= at && n > h.permits {
			return fmt.Sprintf("%d grants within %v, of %d permits", n, time.Duration(h.interval)*time.Microsecond, h.permits)
		}
	}
	return ""
}

// within counts the grants of the window that ends at a time.
func (h *history) within(end int64) (n int) {
	for _, at := range h.times {
		if at <= end && at >= end-h.interval {
			n++
		}
	}
	return n
}

// step does something at random, and returns what is wrong with it.
func (h *history) step() string {
	switch what := h.random.IntN(20); {
	case what < 10:
		before := get[int64](h.s, "select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
		if at, _ := h.ask(h.s); at != 0 {
			return h.granted(at)
		}
		if n := h.within(before); h.calm && h.open == 0 && n < h.permits {
			return fmt.Sprintf("denied after %d grants, of %d permits", n, h.permits)
		}
	case what < 14: // time passes
		by := h.random.Int64N(h.interval)
		if h.random.IntN(3) > 0 {
			by /= int64(h.permits)
		}
		h.move(-by, 0)
		for i := range h.times {
			h.times[i] -= by
		}
		if h.open != 0 {
			h.open -= by
		}
	case what < 17 && h.open == 0: // a transaction is granted a permit
		h.held.exec("begin")
		if h.open, h.permit = h.ask(h.held); h.open == 0 {
			h.held.exec("commit")
		}
	case what < 17: // it ends
		at, permit, commits := h.open, h.permit, h.random.IntN(2) == 0
		h.held.exec(map[bool]string{true: "commit", false: "rollback"}[commits])
		h.open, h.permit = 0, 0
		h.move(h.owed, permit)
		h.owed = 0
		if commits {
			return h.granted(at)
		}
	case what < 19 && h.open == 0 && !h.calm:
		for range 1 + h.random.IntN(2) {
			h.change()
		}
	case what < 20 && h.open == 0 && !h.calm: // the clock is set back
		h.move([]int64{1, 30, 300, 7200}[h.random.IntN(4)]*1_000_000, 0)
	}
	return ""
}
