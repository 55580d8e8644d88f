package lockstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Expire ends all leases on a name as if their time had run out just now. Who waits for one is
// told; one that an open transaction has asserted cannot be taken over before that ends. The test
// fails when nobody has a lease on the name.
//
// The pool, here and below, is Pool's or another of the owner of schema lock.
func Expire(t testing.TB, pool *pgxpool.Pool, name string) {
	t.Helper()
	move(t, pool, fmt.Sprintf("there is no lease on %.60q", name), `
		with ended as (
			update lock.lease
			set expires_at = clock_timestamp()
			where lease.name = $1
			  and lease.expires_at > clock_timestamp()
			returning lease.name
		)
		select `+notify("'lock_lease', ended.name")+`
		from ended
		limit 1`, name)
}

// A Row is what Rewind moves: a Throttle, a Timeout, a TimeSlot or a Task.
type Row struct {
	what string // it is, for people
	sql  string // returns a row when there is one
	args []any
}

// Throttle is the throttled resource with an id.
func Throttle(id string) Row {
	return Row{fmt.Sprintf("throttled resource %.60q", id), `
		with permits as (
			update lock.throttled_permit
			set last_locked = last_locked - $1::interval,
				previously_locked = previously_locked - $1::interval
			where resource_id = $2
		)
		update lock.throttled_resource
		set last_locked = last_locked - $1::interval,
			previously_locked = previously_locked - $1::interval,
			unused_since = date_trunc('hour', unused_since - $1::interval)
		where resource_id = $2
		returning resource_id`, []any{id}}
}

// Timeout is the timeout of a task.
func Timeout(taskID string) Row {
	return Row{fmt.Sprintf("timeout %.60q", taskID), `
		update lock.timeout
		set ts = ts - $1::interval,
			unused_since = date_trunc('hour', unused_since - $1::interval)
		where task_id = $2
		returning task_id`, []any{taskID}}
}

// TimeSlot is the newest slot that a task was granted. It becomes the slot of a time that is so
// much earlier: rewound by less than its length, it may stay the same.
func TimeSlot(taskID string) Row {
	return Row{fmt.Sprintf("time slot %.60q", taskID), `
		update lock.time_slot
		set slot_start = case when isfinite(slot_start) then
				date_bin(resolution, case when granted_at >= slot_start
					and granted_at at time zone 'UTC' < slot_start at time zone 'UTC' + resolution
					then granted_at else slot_start end - $1::interval, 'epoch')
				else slot_start end,
			granted_at = granted_at - $1::interval,
			unused_since = date_trunc('hour', unused_since - $1::interval)
		where task_id = $2
		returning task_id`, []any{taskID}}
}

// RateLimit is the bucket of a rate limit.
func RateLimit(name string) Row {
	return Row{fmt.Sprintf("rate limit %.60q", name), `
		update lock.rate_limit
		set full_at = full_at - $1::interval,
			taken_at = taken_at - $1::interval,
			unused_since = date_trunc('hour', unused_since - $1::interval)
		where limit_id = $2
		returning limit_id`, []any{name}}
}

// Task is a task of a queue.
func Task(queueID, id string) Row {
	return Row{fmt.Sprintf("task %.60q in queue %.60q", id, queueID), `
		with earlier as (
			update lock.task
			set available_at = available_at - $1::interval,
				deadline = deadline - $1::interval,
				created_at = created_at - $1::interval,
				changed_at = changed_at - $1
			where id = $2
			  and queue_id = $3
			returning queue_id
		)
		select ` + notify("'lock_task', earlier.queue_id") + `
		from earlier`, []any{id, queueID}}
}

// Rewind moves every time that is stored in a row back by some time, as if that had passed since.
// What was denied for that long is granted, a task that was put off is due, and one that was
// captured has timed out; idle workers of its queue are told. The test fails when there is no such
// row, and when another transaction does not let go of it.
func Rewind(t testing.TB, pool *pgxpool.Pool, row Row, by time.Duration) {
	t.Helper()
	if by <= 0 {
		t.Fatalf("lockstest: rewind %s by %v: that is not back: give a positive duration", row.what, by)
	}
	move(t, pool, "there is no "+row.what, row.sql, append([]any{by}, row.args...)...)
}

// Kill ends a session of the pool's database, as a crash of its back end or a lost connection does,
// and returns when it is gone: its transaction is rolled back, and its locks are free. The process
// id of a connection is conn.PgConn().PID(), of a transaction tx.Conn().PgConn().PID(). The test
// fails when there is no such session.
func Kill(t testing.TB, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	move(t, pool, fmt.Sprintf("there is no other session %d in this database, or it did not end within %v", pid, patience), `
		with session as materialized (
			select pid
			from pg_stat_activity
			where pid = $1
			  and datname = current_database()
			  and pid <> pg_backend_pid()
		)
		select
		from session
		where pg_terminate_backend(pid, $2)`, pid, patience.Milliseconds())
}

// notify is an expression, because YugabyteDB may have no notifications.
func notify(args string) string {
	return "case when current_setting('yb_enable_listen_notify', true) is distinct from 'off' then pg_notify(" + args + ") end"
}

// move runs a statement that returns a row when it has found what it should change.
func move(t testing.TB, pool *pgxpool.Pool, none, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	found := false
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("set local lock_timeout = %d", patience.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		found = rows.Next()
		rows.Close()
		return rows.Err()
	})
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "55P03":
		t.Fatalf("lockstest: an open transaction does not let go of it, so end that first: %v", err)
	case errors.As(err, &pg) && pg.Code == "42501":
		t.Fatalf("lockstest: this is for the owner of schema lock, so hand over a pool of that role: %v", err)
	case err != nil:
		t.Fatalf("lockstest: %v", err)
	case !found:
		t.Fatalf("lockstest: %s", none)
	}
}
