package locks_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A Mail is the payload of a queue. Who sends mail and who asks for it share the declaration.
type Mail struct {
	To    string `json:"to"`
	Pages int    `json:"pages"`
}

var mail = locks.Queue[Mail]{Name: "letters", Timeout: time.Minute, Tries: 5}

// The task is there when the order is. A service takes ctx from signal.NotifyContext: told to stop,
// it captures nothing more and finishes what it is at.
func ExampleQueue() {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "update account set balance = balance - 5 where id = 1")
		if err != nil {
			return err
		}
		created, err := mail.Create(ctx, tx, "order 7", Mail{To: "anna", Pages: 3}, nil)
		fmt.Println("created:", created)
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	running, stop := context.WithCancel(ctx)
	err = mail.Work(running, pool, func(ctx context.Context, task locks.Task[Mail]) error {
		fmt.Printf("%s: %d pages to %s\n", task.ID, task.Payload.Pages, task.Payload.To)
		stop()
		return nil
	}, &locks.TaskOptions{Concurrency: 4})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// created: true
	// order 7: 3 pages to anna
	// true
}

// A program that cron starts works off what is due, and ends.
func ExampleQueue_WorkDue() {
	due := locks.Queue[Mail]{Name: "nightly"}
	for _, to := range []string{"anna", "bert"} {
		if _, err := due.Create(ctx, pool, "to "+to, Mail{To: to}, nil); err != nil {
			fmt.Println(err)
			return
		}
	}
	results, err := due.WorkDue(ctx, pool, func(_ context.Context, task locks.Task[Mail]) error {
		if task.Payload.To == "bert" {
			return errors.New("no such address")
		}
		return nil
	})
	for _, result := range results {
		fmt.Println(result.Task.ID, result.Outcome, result.Err)
	}
	fmt.Println(err)
	// Output:
	// to anna done <nil>
	// to bert retry no such address
	// <nil>
}

// Metrics, traces and alerts: what became of each task, and when.
func ExampleTaskOptions_settled() {
	queue := locks.Queue[Mail]{Name: "watched"}
	if _, err := queue.Create(ctx, pool, "order 8", Mail{}, nil); err != nil {
		fmt.Println(err)
		return
	}
	running, stop := context.WithCancel(ctx)
	err := queue.Work(running, pool, func(context.Context, locks.Task[Mail]) error {
		return locks.Permanent(errors.New("no such address"))
	}, &locks.TaskOptions{Settled: func(_ context.Context, result locks.TaskResult) {
		ran := result.Ended.Sub(result.Began)
		fmt.Println(result.Task.ID, result.Outcome, result.Err, ran < time.Minute)
		stop()
	}})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// order 8 dead no such address true
	// true
}

// WorkTasks is for payloads that are not of one type.
func ExampleWorkTasks() {
	_, err := db.New(pool).CreateTask(ctx, db.CreateTaskParams{
		ID: "march", QueueID: "reports", Payload: []byte(`{"pages": 3}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	running, stop := context.WithCancel(ctx)
	err = locks.WorkTasks(running, pool, "reports", func(ctx context.Context, task db.Task) error {
		fmt.Printf("%s: %s, try %d\n", task.ID, task.Payload, task.Tries)
		stop()
		// An error is kept as the task's message, and the task is tried again after a pause.
		return nil
	}, &locks.TaskOptions{Concurrency: 4})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// march: {"pages": 3}, try 1
	// true
}

// Tasks that are sent on together.
func ExampleWorkTaskBatches() {
	_, err := db.New(pool).CreateTasks(ctx, db.CreateTasksParams{
		IDs: []string{"anna", "bert"}, QueueID: "mail",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	running, stop := context.WithCancel(ctx)
	send := func(ctx context.Context, tasks []db.Task) []error {
		for _, task := range tasks {
			fmt.Println("to", task.ID)
		}
		stop()
		return nil // all are done; or one error for each
	}
	err = locks.WorkTaskBatches(running, pool, "mail", 100, send, nil)
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

// A handler that may not work now gives the task back: that is no failure, and costs no try.
func ExampleSnooze() {
	quiet := locks.Queue[Mail]{Name: "quiet hours", Tries: 1}
	if _, err := quiet.Create(ctx, pool, "order 9", Mail{}, nil); err != nil {
		fmt.Println(err)
		return
	}
	results, err := quiet.WorkDue(ctx, pool, func(context.Context, locks.Task[Mail]) error {
		return locks.Snooze(time.Hour)
	})
	for _, result := range results {
		fmt.Println(result.Outcome, result.Err, time.Until(result.RetryAt) > 50*time.Minute)
	}
	fmt.Println(err)
	// Output:
	// snoozed <nil> true
	// <nil>
}

// What no other try can mend need not be tried.
func ExamplePermanent() {
	err := locks.Permanent(fmt.Errorf("parse: %w", os.ErrInvalid))
	fmt.Println(err, errors.Is(err, os.ErrInvalid))
	// Output: parse: invalid argument true
}

// The article's interface, for those who write the loop themselves.
func ExampleNewTaskQueue() {
	_, err := db.New(pool).CreateTask(ctx, db.CreateTaskParams{ID: "tidy up", QueueID: "chores"})
	if err != nil {
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

// Who writes the loop settles by the attempt: a stale worker is refused.
func ExampleTaskQueue_Settle() {
	_, err := db.New(pool).CreateTask(ctx, db.CreateTaskParams{ID: "sweep", QueueID: "halls"})
	if err != nil {
		fmt.Println(err)
		return
	}
	queue := locks.NewTaskQueue(pool, "halls")
	tasks, err := queue.Capture(ctx, 1)
	for _, task := range tasks {
		fmt.Println(task.ID, queue.Settle(ctx, task, db.TaskDone))
		fmt.Println(errors.Is(queue.Settle(ctx, task, db.TaskFailed), locks.ErrTaskLost))
	}
	fmt.Println(err)
	// Output:
	// sweep <nil>
	// true
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
