package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/calls"
)

// plainTask is what one writes without the package, for the same guarantee: a fenced capture that skips what others lock.
var plainTask = []string{
	"create table plain_task (like lock.task including defaults including constraints, primary key (queue_id, id))",
	"create index on plain_task (queue_id, status, available_at) where status <> 'in_progress' and retries_left is distinct from 0",
}

const (
	plainCapture = `update plain_task set status = 'in_progress', attempt = plain_task.attempt + 1,
			retries_left = plain_task.retries_left - 1, deadline = clock_timestamp() + timeout, changed_at = clock_timestamp()
		from (select queue_id, id from plain_task
			where queue_id = 'default' and status = 'new' and status <> 'in_progress' and retries_left is distinct from 0
			and available_at <= clock_timestamp()
			order by available_at limit $1 for update skip locked) as held
		where plain_task.queue_id = held.queue_id and plain_task.id = held.id
		returning plain_task.*`
	plainSettle = `update plain_task set status = 'done', available_at = clock_timestamp(), deadline = null, changed_at = clock_timestamp()
		from unnest($1::text[], $2::bigint[]) as settled (id, attempt)
		where plain_task.queue_id = 'default' and plain_task.id = settled.id and plain_task.attempt = settled.attempt
		and plain_task.status = 'in_progress'`
)

// A taskPair is one way to settle a batch and capture the next.
type taskPair func(ctx context.Context, conn *pgxpool.Conn, settle []db.Task, size int32) ([]db.Task, error)

func taskIDs(tasks []db.Task) (ids []string, attempts []int64, results []string, delays []time.Duration) {
	ids, attempts, results = []string{}, []int64{}, []string{}
	for _, task := range tasks {
		ids, attempts, results = append(ids, task.ID), append(attempts, task.Attempt), append(results, "done")
	}
	return ids, attempts, results, nil
}

func plainPair(ctx context.Context, conn *pgxpool.Conn, settle []db.Task, size int32) ([]db.Task, error) {
	if len(settle) > 0 {
		ids, attempts, _, _ := taskIDs(settle)
		if _, err := conn.Exec(ctx, plainSettle, ids, attempts); err != nil {
			return nil, err
		}
	}
	rows, err := conn.Query(ctx, plainCapture, size)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[db.Task])
}

func lockPair(ctx context.Context, conn *pgxpool.Conn, settle []db.Task, size int32) ([]db.Task, error) {
	q := db.New(conn)
	if len(settle) > 0 {
		ids, attempts, _, _ := taskIDs(settle)
		if _, err := q.SetStatuses(ctx, db.SetStatusesParams{IDs: ids, Attempts: attempts, Status: db.TaskDone, QueueID: "default"}); err != nil {
			return nil, err
		}
	}
	return q.Capture(ctx, db.CaptureParams{Max: size, QueueID: "default"})
}

// lockSteady hands over how far it has come, as locks.WorkTaskBatches does.
func lockSteady(ctx context.Context, conn *pgxpool.Conn, settle []db.Task, size int32) ([]db.Task, error) {
	ids, attempts, results, delays := taskIDs(settle)
	next := calls.SettleAndCaptureParams{
		IDs: ids, Attempts: attempts, Results: results, Delays: delays, Max: size, QueueID: "default", Statuses: []string{"new", "failed"},
		Shortest: time.Second, Longest: time.Hour, MaxTries: 25,
	}
	if len(settle) == int(size) {
		next.Since = &settle[size-1].AvailableAt
	}
	answer, err := calls.New(conn).SettleAndCapture(ctx, next)
	if err != nil || len(answer) > 0 || next.Since == nil {
		tasks := make([]db.Task, len(answer))
		for n, task := range answer {
			tasks[n] = db.Task(task)
		}
		return tasks, err
	}
	return lockSteady(ctx, conn, nil, size)
}

