package locks_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// One at a time works on customer 42. Whoever cannot have the key in time does something else.
func ExampleTryExclusive() {
	deposit := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "update account set balance = balance + 1 where id = 2")
		return err
	}
	got, err := locks.TryExclusive(ctx, pool, "customer:42", 2*time.Second, func(tx pgx.Tx) error {
		got, err := locks.TryExclusive(ctx, pool, "customer:42", 10*time.Millisecond, deposit)
		fmt.Println("somebody else at the same time:", got, err)
		return deposit(tx)
	})
	fmt.Println(got, err)
	// Output:
	// somebody else at the same time: false <nil>
	// true <nil>
}

// Who has to have the key waits for it, and no longer than ctx lets it.
func ExampleExclusive() {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := locks.Exclusive(ctx, pool, "customer:42", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "update account set balance = balance + 1 where id = 2")
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("done, and free again")
	// Output: done, and free again
}

// Readers come in together; whoever wants the key exclusively waits for them.
func ExampleShared() {
	err := locks.Shared(ctx, pool, "tariff", func(tx pgx.Tx) error {
		got, err := locks.TryExclusive(ctx, pool, "tariff", 0, func(pgx.Tx) error { return nil })
		fmt.Println("changed while it is read:", got)
		return err
	})
	fmt.Println(err)
	// Output:
	// changed while it is read: false
	// <nil>
}

// A key by number is a key of its own: 42 is not "42".
func ExampleTryShared() {
	got, err := locks.TryShared(ctx, pool, 42, 0, func(tx pgx.Tx) error {
		other, err := locks.TryExclusive(ctx, pool, "42", 0, func(pgx.Tx) error { return nil })
		fmt.Println("the name 42:", other)
		return err
	})
	fmt.Println("the number 42:", got, err)
	// Output:
	// the name 42: true
	// the number 42: true <nil>
}

// A transfer locks both accounts. Another one in the opposite direction waits, and does not
// deadlock.
func ExampleExclusiveAll() {
	err := locks.ExclusiveAll(ctx, pool, []string{"account:1", "account:2"}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx,
			"update account set balance = balance + case id when 1 then -5 else 5 end "+
				"where id in (1, 2)",
		)
		return err
	})
	fmt.Println(err)
	// Output: <nil>
}

// Inside a transaction, db.New(tx) locks more. A set of keys is had as a whole or not at all.
func ExampleExclusive_more() {
	err := locks.Exclusive(ctx, pool, "month:2026-11", func(tx pgx.Tx) error {
		all, err := db.New(tx).TryAll(ctx, db.TryAllParams{
			ExclusiveNames: []string{"account:1", "account:2"},
			SharedNames:    []string{"tariff"},
			Wait:           2 * time.Second,
		})
		fmt.Println("all of them:", all)
		return err
	})
	fmt.Println(err)
	// Output:
	// all of them: true
	// <nil>
}
