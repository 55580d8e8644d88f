package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// The numbers of the Redis page: scores 401503 and 401504 for hours, 16729 and 16730 for days, and the slots of ten seconds.
func TestTimeSlotRedisPage(t *testing.T) {
	t.Parallel()
	s := open(t, advisory).session(t)
	const sql = "select lock.acquire_time_slot($1, make_interval(secs => $2), to_timestamp($3))"
	for id, length := range map[string]int{"hourly": 3600, "daily": 86400} {
		now := 1445412480
		answers(s, true, sql, id, length, now)
		answers(s, false, sql, id, length, now)
		answers(s, true, sql, id, length, now+length)
		answers(s, false, sql, id, length, now+length)
		answers(s, false, sql, id, length, now)
	}
	for _, c := range []struct {
		at   int
		want bool
	}{{0, true}, {10, true}, {20, true}, {30, true}, {40, true}, {50, true}, {60, true}, {75, true}, {79, false}, {80, true}, {75, false}} {
		answers(s, c.want, sql, "metric", 10, c.at)
	}
}

func TestTimeSlotBoundary(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	for _, zone := range []string{"UTC", "America/St_Johns", "Pacific/Kiritimati", zoneAfterChange(s, true), zoneAfterChange(s, false)} {
		s.exec("select set_config('timezone', $1, false)", zone)
		for _, c := range []struct{ resolution, at, start string }{
			{"1 hour", "2026-03-29 00:59:59.999999+00", "2026-03-29 00:00+00"},
			{"1 hour", "2026-03-29 01:00+00", "2026-03-29 01:00+00"},
			{"1 day", "2026-03-29 23:59:59.999999+00", "2026-03-29 00:00+00"},
			{"1 day", "2026-03-30 00:00+00", "2026-03-30 00:00+00"},
			{"24 hours", "2026-10-25 22:30+00", "2026-10-25 00:00+00"},
			{"7 days", "2026-01-01 00:00+00", "2026-01-01 00:00+00"},
			{"1 microsecond", "2026-01-01 00:00:00.000001+00", "2026-01-01 00:00:00.000001+00"},
			{"10 seconds", "1970-01-01 00:00+00", "1970-01-01 00:00+00"},
			{"10 seconds", "1969-12-31 23:59:59.999999+00", "1969-12-31 23:59:50+00"},
			{"10 seconds", "1969-12-31 23:59:50+00", "1969-12-31 23:59:50+00"},
			{"10 seconds", "1969-12-31 23:59:49.999999+00", "1969-12-31 23:59:40+00"},
			{"1 day", "1969-12-30 00:00+00", "1969-12-30 00:00+00"},
		} {
			id := fmt.Sprint(zone, c)
			answers(s, true, "select lock.acquire_time_slot($1, $2::text::interval, $3::text::timestamptz)", id, c.resolution, c.at)
			answers(s, true, "select slot_start = $2::text::timestamptz from lock.time_slot_status where task_id = $1", id, c.start)
			answers(s, true, "select slot_end = slot_start + make_interval(secs => extract(epoch from $2::text::interval)::float8) from lock.time_slot_status where task_id = $1", id, c.resolution)
			answers(s, false, "select lock.acquire_time_slot($1, $2::text::interval, $3::text::timestamptz)", id, c.resolution, c.start)
		}
	}
}

// The slot's start is kept and not its number, so another resolution neither grants a slot twice nor locks anything up.
func TestTimeSlotOtherResolution(t *testing.T) {
	t.Parallel()
	s := open(t, advisory).session(t)
	const sql = "select lock.acquire_time_slot('a', $1::text::interval, $2::text::timestamptz)"
	answers(s, true, sql, "1 hour", "2026-01-01 10:30+00")
	answers(s, false, sql, "1 day", "2026-01-01 23:00+00")
	answers(s, false, sql, "10 minutes", "2026-01-01 10:05+00")
	answers(s, true, sql, "10 minutes", "2026-01-01 10:15+00")
	answers(s, true, sql, "1 day", "2026-01-02 00:00+00")
	answers(s, true, sql, "1 second", "2026-01-02 00:00:01+00")
}

