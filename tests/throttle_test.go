package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

const throttled = "select lock.lock_throttled_resource('Expensive Cache Rebuild #1', '%s')"

func TestThrottleWinner(t *testing.T) {
	contest{
		sql: "select lock.lock_throttled_resource($1, 'round ' || $2::integer)",
		fresh: func(t *testing.T, e *env, id string) {
			admin(t, e, "select lock.create_throttled_resource($1, '1 hour')", id)
		},
		again: func(t *testing.T, e *env, id string) {
			admin(t, e, "update lock.throttled_resource set last_locked = last_locked - interval '61 minutes' where resource_id = $1", id)
		},
		mutate: func(t *testing.T, e *env) {
			mutate(t, e, "lock_throttled_resource", "for no key update skip locked", "")
		},
	}.run(t)
}

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

func TestThrottleStaleSnapshot(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	for _, level := range levels[1:] {
		a, b := e.session(t), e.session(t)
		answers(a, true, "select lock.create_throttled_resource($1, '1 hour')", level)
		b.exec("begin isolation level " + level + "; select 1")
		answers(a, true, "select lock.lock_throttled_resource($1, 'a')", level)
		b.fails("40001", "select lock.lock_throttled_resource($1, 'b')", level)
		b.exec("rollback")
		answers(b, false, "select lock.lock_throttled_resource($1, 'b')", level)
	}
}

func TestThrottleBoundary(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	answers(e.session(t), true, "select lock.create_throttled_resource('a', '300 microseconds')")
	const call, stored = "lock.lock_throttled_resource('a', 'spin')", "select last_locked from lock.throttled_resource"
	if gap := smallestGap(t, e, call, stored); gap != 301*time.Microsecond {
		t.Fatalf("the smallest gap is %v", gap)
	}
	mutate(t, e, "lock_throttled_resource", "< lock_internal.utc(right_now)", "<= lock_internal.utc(right_now)")
	if gap := smallestGap(t, e, call, stored); gap != 300*time.Microsecond {
		t.Fatalf("the checker does not catch <=: the smallest gap is %v", gap)
	}
}

func TestThrottleTime(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.create_throttled_resource('Expensive Cache Rebuild #1', '1 day')")
	locked := func(ago string) {
		admin(t, e, "update lock.throttled_resource set last_locked = clock_timestamp() - $1::text::interval, last_locker_details = 'test'", ago)
	}
	for _, forward := range []bool{true, false} {
		s.exec("select set_config('timezone', $1, false)", zoneAfterChange(s, forward))
		for ago, want := range map[string]bool{"22:59:00": false, "23:59:00": false, "24:00:01": true, "24:59:00": true} {
			locked(ago)
			answers(s, want, fmt.Sprintf(throttled, "zones"))
		}
	}
	locked("-23:00:00")
	s.denied(fmt.Sprintf(throttled, "the clock was set back a little"))
	locked("-20 years")
	answers(s, true, "select clock_was_set_back from lock.throttled_resource_status")
	answers(s, false, fmt.Sprintf(throttled, "the clock was set back"))
	answers(s, true, "select not clock_was_set_back and last_locker_details = 'test' and free_in between '23 hours' and '24 hours' from lock.throttled_resource_status")
	s.denied(fmt.Sprintf(throttled, "within the interval"))
	admin(t, e, "update lock.throttled_resource set last_locked = last_locked - interval '24 hours'")
	answers(s, true, fmt.Sprintf(throttled, "after one interval"))
}

