package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// settle counts the requests per second that workers settle, of a backlog that never ends.
func settle(workers int) func(ctx context.Context, url string, seconds int) (float64, error) {
	return func(ctx context.Context, url string, seconds int) (float64, error) {
		pool, err := open(ctx, url, workers+2)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		var settled atomic.Int64
		began := time.Now()
		inner, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
		err = work(inner, pool, workers, func(batch []db.Request) { settled.Add(int64(len(batch))) })
		return float64(settled.Load()) / time.Since(began).Seconds(), err
	}
}

// requestWorkers receive what is enqueued.
func requestWorkers(ctx context.Context, pool *pgxpool.Pool, started func()) error {
	return work(ctx, pool, 2, func([]db.Request) { started() })
}

// work runs workers until ctx ends.
func work(ctx context.Context, pool *pgxpool.Pool, workers int, handle func([]db.Request)) error {
	var wg sync.WaitGroup
	failures := make([]error, workers)
	for n := range workers {
		wg.Go(func() {
			err := locks.WorkRequests(ctx, pool, "default", func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
				handle(batch)
				return nil
			}, nil)
			if ctx.Err() == nil {
				failures[n] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(failures...)
}

// bulk counts the rows per second of an update of a whole table.
func bulk(ctx context.Context, url string, seconds int) (float64, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"truncate lock.request", "vacuum full orders", "vacuum analyze orders", "checkpoint"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	tag, err := conn.Exec(ctx, "update orders set status = 'sent', updated_at = clock_timestamp()")
	return float64(tag.RowsAffected()) / time.Since(began).Seconds(), err
}

func init() {
	orders := func(name string) string {
		return "create table " + name + ` (id bigint primary key, customer text not null, status text not null, amount numeric not null,
			note text, placed_at timestamptz not null default now(), updated_at timestamptz not null default now(), quantity integer default 1)`
	}
	fill := []string{
		"insert into orders select n, 'customer ' || n % 1000, 'new', n * 1.25, repeat('n', 40) from generate_series(1, 100000) n",
		"create index on orders (customer)", "create index on orders (updated_at)",
	}
	track := func(setup ...string) func(ctx context.Context, url string, seconds int) (float64, error) {
		return func(ctx context.Context, url string, seconds int) (float64, error) {
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return 0, err
			}
			defer conn.Close(ctx)
			for _, sql := range setup {
				if _, err := conn.Exec(ctx, sql); err != nil {
					return 0, err
				}
			}
			return bulk(ctx, url, seconds)
		}
	}
	backlog := func(entity string) string {
		return "truncate lock.request; insert into lock.request (request_type, entity_id, created_at) select 'update', " + entity +
			", clock_timestamp() from generate_series(1, 100000) n; analyze lock.request"
	}
	single, grouped := backlog("n::text"), backlog("(n % 2000)::text")
	comparisons = append(comparisons,
		comparison{kind: "request", name: "enqueue", setup: []string{"create table plain (id bigint generated always as identity primary key, entity_id text, payload jsonb)"}, scripts: []script{
			{name: "an insert into a plain table", sql: someKey + "insert into plain (entity_id) values (:key::text);"},
			{name: "lock.enqueue", sql: someKey + "select lock.enqueue('update', :key::text);", before: "truncate lock.request"},
			{name: "lock.enqueue, one entity", sql: "select lock.enqueue('update', 'e');", before: "truncate lock.request"},
		}},
		comparison{kind: "request", name: "settled requests, one a batch", scripts: []script{
			{name: "1 worker", before: single, run: settle(1)},
			{name: "4 workers", before: single, run: settle(4)},
			{name: "16 workers", before: single, run: settle(16)},
		}},
		comparison{kind: "request", name: "settled requests, 50 a batch", scripts: []script{
			{name: "1 worker", before: grouped, run: settle(1)},
			{name: "4 workers", before: grouped, run: settle(4)},
			{name: "16 workers", before: grouped, run: settle(16)},
		}},
		comparison{kind: "request", name: "enqueue to start of work, idle workers: 1/median", scripts: []script{
			{name: "2 idle workers", before: "truncate lock.request", run: ping("select lock.enqueue('update', 'e')", requestWorkers)},
		}},
		comparison{kind: "change", name: "update of 100,000 rows, rows a second", setup: append([]string{orders("orders")}, fill...), scripts: []script{
			{name: "not tracked", run: track("select lock.untrack_changes('orders')")},
			{name: "tracked by statement triggers", run: track("select lock.track_changes('orders', 'id')"), atLeast: 1 / 3.5},
		}},
		comparison{kind: "change", name: "the same, by the row trigger", engine: "row", setup: append([]string{orders("orders")}, fill...), scripts: []script{
			{name: "not tracked", run: track("select lock.untrack_changes('orders')")},
			{name: "tracked by the row trigger", run: track("select lock.track_changes('orders', 'id')")},
		}},
	)
}
