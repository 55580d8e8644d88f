package locks

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/schema/*.sql
var schema embed.FS

// Migrations holds the goose migrations that make the schema "lock", at its root. Use it with
// goose's provider and a locker, or deploy sql/schema with the goose CLI. Either way take the
// version table public.lock_goose_version, because a table inside "lock" would vanish with the last
// Down.
var Migrations fs.FS = migrations()

func migrations() fs.FS {
	sub, err := fs.Sub(schema, "sql/schema")
	if err != nil {
		panic(err) // The embedded directory is named above; only a misspelling gets here.
	}
	return sub
}

// A givenTx is the transaction that a closure works in, and that is ended by who called the
// closure. So the usual "defer tx.Rollback(ctx)" does no harm, and a commit is no surprise.
type givenTx struct{ pgx.Tx }

func (givenTx) Commit(context.Context) error   { return errNotYours }
func (givenTx) Rollback(context.Context) error { return errNotYours }

var (
	errNotYours = errors.New("this transaction is not ended by the closure: return nil to commit, or an error to roll back")
	// errEnded is for a closure that ends it all the same, in SQL.
	errEnded = errors.New("the closure ended the transaction itself")
)

// A closureError is what a closure returned: it comes back to the caller as it is.
type closureError struct{ error }

func (e closureError) Unwrap() error { return e.error }

// blame says what failed, for every error but a closure's own.
func blame(err error, format string, args ...any) error {
	if own, ok := err.(closureError); ok {
		return own.error
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
