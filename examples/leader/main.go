// Runs on every host; one of them leads: leader DSN NAME
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

// lead works as the leader until its context ends: the lease is lost, or the program is to stop.
func lead(ctx context.Context, pool *pgxpool.Pool, lease locks.Lease) error {
	log.Printf("leading with token %d", lease.Token)
	for {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// The fence: what this transaction writes is committed by a leader, or not at all.
			if err := lease.Assert(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "insert into beat (token, leader) values ($1, $2)",
				lease.Token, lease.Owner)
			return err
		})
		if err != nil {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.DialFunc = locks.Dial // notices a server that vanished
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	work := func(ctx context.Context, lease locks.Lease) error { return lead(ctx, pool, lease) }
	err = locks.Lead(ctx, pool, "leader", 15*time.Second, work, &locks.LeaseOptions{
		Owner: os.Args[2],
		OnError: func(_ context.Context, err error) {
			log.Printf("leadership ended, or trouble: %v", err)
		},
	})
	if ctx.Err() == nil {
		log.Fatal(err) // such as missing rights
	}
}
