package tests

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// What the constructors of the four kinds that grant return repeats on a pool, and nowhere else; errors have one form.
func TestGrantsInGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	super := e.sessionAs(t, e.super)
	super.exec(`create sequence public.n; grant all on sequence public.n to public;
		create function public.stumble() returns void language plpgsql as $$ begin
			if nextval('public.n') % 4 <> 0 then raise exception 'again' using errcode = '40001'; end if;
		end $$;
		select lock.create_timeout(id, '1 hour'), lock.create_throttled_resource(id, '1 hour') from unnest('{pool, conn, tx}'::text[]) id`)
	for _, function := range []string{"acquire_mutex", "release_mutex", "acquire_timeout", "acquire_time_slot", "lock_throttled_resource"} {
		mutate(t, e, function, "\nbegin\n", "\nbegin\n    perform public.stumble();\n")
	}
	conn := e.session(t).conn
	type call func(ctx context.Context, id string) (bool, error)
	for _, c := range []struct {
		what string
		on   func(handle db.DBTX) call
	}{
		{"acquire mutex", func(handle db.DBTX) call { var m locks.Mutex = locks.NewMutex(handle, "me"); return m.Acquire }},
		{"release mutex", func(handle db.DBTX) call { var m locks.Mutex = locks.NewMutex(handle, "me"); return m.Release }},
		{"acquire timeout", func(handle db.DBTX) call { var o locks.Timeout = locks.NewTimeout(handle); return o.Acquire }},
		{"acquire time slot", func(handle db.DBTX) call {
			var o locks.Timeout = locks.NewTimeSlot(handle, 1000*24*time.Hour)
			return o.Acquire
		}},
		{"acquire throttle", func(handle db.DBTX) call { return locks.NewThrottle(handle, "me").Acquire }},
	} {
		super.exec("select setval('public.n', 4)")
		if got, err := c.on(e.pool)(ctx, "pool"); err != nil || !got {
			t.Errorf("%s on a pool: %v, %v", c.what, got, err)
		}
		answers(super, int64(8), "select last_value from public.n")
		refused := func(handle db.DBTX, id string) {
			t.Helper()
			got, err := c.on(handle)(ctx, id)
			if got || !locks.IsRetryable(err) || !strings.HasPrefix(err.Error(), "locks: "+c.what+` "`+id+`": `) {
				t.Errorf("%s: %v, %v", c.what, got, err)
			}
		}
		refused(conn, "conn")
		tx, err := e.pool.Begin(ctx)
		must(t, err)
		refused(tx, "tx")
		must(t, tx.Rollback(ctx))
		answers(super, int64(10), "select last_value from public.n")
	}
}

// Every closure says what it did, to which kind, and to what.
func TestErrorsInGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("begin")
	s.exec("select lock.shared(7)")
	_, err := db.New(e.pool).AcquireLease(ctx, db.AcquireLeaseParams{Name: "held", Owner: "me", Ttl: time.Hour, Permits: 1})
	must(t, err)
	oops := func(pgx.Tx) error { return context.Canceled }
	for want, err := range map[string]error{
		"locks: hold key 7: ":        locks.Shared(ctx, e.pool, 7, oops),
		`locks: hold key "a": `:      locks.Exclusive(ctx, e.pool, "a", oops),
		`locks: hold 2 keys: `:       locks.ExclusiveAll(ctx, e.pool, []string{"a", "b"}, oops),
		`locks: hold lease "held": `: locks.WithLease(ctx, e.pool, "held", time.Hour, func(context.Context, locks.Lease) error { return nil }, nil),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