func TestTimeSlotNow(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.acquire_time_slot('a', '1000 days')")
	s.denied("select lock.acquire_time_slot('a', '1000 days')")
	answers(s, true, "select now() >= slot_start and now() < slot_end and free_in between '1 microsecond' and '1000 days' and granted_at between now() - interval '1 minute' and now() from lock.time_slot_status")

	// The clock was set back, or a producer was ahead: denied until then, and never a slot twice; or an operator forgets it.
	answers(s, true, "select lock.acquire_time_slot('a', '1 hour', now() + interval '10 years')")
	s.denied("select lock.acquire_time_slot('a', '1000 days')")
	answers(e.sessionAs(t, e.owner), true, "select lock.force_release_time_slot('a', 'sensor 7 is ahead')")
	answers(s, true, "select free_in = '0' from lock.time_slot_status")
	answers(s, true, "select lock.acquire_time_slot('a', '1000 days')")
}

func TestTimeSlotRefuses(t *testing.T) {
	t.Parallel()
	s := open(t, advisory).session(t)
	for _, bad := range []string{"0", "-1 second", "1 month", "1 year", "1 month -29 days", "1 year -12 months -1 day", "101 years"} {
		s.fails("22023", "select lock.acquire_time_slot('a', $1::text::interval)", bad)
	}
	s.fails("22004", "select lock.acquire_time_slot('a', null)")
	s.fails("22023", "select lock.acquire_time_slot('a', '1 hour', 'infinity')")
	s.fails("22023", "select lock.acquire_time_slot('a', '1 hour', '-infinity')")
	answers(s, true, "select lock.acquire_time_slot('a', '2000 days')")
	answers(s, 1, "select count(*)::integer from lock.time_slot_status")
}

// A data point that was old when it was sent keeps its slot in memory; what was forgotten is granted to a producer that is later than unused_for.
func TestTimeSlotDropUnused(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	answers(s, true, "select lock.acquire_time_slot('short', '1 hour')")
	answers(s, true, "select lock.acquire_time_slot('long', '10000 days')")
	admin(t, e, `update lock.time_slot set slot_start = slot_start - interval '40 days', granted_at = granted_at - interval '40 days',
		unused_since = unused_since - interval '40 days'`)
	answers(s, true, "select lock.acquire_time_slot('late', '1 hour', '2000-01-01')")
	answers(owner, int64(1), "select lock.drop_unused_time_slots('30 days')")
	answers(owner, int64(0), "select lock.drop_unused_time_slots('30 days')")
	answers(s, false, "select lock.acquire_time_slot('late', '1 hour', '2000-01-01')")
	// A slot that is not over, however old its start, is not granted twice.
	answers(s, false, "select lock.acquire_time_slot('long', '10000 days', slot_start) from lock.time_slot_status where task_id = 'long'")
	answers(s, true, "select lock.acquire_time_slot('short', '1 hour', now() - interval '40 days')")
}

func TestTimeSlotGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	slot := locks.NewTimeSlot(e.pool, 1000*24*time.Hour)
	for _, want := range []bool{true, false} {
		got, err := slot.Acquire(ctx, "a")
		must(t, err)
		if got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	q := db.New(e.pool)
	at := time.Date(1969, 12, 31, 23, 59, 50, 0, time.UTC)
	for _, want := range []bool{true, false} {
		got, err := q.AcquireTimeSlot(ctx, db.AcquireTimeSlotParams{TaskID: "b", Resolution: 10 * time.Second, At: at})
		must(t, err)
		if got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	status, err := q.GetTimeSlotStatus(ctx, "b")
	must(t, err)
	if !status.SlotStart.Time.Equal(at) || !status.SlotEnd.Time.Equal(at.Add(10*time.Second)) {
		t.Fatalf("%+v", status)
	}
	_, err = locks.NewTimeSlot(e.pool, time.Nanosecond).Acquire(ctx, "a")
	wantCode(t, err, "22023", "a nanosecond")
}
