package locks_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// What the handler writes in tx and the settlement of the batch are one commit.
func ExampleWorkRequests() {
	for _, amount := range []string{"1", "2"} {
		_, err := db.New(pool).Enqueue(ctx, db.EnqueueParams{RequestType: db.RequestUpdate, EntityID: "account 2", Payload: []byte(amount), QueueID: "bookings"})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	running, stop := context.WithCancel(ctx)
	err := locks.WorkRequests(running, pool, "bookings", func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
		fmt.Println(len(batch), "requests for", batch[0].EntityID)
		for _, request := range batch {
			if _, err := tx.Exec(ctx, "update account set balance = balance + ($1::jsonb)::integer where id = 2", request.Payload); err != nil {
				return err
			}
		}
		stop()
		return nil
	}, nil)
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// 2 requests for account 2
	// true
}
