package locks_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

// What the examples take for granted.
var (
	ctx  = context.Background()
	pool *pgxpool.Pool
)

// The examples need a database that has been migrated, and make their own tables there:
// LOCKS_EXAMPLE_URL. The tests of module tests run them.
func TestMain(m *testing.M) {
	url := os.Getenv("LOCKS_EXAMPLE_URL")
	if url == "" {
		fmt.Println("the examples are not run: LOCKS_EXAMPLE_URL is not set")
		return
	}
	var err error
	if pool, err = pgxpool.New(ctx, url); err == nil {
		_, err = pool.Exec(ctx, `
			drop table if exists account, invoice;
			create table account (id integer primary key, balance integer not null);
			insert into account values (1, 100), (2, 50);
			create table invoice (id integer primary key, paid boolean not null);
			insert into invoice values (12, false)`)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer pool.Close()
	m.Run()
}

// The migrations are what goose needs: see the README for its provider.
func ExampleMigrations() {
	files, err := fs.Glob(locks.Migrations(), "*_key.sql")
	fmt.Println(len(files), err)
	// Output: 1 <nil>
}

// A transaction of one's own is run again when the database asks for that. The closures of this
// package do it by themselves.
func ExampleIsRetryable() {
	transfer := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "update account set balance = balance - 10 where id = 1")
		return err
	}
	var err error
	for range 10 {
		err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, transfer)
		if !locks.IsRetryable(err) {
			break
		}
	}
	fmt.Println(err)
	// Output: <nil>
}
