package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/seed4787c507/locks"
)

//go:embed schema/*.sql
var schema embed.FS

// migrate brings the schemas lock and spreadsheets up to date, one program at a time, and lets role use them unless it is empty.
func migrate(ctx context.Context, address, role string) error {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	own, err := fs.Sub(schema, "schema")
	if err != nil {
		return err
	}
	for _, part := range []struct {
		migrations fs.FS
		table      string
	}{
		{locks.Migrations(), "public.lock_goose_version"},
		{own, "public.spreadsheets_goose_version"},
	} {
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		provider, err := goose.NewProvider(goose.DialectPostgres, db, part.migrations, goose.WithTableName(part.table), goose.WithSessionLocker(locker))
		if err != nil {
			return err
		}
		if _, err := provider.Up(ctx); err != nil {
			return err
		}
	}
	if role == "" {
		return nil
	}
	name := pgx.Identifier{role}.Sanitize()
	if _, err := db.ExecContext(ctx, "select lock.grant_to($1)", role); err != nil {
		return fmt.Errorf("grant to %s: %w", name, err)
	}
	for _, grant := range []string{"usage on schema spreadsheets", "select, insert, update on spreadsheets.sheet"} {
		if _, err := db.ExecContext(ctx, "grant "+grant+" to "+name); err != nil {
			return fmt.Errorf("grant to %s: %w", name, err)
		}
	}
	return nil
}
