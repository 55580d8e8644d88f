//go:build linux

package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// plainTasks is the leanest table and statements that hand a task to one worker at a time. A batch is settled and the next one captured in
// one round trip and one commit, in this order: the other way round, and in one statement, two workers can deadlock.
func plainTasks() *queue {
	const (
		settle  = "update plain_task set status = 'done' where id = any ($1::bigint[])"
		capture = `
			update plain_task set status = 'in_progress'
			where id in (select id from plain_task where status = 'new' order by id limit $1 for update skip locked)
			returning id, payload`
	)
	type task struct {
		ID      int64
		Payload []byte
	}
	next := func(conn *pgx.Conn) func(ctx context.Context, size int) ([]task, error) {
		var ids []int64
		return func(ctx context.Context, size int) ([]task, error) {
			var tasks []task
			batch := &pgx.Batch{}
			if len(ids) > 0 {
				batch.Queue(settle, ids)
			}
			batch.Queue(capture, size).Query(func(rows pgx.Rows) (err error) {
				tasks, err = pgx.CollectRows(rows, pgx.RowToStructByPos[task])
				return err
			})
			err := conn.SendBatch(ctx, batch).Close()
			ids = ids[:0]
			for _, t := range tasks {
				ids = append(ids, t.ID)
			}
			return tasks, err
		}
	}
	return &queue{
		id: "plain", name: "plain SQL", database: "plain",
		lacks: "a dead worker's task stays in progress for ever; a stale worker's completion is not refused; no retries",
		setup: func(ctx context.Context, l *lab) error {
			return l.exec(ctx, "plain",
				"create table plain_task (id bigint generated always as identity primary key, status text not null default 'new', payload jsonb)",
				"create index on plain_task (id) where status = 'new'")
		},
		empty:    "truncate plain_task",
		fill:     "insert into plain_task (payload) select null from generate_series(1, $1::integer)",
		finished: "insert into plain_task (status) select 'done' from generate_series(1, $1::integer)",
		sizes:    "pg_total_relation_size('plain_task')",
		create: func(ctx context.Context, conn *pgx.Conn, sent int64) error {
			_, err := conn.Exec(ctx, "insert into plain_task (payload) values ($1)", payload(sent))
			return err
		},
		step: func(conn *pgx.Conn) step {
			next := next(conn)
			return func(ctx context.Context, size int) (int, error) {
				tasks, err := next(ctx, size)
				return len(tasks), err
			}
		},
		work: func(ctx context.Context, l *lab, how workers, handle func(int64)) error {
			return loops(ctx, how.number, func(ctx context.Context) error {
				conn, err := pgx.Connect(ctx, l.url("plain"))
				if err != nil {
					return err
				}
				defer conn.Close(context.WithoutCancel(ctx))
				if _, err := conn.Exec(ctx, "listen plain_task"); err != nil {
					return err
				}
				next := next(conn)
				for {
					tasks, err := next(ctx, how.batch)
					if err != nil {
						return err
					}
					for _, t := range tasks {
						handle(sentAt(t.Payload))
					}
					if len(tasks) == 0 {
						waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
						_, err := conn.WaitForNotification(waiting)
						cancel()
						if err != nil && (ctx.Err() != nil || !pgconn.Timeout(err)) {
							return err
						}
					}
				}
			})
		},
	}
}

// notifyingTasks is the same with a notification for every task.
func notifyingTasks() *queue {
	q := plainTasks()
	q.name = "plain SQL and NOTIFY"
	q.create = func(ctx context.Context, conn *pgx.Conn, sent int64) error {
		_, err := conn.Exec(ctx, "with added as (insert into plain_task (payload) values ($1) returning id) select pg_notify('plain_task', '') from added", payload(sent))
		return err
	}
	return q
}
