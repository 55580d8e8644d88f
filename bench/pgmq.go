//go:build linux

package main

import (
	"cmp"
	"context"
	"os"

	"github.com/jackc/pgx/v5"
)

// pgmqTasks is a queue of pgmq, from the SQL file of its release. how it is settled: by delete or archive in one round trip and one commit
// with the next read, or by delete in a call of its own.
func pgmqTasks(path, how string) *queue {
	settle := "select pgmq.delete('tasks', $1::bigint[])"
	q := &queue{
		id: "pgmq " + how, name: "pgmq, read and " + how, database: "pgmq_" + how,
		lacks:    "a stale worker's completion is not refused; nobody is woken; no history",
		empty:    "truncate pgmq.q_tasks, pgmq.a_tasks",
		fill:     "select count(*) from pgmq.send_batch('tasks', array(select '{}'::jsonb from generate_series(1, $1::integer)))",
		finished: "insert into pgmq.a_tasks (msg_id, enqueued_at, vt, message) select least((select min(msg_id) from pgmq.a_tasks), 0) - n, now(), now(), '{}' from generate_series(1, $1::integer) n",
		sizes:    "pg_total_relation_size('pgmq.q_tasks') + pg_total_relation_size('pgmq.a_tasks')",
	}
	switch how {
	case "archive":
		settle = "select pgmq.archive('tasks', $1::bigint[])"
		q.lacks = "a stale worker's completion is not refused; nobody is woken"
	case "two calls":
		q.name, q.database = "pgmq, read and delete in two calls", "pgmq_calls"
	}
	q.setup = func(ctx context.Context, l *lab) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		l.result.Versions["pgmq"] = cmp.Or(os.Getenv("PGMQ_VERSION"), "(PGMQ_VERSION does not say)")
		conn, err := pgx.Connect(ctx, l.url(q.database))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, string(text), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "select pgmq.create('tasks')")
		return err
	}
	q.create = func(ctx context.Context, conn *pgx.Conn, sent int64) error {
		_, err := conn.Exec(ctx, "select pgmq.send('tasks', $1::jsonb)", payload(sent))
		return err
	}
	const read = "select msg_id, message from pgmq.read('tasks', 300, $1)"
	type message struct {
		ID   int64
		Text []byte
	}
	next := func(conn *pgx.Conn) func(ctx context.Context, read string, size int) ([]message, error) {
		var ids []int64
		return func(ctx context.Context, read string, size int) ([]message, error) {
			var messages []message
			keep := func(rows pgx.Rows) (err error) {
				messages, err = pgx.CollectRows(rows, pgx.RowToStructByPos[message])
				return err
			}
			batch := &pgx.Batch{}
			if len(ids) > 0 {
				if how == "two calls" {
					if _, err := conn.Exec(ctx, settle, ids); err != nil {
						return nil, err
					}
				} else {
					batch.Queue(settle, ids)
				}
			}
			batch.Queue(read, size).Query(keep)
			if err := conn.SendBatch(ctx, batch).Close(); err != nil {
				return nil, err
			}
			ids = ids[:0]
			for _, m := range messages {
				ids = append(ids, m.ID)
			}
			return messages, nil
		}
	}
	q.step = func(conn *pgx.Conn) step {
		next := next(conn)
		return func(ctx context.Context, size int) (int, error) {
			messages, err := next(ctx, read, size)
			return len(messages), err
		}
	}
	q.work = func(ctx context.Context, l *lab, workers workers, handle func(int64)) error {
		return loops(ctx, workers.number, func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, l.url(q.database))
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			next, sql := next(conn), read
			for {
				messages, err := next(ctx, sql, workers.batch)
				if err != nil {
					return err
				}
				for _, m := range messages {
					handle(sentAt(m.Text))
				}
				// Its own way to wait: the server polls for up to 5 seconds, every 100 ms. What was read is deleted before.
				sql = read
				if len(messages) == 0 {
					sql = "select msg_id, message from pgmq.read_with_poll('tasks', 300, $1, 5, 100)"
				}
			}
		})
	}
	return q
}
