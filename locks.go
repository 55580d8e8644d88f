package locks

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed sql/schema/*.sql
var schema embed.FS

// Migrations are the goose migrations that make the schema "lock", at the root of a file system.
// Use them with goose's provider and a locker, or deploy sql/schema with the goose CLI. Either way
// take the version table public.lock_goose_version, because a table inside "lock" would vanish with
// the last Down.
func Migrations() fs.FS {
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

// A batchTx is the transaction of a handler, and closed when that has returned. A commit that
// travels in a pipeline does not close pgx's own.
type batchTx struct {
	pgx.Tx
	over   *atomic.Bool
	nested bool // in a savepoint, which is the handler's to end
}

// closedTx is a transaction that has ended.
var closedTx = func() pgx.Tx {
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(batch, pgx.ErrTxClosed).Tx()
}()

func (t *batchTx) now() pgx.Tx {
	if t.over.Load() {
		return closedTx
	}
	return t.Tx
}

func (t *batchTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.now().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &batchTx{tx, t.over, true}, nil
}

func (t *batchTx) Commit(ctx context.Context) error {
	if t.nested || t.over.Load() {
		return t.now().Commit(ctx)
	}
	return errNotYours
}

func (t *batchTx) Rollback(ctx context.Context) error {
	if t.nested || t.over.Load() {
		return t.now().Rollback(ctx)
	}
	return errNotYours
}

func (t *batchTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	rows pgx.CopyFromSource,
) (int64, error) {
	return t.now().CopyFrom(ctx, table, columns, rows)
}

func (t *batchTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.now().SendBatch(ctx, b)
}

func (t *batchTx) LargeObjects() pgx.LargeObjects { return t.now().LargeObjects() }

func (t *batchTx) Prepare(ctx context.Context, name, sql string,
) (*pgconn.StatementDescription, error) {
	return t.now().Prepare(ctx, name, sql)
}

func (t *batchTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.now().Exec(ctx, sql, args...)
}

func (t *batchTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.now().Query(ctx, sql, args...)
}

func (t *batchTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.now().QueryRow(ctx, sql, args...)
}

var (
	errNotYours = errors.New(
		"this transaction is not ended by the closure: return nil to commit, or an error to roll " +
			"back",
	)
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
