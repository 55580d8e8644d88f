package locks_test

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A back end: what it writes in tx and the settlement of the batch are one commit.
func ExampleWorkRequests() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.DialFunc = locks.Dial // A server that vanishes is noticed within seconds.
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = locks.WorkRequests(ctx, pool, "orders", func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
		for _, request := range batch {
			if _, err := tx.Exec(ctx, "insert into journal (entity, change) values ($1, $2)", request.EntityID, request.Payload); err != nil {
				return err
			}
		}
		return nil
	}, nil)
	if !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}
