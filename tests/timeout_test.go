package tests

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

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

func TestTimeoutGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	q := db.New(e.pool)
	created, err := q.CreateTimeout(ctx, "a", time.Hour)
	must(t, err)
	if !created {
		t.Fatal("not created")
	}
	status, err := q.GetTimeoutStatus(ctx, "a")
	must(t, err)
	if status.Locked || status.Ts.InfinityModifier != pgtype.NegativeInfinity || status.FreeIn != 0 {
		t.Fatalf("%+v", status)
	}
	timeout := locks.NewIntervalTimeout(e.pool)
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
