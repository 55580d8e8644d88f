package locks_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A Booking is the payload of all requests of a queue.
type Booking struct {
	Amount int `json:"amount"`
}

var bookings = locks.Entities[Booking]{Name: "typed bookings"}

// What waits for an account is one batch, and one commit with what the handler writes in tx.
func ExampleEntities() {
	for amount := range 3 {
		_, err := bookings.Update(ctx, pool, "account 2", Booking{Amount: amount})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	running, stop := context.WithCancel(ctx)
	book := func(ctx context.Context, tx pgx.Tx, batch []locks.Request[Booking]) error {
		sum := 0
		for _, request := range batch {
			sum += request.Payload.Amount
		}
		fmt.Println(len(batch), "requests for", batch[0].EntityID, "sum", sum)
		_, err := tx.Exec(ctx, "update account set balance = balance + $1 where id = 2", sum)
		return err
	}
	err := bookings.Work(running, pool, book, &locks.RequestOptions{
		Settled: func(_ context.Context, result locks.RequestResult) {
			fmt.Println(result.Outcome, len(result.Batch))
			stop()
		},
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// 3 requests for account 2 sum 3
	// done 3
	// true
}

// WorkRequests is for payloads that are not of one type. What the handler writes in tx and the
// settlement of the batch are one commit.
func ExampleWorkRequests() {
	for _, amount := range []string{"1", "2"} {
		_, err := db.New(pool).Enqueue(ctx, db.EnqueueParams{
			RequestType: db.RequestUpdate, EntityID: "account 2", Payload: []byte(amount),
			QueueID: "bookings",
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	running, stop := context.WithCancel(ctx)
	book := func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
		fmt.Println(len(batch), "requests for", batch[0].EntityID)
		for _, request := range batch {
			_, err := tx.Exec(ctx, `update account
				set balance = balance + ($1::jsonb)::integer where id = 2`, request.Payload)
			if err != nil {
				return err
			}
		}
		stop()
		return nil
	}
	err := locks.WorkRequests(running, pool, "bookings", book, nil)
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// 2 requests for account 2
	// true
}