func TestThrottleRefuses(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	answers(s, true, "select lock.create_throttled_resource('a', '1 hour')")
	s.denied("select lock.create_throttled_resource('a', '60 minutes')")
	answers(s, true, "select lock.lock_throttled_resource('a', ' why ')")
	answers(s, false, "select lock.create_throttled_resource('a', '1 month')")
	answers(s, "1 mon", "select throttle_interval::text from lock.throttled_resource_status")
	for _, bad := range []string{"0", "-1 second", "101 years", "1 month -28 days"} {
		s.fails("22023", "select lock.create_throttled_resource('b', $1::text::interval)", bad)
	}
	s.fails("22004", "select lock.create_throttled_resource('b', null)")
	s.fails("22023", "select lock.create_throttled_resource('b', '-10000 years')")
	s.fails("22023", "select lock.create_throttled_resource('b', '10000 years')")
	s.fails("22023", "select lock.create_throttled_resource('', '1 hour')")
	s.fails("22004", "select lock.lock_throttled_resource(null, 'why')")
	s.fails("22023", "select lock.lock_throttled_resource('', 'why')")
	s.fails("22004", "select lock.lock_throttled_resource('a', null)")
	for _, details := range []string{"''", "'  '", `E' \t\n\x0b'`, "repeat('x', 1025)"} {
		s.fails("22023", "select lock.lock_throttled_resource('a', "+details+")")
	}
	owner.fails("23514", "insert into lock.throttled_resource (resource_id, throttle_interval) values ('b', '0')")
	owner.fails("23514", "insert into lock.throttled_resource (resource_id, throttle_interval, last_locked) values ('b', '1 hour', now())")
	owner.fails("23514", "insert into lock.throttled_resource (resource_id, throttle_interval, last_locker_details) values ('b', '1 hour', 'why')")
	s.fails("42501", "select lock.force_release_throttled_resource('a', 'why')")
	s.fails("42501", "select lock.drop_unused_throttled_resources('1 day')")
	answers(owner, 1, "select count(*)::integer from lock.throttled_resource")
}

func TestThrottleForcedRelease(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	answers(s, true, "select lock.create_throttled_resource('a', '1 hour')")
	answers(owner, false, "select lock.force_release_throttled_resource('a', 'why')")
	answers(s, true, "select lock.lock_throttled_resource('a', 'host 1')")
	answers(owner, true, "select lock.force_release_throttled_resource('a', 'the cache is wrong')")
	answers(s, true, "select lock.lock_throttled_resource('a', 'host 2')")
	answers(owner, "throttle a the cache is wrong locks_owner host 1", `
		select concat_ws(' ', kind, id, reason, released_by, previous ->> 'last_locker_details') from lock.forced_release`)
	owner.fails("P0002", "select lock.force_release_throttled_resource('b', 'why')")
}

func TestThrottleDropUnused(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	for i := range 25 {
		answers(s, true, "select lock.create_throttled_resource($1, '1 hour')", fmt.Sprintf("short %d", i))
		answers(s, true, "select lock.create_throttled_resource($1, '1 year')", fmt.Sprintf("long %d", i))
	}
	s.exec("select lock.lock_throttled_resource(resource_id, 'test') from lock.throttled_resource_status")
	answers(owner, int64(0), "select lock.drop_unused_throttled_resources('30 days')")
	admin(t, e, "update lock.throttled_resource set last_locked = last_locked - interval '40 days', unused_since = unused_since - interval '40 days'")
	s.exec("begin")
	answers(s, true, "select lock.lock_throttled_resource('short 0', 'test')")
	answers(owner, int64(10), "select lock.drop_unused_throttled_resources('30 days', 10)")
	answers(owner, int64(14), "select lock.drop_unused_throttled_resources('30 days')")
	answers(owner, int64(0), "select lock.drop_unused_throttled_resources('30 days')")
	s.exec("commit")
	answers(owner, 26, "select count(*)::integer from lock.throttled_resource")
	s.fails("P0002", "select lock.lock_throttled_resource('short 1', 'test')")
	answers(s, false, "select lock.lock_throttled_resource('long 1', 'test')")

	// One that is being dropped is denied at once, and unknown once it is gone.
	admin(t, e, "update lock.throttled_resource set last_locked = last_locked - interval '40 days', unused_since = unused_since - interval '40 days' where resource_id = 'short 0'")
	owner.exec("begin")
	answers(owner, int64(1), "select lock.drop_unused_throttled_resources('30 days')")
	s.denied("select lock.lock_throttled_resource('short 0', 'test')")
	owner.exec("commit")
	s.fails("P0002", "select lock.lock_throttled_resource('short 0', 'test')")
}

func TestThrottleGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	q := db.New(e.pool)
	_, err := q.CreateThrottledResource(ctx, db.CreateThrottledResourceParams{ResourceID: "a", ThrottleInterval: time.Hour})
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
