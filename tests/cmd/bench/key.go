package main

import (
	"context"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

const (
	someKey = "\\set key random(1, 100000)\n"
	heldKey = "\\set key random(1, 100)\n"
)

func init() {
	// recipe works as the published table lock does, and is here to be compared with.
	recipe := []string{
		"create table recipe (key bigint primary key, ts timestamptz default now())",
		"insert into recipe select generate_series(1, 100000)",
		`create function recipe_exclusive(wanted bigint) returns void language plpgsql as $$
		begin
			insert into recipe (key) values (wanted) on conflict do nothing;
			perform from recipe where key = wanted for update;
		end $$`,
	}
	someNumber := func() int64 { return 1 + rand.Int64N(100000) }
	comparisons = append(comparisons,
		comparison{kind: "key", name: "exclusive, 100,000 keys", setup: recipe, scripts: []script{
			{name: "pg_advisory_xact_lock", sql: someKey + "select pg_advisory_xact_lock(:key);"},
			{name: "lock.exclusive(bigint)", sql: someKey + "select lock.exclusive(:key::bigint);", atLeast: 0.5, prepared: 0.85},
			{name: "lock.shared(bigint)", sql: someKey + "select lock.shared(:key::bigint);", atLeast: 0.5, prepared: 0.85},
			{name: "lock.exclusive(text)", sql: someKey + "select lock.exclusive('customer:' || :key);", atLeast: 0.5, prepared: 0.7},
			{name: "the published recipe", sql: someKey + "select recipe_exclusive(:key);"},
		}},
		comparison{kind: "key", name: "try_exclusive, denied", hold: []string{
			"select pg_advisory_xact_lock(k) from generate_series(1, 100) k", "select lock.exclusive(k) from generate_series(1, 100) k",
		}, scripts: []script{
			{name: "pg_try_advisory_xact_lock", sql: heldKey + "select pg_try_advisory_xact_lock(:key);"},
			{name: "lock.try_exclusive(bigint)", sql: heldKey + "select lock.try_exclusive(:key::bigint);", atLeast: 0.5, prepared: 0.85},
			{name: "lock.try_shared(bigint)", sql: heldKey + "select lock.try_shared(:key::bigint);", atLeast: 0.5, prepared: 0.85},
		}},
		comparison{kind: "key", name: "in Go, 8 goroutines: begin, lock, commit", scripts: []script{
			{name: "three round trips, lock.exclusive prepared", run: drive(func(ctx context.Context, pool *pgxpool.Pool) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "select lock.exclusive($1::bigint)", someNumber())
					return err
				})
			})},
			{name: "locks.Exclusive, two round trips", run: drive(func(ctx context.Context, pool *pgxpool.Pool) error {
				return locks.Exclusive(ctx, pool, someNumber(), func(pgx.Tx) error { return nil })
			})},
		}},
	)
}
