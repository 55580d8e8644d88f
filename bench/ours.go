//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// What is measured of this package's Go side is called here and nowhere else.

func exclusive(ctx context.Context, pool *pgxpool.Pool, key int64) error {
	return locks.Exclusive(ctx, pool, key, func(pgx.Tx) error { return nil })
}

func shared(ctx context.Context, pool *pgxpool.Pool, key int64) error {
	return locks.Shared(ctx, pool, key, func(pgx.Tx) error { return nil })
}

func ourTasks() *queue {
	return &queue{
		id: "locks", name: "locks", database: "locks",
		lacks: "-",
		setup: func(ctx context.Context, l *lab) error {
			return l.exec(ctx, "locks", "create sequence task_number cache 100", quietCreateTask)
		},
		empty:    "truncate lock.task",
		fill:     "insert into lock.task (id, timeout) select 'task ' || nextval('task_number'), '5 minutes' from generate_series(1, $1::integer)",
		finished: "insert into lock.task (id, status, attempt) select 'task ' || nextval('task_number'), 'done', 1 from generate_series(1, $1::integer)",
		left:     "select exists (select from lock.task where status in ('new', 'in_progress'))",
		sizes:    "pg_total_relation_size('lock.task')",
		create: func(ctx context.Context, conn *pgx.Conn, sent int64) error {
			_, err := conn.Exec(ctx, "select lock.create_task('task ' || nextval('task_number'), timeout => '5 minutes', payload => $1)", payload(sent))
			return err
		},
		// In SQL, as those of the neighbours whose SQL is measured: with what a worker needs of a task.
		step: func(conn *pgx.Conn) step {
			const settleAndCapture = "select id, attempt, payload, available_at from lock.settle_and_capture($1, $2, $3, $4, since => $5)"
			type task struct {
				ID          string
				Attempt     int64
				Payload     []byte
				AvailableAt time.Time
			}
			ids, attempts, results := []string{}, []int64{}, []string{}
			var since *time.Time
			return func(ctx context.Context, size int) (int, error) {
				for {
					rows, _ := conn.Query(ctx, settleAndCapture, ids, attempts, results, size, since)
					tasks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[task])
					if err != nil {
						return 0, err
					}
					again := len(tasks) == 0 && since != nil
					ids, attempts, results, since = ids[:0], attempts[:0], results[:0], nil
					for _, task := range tasks {
						ids, attempts, results = append(ids, task.ID), append(attempts, task.Attempt), append(results, "done")
					}
					// As locks.WorkTasks does: from where the last full batch ended, else from the beginning.
					if len(tasks) == size {
						since = &tasks[size-1].AvailableAt
					}
					if !again {
						return len(tasks), nil
					}
				}
			}
		},
		work: func(ctx context.Context, l *lab, how workers, handle func(int64)) error {
			pool, err := l.pool(ctx, l.url("locks"), min(how.number, 8)+1) // One listens.
			if err != nil {
				return err
			}
			defer pool.Close()
			if !how.drain && how.batch > 1 {
				return locks.WorkTasks(ctx, pool, "default", func(_ context.Context, task db.Task) error {
					handle(sentAt(task.Payload))
					return nil
				}, &locks.TaskOptions{Concurrency: how.number * how.batch})
			}
			return loops(ctx, how.number, func(ctx context.Context) error {
				return locks.WorkTaskBatches(ctx, pool, "default", how.batch, func(_ context.Context, tasks []db.Task) []error {
					for _, task := range tasks {
						handle(sentAt(task.Payload))
					}
					return nil
				}, nil)
			})
		},
	}
}

// quietCreateTask makes a lock.create_task that wakes nobody, to see what waking costs.
const quietCreateTask = `
	do $$
	declare
		loud   text := replace(pg_get_functiondef('lock.create_task'::regproc), 'create_task', 'quiet_create_task');
		quiet  text := regexp_replace(loud, 'perform pg_notify\([^;]*\);', '');
	begin
		if quiet = loud then
			raise exception 'lock.create_task does not call pg_notify any more: take the wake-up out of it in another way';
		end if;
		execute quiet;
	end;
	$$`

func quietTasks() *queue {
	q := ourTasks()
	q.name, q.lacks, q.work = "locks, without its wake-up", "idle workers find new tasks late", nil
	q.create = func(ctx context.Context, conn *pgx.Conn, sent int64) error {
		_, err := conn.Exec(ctx, "select lock.quiet_create_task('task ' || nextval('task_number'), timeout => '5 minutes', payload => $1)", payload(sent))
		return err
	}
	return q
}

// endlessTasks have no timeout: the index of deadlines stays empty.
func endlessTasks() *queue {
	q := ourTasks()
	q.id, q.name = "endless", "locks, tasks without a timeout"
	q.lacks = "a dead worker's task stays in progress until somebody settles it"
	q.fill = "insert into lock.task (id) select 'task ' || nextval('task_number') from generate_series(1, $1::integer)"
	return q
}

// requests are settled by so many workers until ctx ends. Each calls first with its first batch's size, and handle with the others'.
func requests(ctx context.Context, pool *pgxpool.Pool, number int, first, handle func(n int)) error {
	return loops(ctx, number, func(ctx context.Context) error {
		then := first
		return locks.WorkRequests(ctx, pool, "default", func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
			then(len(batch))
			then = handle
			return nil
		}, nil)
	})
}

// fillRequests makes n requests, some of the same entity, behind others that are put back until later.
func (l *lab) fillRequests(ctx context.Context, n, each, delayed int) error {
	add := "insert into lock.request (request_type, entity_id, created_at, available_at) select 'update', "
	return l.exec(ctx, "locks", "truncate lock.request, lock.request_batch",
		fmt.Sprintf(add+"'later ' || n, clock_timestamp(), clock_timestamp() + interval '1 day' from generate_series(1, %d) n", delayed),
		fmt.Sprintf(add+"(n %% %d)::text, clock_timestamp(), null from generate_series(1, %d) n", max(1, n/each), n),
		"vacuum analyze", "checkpoint")
}

func payload(sent int64) string { return fmt.Sprintf(`{"sent": %d}`, sent) }

func sentAt(payload []byte) int64 {
	var message struct{ Sent int64 }
	json.Unmarshal(payload, &message)
	return message.Sent
}
