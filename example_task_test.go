package locks_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A worker process: it ends well when it is told to, and each error is in its log.
func ExampleWorkTasks() {
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
	err = locks.WorkTasks(ctx, pool, "reports", func(ctx context.Context, task db.Task) error {
		fmt.Printf("%s: %s\n", task.ID, task.Payload)
		return ctx.Err()
	}, &locks.TaskOptions{Concurrency: 4, Extend: true})
	if !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// Tasks that are sent on together.
func ExampleWorkTaskBatches() {
	worker := func(ctx context.Context, pool *pgxpool.Pool, send func(ctx context.Context, tasks []db.Task) error) error {
		return locks.WorkTaskBatches(ctx, pool, "mail", func(ctx context.Context, tasks []db.Task) []error {
			errs := make([]error, len(tasks))
			if err := send(ctx, tasks); err != nil {
				for n := range errs {
					errs[n] = err
				}
			}
			return errs
		}, &locks.TaskOptions{BatchSize: 100})
	}
	_ = worker
}

// A server that says when to come back.
func ExampleRetryAfter() {
	call := func(request *http.Request) error {
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err // tried again, later each time
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusTooManyRequests {
			return locks.RetryAfter(time.Minute, errors.New(response.Status))
		}
		return nil
	}
	_ = call
}

// What no other try can mend need not be tried.
func ExamplePermanent() {
	err := locks.Permanent(fmt.Errorf("parse: %w", os.ErrInvalid))
	fmt.Println(err, errors.Is(err, os.ErrInvalid))
	// Output: parse: invalid argument true
}

// The article's interface.
func ExampleNewStateMachine() {
	recur := func(ctx context.Context, pool *pgxpool.Pool) error {
		var machine locks.StateMachine = locks.NewStateMachine(pool, "")
		tasks, err := machine.Capture(ctx, 3)
		for _, task := range tasks {
			err = errors.Join(err, machine.SetStatus(ctx, task.ID, db.TaskDone))
		}
		return err
	}
	_ = recur
}
