package locks_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A service takes ctx from signal.NotifyContext: told to stop, it captures nothing more and
// finishes what it is at.
func ExampleWorkTasks() {
	if _, err := db.New(pool).CreateTask(ctx, db.CreateTaskParams{ID: "march", QueueID: "reports", Payload: []byte(`{"pages": 3}`)}); err != nil {
		fmt.Println(err)
		return
	}
	running, stop := context.WithCancel(ctx)
	err := locks.WorkTasks(running, pool, "reports", func(ctx context.Context, task db.Task) error {
		fmt.Printf("%s: %s, try %d\n", task.ID, task.Payload, task.Tries)
		stop()
		return nil // An error is kept as the task's message, and the task is tried again after a pause.
	}, &locks.TaskOptions{Concurrency: 4})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// march: {"pages": 3}, try 1
	// true
}

// Tasks that are sent on together.
func ExampleWorkTaskBatches() {
	if _, err := db.New(pool).CreateTasks(ctx, db.CreateTasksParams{IDs: []string{"anna", "bert"}, QueueID: "mail"}); err != nil {
		fmt.Println(err)
		return
	}
	running, stop := context.WithCancel(ctx)
	err := locks.WorkTaskBatches(running, pool, "mail", 100, func(ctx context.Context, tasks []db.Task) []error {
		for _, task := range tasks {
			fmt.Println("to", task.ID)
		}
		stop()
		return nil // all are done; or one error for each
	}, nil)
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// to anna
	// to bert
	// true
}

// A handler passes on when a server wants to be asked again.
func ExampleRetryAfter() {
	err := locks.RetryAfter(time.Minute, errors.New("too many requests"))
	fmt.Println(err)
	// Output: retry in 1m0s: too many requests
}

// What no other try can mend need not be tried.
func ExamplePermanent() {
	err := locks.Permanent(fmt.Errorf("parse: %w", os.ErrInvalid))
	fmt.Println(err, errors.Is(err, os.ErrInvalid))
	// Output: parse: invalid argument true
}

// The article's interface, for those who write the loop themselves.
func ExampleNewTaskQueue() {
	if _, err := db.New(pool).CreateTask(ctx, db.CreateTaskParams{ID: "tidy up", QueueID: "chores"}); err != nil {
		fmt.Println(err)
		return
	}
	var machine locks.StateMachine = locks.NewTaskQueue(pool, "chores")
	tasks, err := machine.Capture(ctx, 3)
	for _, task := range tasks {
		fmt.Println(task.ID, machine.SetStatus(ctx, task.ID, db.TaskDone))
	}
	fmt.Println(err)
	// Output:
	// tidy up <nil>
	// <nil>
}

// A pool for workers: a server that vanishes is noticed within seconds.
func ExampleDial() {
	config, err := pgxpool.ParseConfig(os.Getenv("LOCKS_EXAMPLE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	config.ConnConfig.DialFunc = locks.Dial
	careful, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer careful.Close()
	fmt.Println(careful.Ping(ctx))
	// Output: <nil>
}
