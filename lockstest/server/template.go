// Package server starts throwaway PostgreSQL servers for package lockstest and for this project's own tests, benchmarks and demo.
// It may change with any release.
package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Template makes sure that there is a database name to clone from, whatever other processes do at the same time. Where there is
// none, fill makes the database scratch, which then becomes it: so a template is never half filled.
func Template(ctx context.Context, conn *pgx.Conn, name, scratch string, fill func() error) error {
	if _, err := conn.Exec(ctx, "select pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
		return err
	}
	defer conn.Exec(ctx, "select pg_advisory_unlock(hashtextextended($1, 0))", name)
	var there bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&there); err != nil || there {
		return err
	}
	if err := fill(); err != nil {
		return fmt.Errorf("template %s: %w", name, err)
	}
	// Nobody connects to it any more: that would stand in the way of a clone.
	for _, sql := range []string{"alter database " + scratch + " allow_connections false", "alter database " + scratch + " rename to " + name} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			_, dropErr := conn.Exec(ctx, "drop database "+scratch)
			var pg *pgconn.PgError
			if errors.As(err, &pg) && pg.Code == "42P04" { // the lock is one per database of the server, and another was faster
				return dropErr
			}
			return errors.Join(fmt.Errorf("%s: %w", sql, err), dropErr)
		}
	}
	return nil
}

// Digest is a name for what is in files at the top of a file system, for the name of a template.
func Digest(files fs.FS) (string, error) {
	names, err := fs.Glob(files, "*")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:6]), nil
}
