// Imports a customer's file, one import per customer at a time: import_customer DSN CUSTOMER FILE
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

// load replaces the customer's items by the lines of a file.
// It opens the file itself, because it is called again after a deadlock.
func load(ctx context.Context, tx pgx.Tx, customer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := tx.Exec(ctx, "delete from item where customer = $1", customer); err != nil {
		return err
	}
	lines := bufio.NewScanner(file)
	rows := pgx.CopyFromFunc(func() ([]any, error) {
		if !lines.Scan() {
			return nil, lines.Err()
		}
		return []any{customer, lines.Text()}, nil
	})
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"item"}, []string{"customer", "name"}, rows)
	return err
}

func main() {
	ctx, customer, path := context.Background(), os.Args[2], os.Args[3]
	config, err := pgxpool.ParseConfig(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.DialFunc = locks.Dial
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	// The import is one transaction, and the lock ends with it: after a crash all is as it was before.
	got, err := locks.TryExclusive(ctx, pool, "import:"+customer, 0, func(tx pgx.Tx) error {
		return load(ctx, tx, customer, path)
	})
	switch {
	case err != nil:
		log.Fatal(err)
	case got:
		fmt.Println("imported")
	default:
		fmt.Println("somebody else is importing this customer")
	}
}
