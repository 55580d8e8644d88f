// Prints a cached value. When it is too old, one of those who ask builds it: rebuild_cache DSN NAME
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

// build is what costs much. It holds a transaction open: seconds, not hours.
func build(name string) (string, error) {
	log.Printf("building %s", name)
	return fmt.Sprintf("%s as of %s", name, time.Now().Format(time.RFC3339)), nil
}

const fresh = `select value from cache
	where name = $1 and built_at > clock_timestamp() - $2::interval`

const store = `insert into cache (name, value, built_at) values ($1, $2, clock_timestamp())
	on conflict (name) do update set value = excluded.value, built_at = excluded.built_at`

func get(ctx context.Context, pool *pgxpool.Pool, name string) (string, error) {
	const maxAge = time.Minute
	var value string
	err := pool.QueryRow(ctx, fresh, name, maxAge).Scan(&value)
	if !errors.Is(err, pgx.ErrNoRows) {
		return value, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // a builder that hangs stops nobody else
	defer cancel()
	err = locks.Exclusive(ctx, pool, "cache:"+name, func(tx pgx.Tx) error {
		// Look again: those who waited find what the first one has built.
		err := tx.QueryRow(ctx, fresh, name, maxAge).Scan(&value)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if value, err = build(name); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, store, name, value)
		return err
	})
	return value, err
}

func main() {
	ctx := context.Background()
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
	value, err := get(ctx, pool, os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(value)
}
