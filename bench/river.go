//go:build linux

package main

import (
	"context"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type noop struct {
	Sent int64 `json:"sent"`
}

func (noop) Kind() string { return "noop" }

type noopWorker struct {
	river.WorkerDefaults[noop]
	handle func(int64)
}

func (w *noopWorker) Work(_ context.Context, job *river.Job[noop]) error {
	w.handle(job.Args.Sent)
	return nil
}

var silent = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError}))

// riverTasks is River: its own fetcher and its own batches of completions.
func riverTasks() *queue {
	return &queue{
		id: "river", name: "River", database: "river",
		lacks: "a dead worker's job comes again after an hour; a stale worker's completion counts while the job is tried again; completions that are in a batch are lost by a crash",
		setup: func(ctx context.Context, l *lab) error {
			l.result.Versions["River"] = moduleVersion("github.com/riverqueue/river")
			pool, err := l.pool(ctx, l.url("river"), 1)
			if err != nil {
				return err
			}
			defer pool.Close()
			migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: silent})
			if err != nil {
				return err
			}
			_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
			return err
		},
		empty: "truncate river_job",
		fill:  "insert into river_job (args, kind, max_attempts) select '{}', 'noop', 25 from generate_series(1, $1::integer)",
		left:  "select exists (select from river_job where state in ('available', 'running'))",
		sizes: "pg_total_relation_size('river_job')",
		create: func(ctx context.Context, conn *pgx.Conn, sent int64) error {
			client, err := inserter()
			if err != nil {
				return err
			}
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := client.InsertTx(ctx, tx, noop{Sent: sent}, nil)
				return err
			})
		},
		work: func(ctx context.Context, l *lab, how workers, handle func(int64)) error {
			pool, err := l.pool(ctx, l.url("river"), 8)
			if err != nil {
				return err
			}
			defer pool.Close()
			config := &river.Config{
				Logger: silent, Workers: river.NewWorkers(), FetchCooldown: 2 * time.Millisecond, JobTimeout: -1,
				Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: how.number * how.batch}},
			}
			if how.drain {
				config.FetchPollInterval = 20 * time.Millisecond
				config.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: river.QueueNumWorkersMax}
			}
			river.AddWorker(config.Workers, &noopWorker{handle: handle})
			client, err := river.NewClient(riverpgxv5.New(pool), config)
			if err != nil {
				return err
			}
			if err := client.Start(context.WithoutCancel(ctx)); err != nil {
				return err
			}
			<-ctx.Done()
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			return client.Stop(stopping)
		},
	}
}

// inserter is a client that only inserts; as with the workers, its notifications are at least 2 ms apart.
var inserter = sync.OnceValues(func() (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(nil), &river.Config{Logger: silent, FetchCooldown: 2 * time.Millisecond})
})

// moduleVersion is the version of a module that this program was built with.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == path {
				return module.Version
			}
		}
	}
	return "unknown"
}
