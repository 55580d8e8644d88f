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
