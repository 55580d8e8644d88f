package lockstest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/lockstest"
)

// An importer gets the prices of suppliers, each of which is a task. One importer works at a time.
// A supplier that does not answer is asked again an hour later.
type importer struct {
	pool *pgxpool.Pool
	get  func(supplier string, tx pgx.Tx) error // the prices, into their table
}

// run imports what is due. It returns locks.ErrLeaseHeld when another importer is at work.
func (i importer) run(ctx context.Context) error {
	return locks.WithLease(ctx, i.pool, "importer", time.Minute, func(ctx context.Context, lease locks.Lease) error {
		queries := db.New(i.pool)
		suppliers, err := queries.Capture(ctx, db.CaptureParams{Max: 100, QueueID: "suppliers", Statuses: []string{"new"}})
		for _, supplier := range suppliers {
			settled := db.SetStatusParams{ID: supplier.ID, QueueID: supplier.QueueID, Attempt: &supplier.Attempt, Status: db.TaskDone}
			failed := pgx.BeginFunc(ctx, i.pool, func(tx pgx.Tx) error {
				if err := lease.Assert(ctx, tx); err != nil {
					return err
				}
				return i.get(supplier.ID, tx)
			})
			if failed != nil {
				settled.Status, settled.Delay = db.TaskNew, time.Hour
			}
			_, settleErr := queries.SetStatus(ctx, settled)
			err = errors.Join(err, failed, settleErr)
		}
		return err
	}, nil)
}

func TestImporter(t *testing.T) {
	t.Parallel()
	ctx, away := t.Context(), errors.New("the supplier is away")

	// A world with one supplier, whose price is 42.
	world := func(t *testing.T) (*pgxpool.Pool, importer) {
		t.Parallel()
		pool := lockstest.Pool(t)
		if _, err := pool.Exec(ctx, "create table price (supplier text, price integer)"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.New(pool).CreateTask(ctx, db.CreateTaskParams{ID: "acme", QueueID: "suppliers"}); err != nil {
			t.Fatal(err)
		}
		return pool, importer{pool, func(supplier string, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into price values ($1, 42)", supplier)
			return err
		}}
	}
	prices := func(t *testing.T, pool *pgxpool.Pool) (n int) {
		t.Helper()
		if err := pool.QueryRow(ctx, "select count(*) from price").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	t.Run("asks a supplier again an hour after it was away", func(t *testing.T) {
		pool, acme := world(t)
		unlucky := importer{pool, func(string, pgx.Tx) error { return away }}
		if err := unlucky.run(ctx); !errors.Is(err, away) {
			t.Fatalf("the first run: %v", err)
		}
		if err := acme.run(ctx); err != nil || prices(t, pool) != 0 {
			t.Fatalf("asked again at once: %v", err)
		}

		lockstest.Rewind(t, pool, lockstest.Task("suppliers", "acme"), time.Hour)

		if err := acme.run(ctx); err != nil || prices(t, pool) != 1 {
			t.Fatalf("not asked an hour later: %v", err)
		}
	})

	t.Run("takes over from an importer that has died", func(t *testing.T) {
		pool, acme := world(t)
		dead := db.AcquireLeaseParams{Name: "importer", Owner: "the dead one", TTL: time.Minute, Permits: 1}
		if _, err := db.New(pool).AcquireLease(ctx, dead); err != nil {
			t.Fatal(err)
		}
		if err := acme.run(ctx); !errors.Is(err, locks.ErrLeaseHeld) {
			t.Fatalf("two importers at once: %v", err)
		}

		lockstest.Expire(t, pool, "importer")

		if err := acme.run(ctx); err != nil || prices(t, pool) != 1 {
			t.Fatalf("no importer took over: %v", err)
		}
	})

	t.Run("keeps nothing of an import whose connection was lost", func(t *testing.T) {
		pool, acme := world(t)
		cut := importer{pool, func(supplier string, tx pgx.Tx) error {
			err := acme.get(supplier, tx)
			lockstest.Kill(t, pool, tx.Conn().PgConn().PID())
			return err
		}}
		if err := cut.run(ctx); err == nil || prices(t, pool) != 0 {
			t.Fatalf("half an import was kept: %v", err)
		}

		lockstest.Rewind(t, pool, lockstest.Task("suppliers", "acme"), time.Hour)

		if err := acme.run(ctx); err != nil || prices(t, pool) != 1 {
			t.Fatalf("the next run did not make it good: %v", err)
		}
	})
}