// drain lets all clients work a backlog off, and returns tasks per second while its part from one fraction to another was.
func drain(size int32, pair taskPair, from, to float64) func(ctx context.Context, url string, seconds int) (float64, error) {
	return func(ctx context.Context, url string, seconds int) (float64, error) {
		pool, err := open(ctx, url, *clients)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		began := time.Now()
		done := make([][]time.Duration, *clients)
		var group errgroup.Group
		for n := range *clients {
			group.Go(func() error {
				conn, err := pool.Acquire(ctx)
				if err != nil {
					return err
				}
				defer conn.Release()
				var batch []db.Task
				for {
					if batch, err = pair(ctx, conn, batch, size); err != nil || len(batch) == 0 {
						return err
					}
					now := time.Since(began)
					for range batch {
						done[n] = append(done[n], now)
					}
				}
			})
		}
		if err := group.Wait(); err != nil {
			return 0, err
		}
		all := slices.Sorted(func(yield func(time.Duration) bool) {
			for _, times := range done {
				for _, at := range times {
					if !yield(at) {
						return
					}
				}
			}
		})
		first, last := int(from*float64(len(all))), int(to*float64(len(all)))-1
		return float64(last-first) / (all[last] - all[first]).Seconds(), nil
	}
}

// taskWorker receives the tasks that are created.
func taskWorker(ctx context.Context, pool *pgxpool.Pool, started func()) error {
	return locks.WorkTasks(ctx, pool, "default", func(context.Context, db.Task) error { started(); return nil }, nil)
}

// notified receives notifications with nothing but LISTEN.
func notified(ctx context.Context, pool *pgxpool.Pool, started func()) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "listen ping"); err != nil {
		return err
	}
	for {
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			return err
		}
		started()
	}
}

func init() {
	backlog := func(table string, n int) string {
		return fmt.Sprintf(`truncate %[1]s; insert into %[1]s (id, available_at)
			select 'task ' || n, clock_timestamp() - interval '1 hour' + n * interval '1 microsecond' from generate_series(1, %[2]d) n`, table, n)
	}
	for _, c := range []struct {
		size    int32
		backlog int
	}{{100, 100000}, {10, 100000}, {1, 20000}} {
		comparisons = append(comparisons, comparison{kind: "task", name: fmt.Sprintf("%d no-op tasks in batches of %d", c.backlog, c.size), setup: plainTask, scripts: []script{
			{name: "plain update and update", before: backlog("plain_task", c.backlog), run: drain(c.size, plainPair, 0, 1)},
			{name: "lock.capture and lock.set_statuses", before: backlog("lock.task", c.backlog), run: drain(c.size, lockPair, 0, 1), atLeast: 0.8},
			{name: "lock.settle_and_capture", before: backlog("lock.task", c.backlog), run: drain(c.size, lockSteady, 0, 1), atLeast: 0.8},
		}})
	}
	comparisons = append(comparisons,
		comparison{kind: "task", name: "200,000 no-op tasks in batches of 10, under an old snapshot", setup: plainTask, hold: []string{
			"set transaction isolation level repeatable read", "select 1",
		}, scripts: []script{
			{name: "lock.settle_and_capture, the first fifth", before: backlog("lock.task", 200000), run: drain(10, lockSteady, 0, 0.2)},
			{name: "lock.settle_and_capture, the last fifth", before: backlog("lock.task", 200000), run: drain(10, lockSteady, 0.8, 1), atLeast: 0.77},
			{name: "plain update and update, the last fifth", before: backlog("plain_task", 200000), run: drain(10, plainPair, 0.8, 1)},
		}},
		comparison{kind: "task", name: "producers while all workers are busy", setup: []string{
			`do $$ begin
				execute replace(replace(pg_get_functiondef('lock.create_task'::regproc),
					'perform lock_internal.wake(''lock_task'', create_task.queue_id);', ''), 'create_task', 'quiet_create_task');
			end $$`,
		}, scripts: []script{
			{name: "lock.create_task without a notification", sql: "select lock.quiet_create_task(gen_random_uuid()::text);", before: "truncate lock.task"},
			{name: "lock.create_task", sql: "select lock.create_task(gen_random_uuid()::text);", before: "truncate lock.task", atLeast: 0.8},
			{name: "lock.create_task and notify", sql: "select lock.create_task(gen_random_uuid()::text), pg_notify('ping', 'default');", before: "truncate lock.task"},
		}},
		comparison{kind: "task", name: "from a task's creation to its start by an idle worker: 1/median", scripts: []script{
			{name: "notify to notification, nothing else", run: ping("notify ping", notified)},
			{name: "lock.create_task to WorkTasks", run: ping("select lock.create_task(gen_random_uuid()::text)", taskWorker)},
		}},
	)
}
