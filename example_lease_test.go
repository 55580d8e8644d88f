package locks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
)

// The holder of the lease pays invoices; each payment is fenced.
func ExampleWithLease() {
	pay := func(ctx context.Context, lease locks.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := lease.Assert(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "update invoice set paid = true where id = 12")
			return err
		})
	}
	err := locks.WithLease(ctx, pool, "billing", 15*time.Second, pay, nil)
	switch {
	case errors.Is(err, locks.ErrLeaseHeld):
		fmt.Println("somebody else pays")
	case errors.Is(err, locks.ErrLeaseLost):
		fmt.Println("it was lost before the work was done")
	default:
		fmt.Println("paid:", err)
	}
	// Output: paid: <nil>
}

// A semaphore: two at once, and the third is told.
func ExampleWithLease_permits() {
	two := &locks.LeaseOptions{Permits: 2}
	hold := func(fn func() error) error {
		print := func(context.Context, locks.Lease) error { return fn() }
		return locks.WithLease(ctx, pool, "printer", 15*time.Second, print, two)
	}
	err := hold(func() error {
		return hold(func() error {
			third := hold(func() error { return nil })
			fmt.Println("the third:", errors.Is(third, locks.ErrLeaseHeld))
			return nil
		})
	})
	fmt.Println(err)
	// Output:
	// the third: true
	// <nil>
}

// A leader that has been replaced cannot write, even if it has not noticed yet.
func ExampleLease_Assert() {
	stale := locks.Lease{Name: "leader", Token: 1}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return stale.Assert(ctx, tx)
	})
	fmt.Println("lost:", errors.Is(err, locks.ErrLeaseLost))
	// Output: lost: true
}

// A leader works until its context ends. When it has lost the lease, or has returned, it stands for
// the lease again.
func ExampleLead() {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	terms := 0
	report := func(ctx context.Context, lease locks.Lease) error {
		if terms++; terms == 1 {
			return errors.New("the printer is on fire")
		}
		stop() // Somebody ends the program.
		<-ctx.Done()
		return ctx.Err()
	}
	opts := &locks.LeaseOptions{OnError: func(_ context.Context, err error) { fmt.Println(err) }}
	err := locks.Lead(ctx, pool, "reporting", 15*time.Second, report, opts)
	fmt.Println(err)
	// Output:
	// locks: lead "reporting" with token 1: the printer is on fire
	// locks: lead "reporting": context canceled
}
