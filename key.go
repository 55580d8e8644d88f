package locks

import (
	"context"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Key is what Exclusive and Shared lock: a number, or a name of 1 to 1024 bytes (which locks lock.key(name)).
type Key interface {
	~int | ~int32 | ~int64 | ~string
}

// Exclusive runs fn in a transaction that holds key alone, and commits it.
//
// It waits until every other holder, shared or exclusive, has ended; cancel ctx, or set lock_timeout or statement_timeout, to
// bound that. The lock ends with the transaction: on commit, on an error or panic of fn (which roll back), and when the
// connection or this process dies. It costs two round trips: begin and lock travel together.
//
// When the database asks for a retry (see IsRetryable), the transaction is rolled back and the whole of fn runs again, up to
// 10 times with growing, random pauses; so fn must keep its effects inside its tx. Any other error is returned, wrapped:
// errors.Is and errors.As reach fn's own error and the *pgconn.PgError with its SQLSTATE (22023 bad name, 22021 a name with a
// NUL or bytes that are no text in the connection's client_encoding, 25006 a standby, 55P03 lock_timeout, 57014
// statement_timeout). When the connection is lost during the commit, nobody can know whether the commit happened; that error is
// returned and never retried.
//
// tx is not fn's to end: its Commit and Rollback return an error and do nothing. A commit or rollback in SQL gives the lock up,
// which is an error in the end, unless another transaction was begun, which nobody notices. Nor can fn lock the same key by
// another call of Exclusive or Shared: that is another connection, which waits for this one, and the database does not see that
// as a deadlock. To lock more, use package db on tx.
//
// The transaction is READ COMMITTED, so that what fn reads is not older than the lock. A connection on which the lock itself
// failed is closed and not returned to the pool.
func Exclusive[K Key](ctx context.Context, pool *pgxpool.Pool, key K, fn func(tx pgx.Tx) error) error {
	return hold(ctx, pool, "lock.exclusive", reflect.ValueOf(key), fn)
}

// Shared runs fn in a transaction that holds key together with other sharers, and commits it. It waits for an exclusive
// holder only; everything else is as with Exclusive.
func Shared[K Key](ctx context.Context, pool *pgxpool.Pool, key K, fn func(tx pgx.Tx) error) error {
	return hold(ctx, pool, "lock.shared", reflect.ValueOf(key), fn)
}

func hold(ctx context.Context, pool *pgxpool.Pool, function string, key reflect.Value, fn func(tx pgx.Tx) error) error {
	// The arguments are written so that nothing in them needs quoting: digits, or a name's bytes in hexadecimal, in the encoding in which a
	// parameter is sent.
	var argument, shown string
	if key.Kind() == reflect.String {
		argument = fmt.Sprintf(`convert_from(decode('%s', 'hex'), pg_client_encoding())`, hex.EncodeToString([]byte(key.String())))
		shown = fmt.Sprintf("%.60q", key.String())
	} else {
		shown = strconv.FormatInt(key.Int(), 10)
		argument = "'" + shown + "'::bigint"
	}
	options := pgx.TxOptions{BeginQuery: "begin isolation level read committed; select " + function + "(" + argument + ")"}
	err := retry(ctx, func() error {
		return pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
			if err := fn(givenTx{tx}); err != nil {
				return err
			}
			if conn := tx.Conn().PgConn(); !conn.IsBusy() && conn.TxStatus() == 'I' {
				return errEnded
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("locks: %s(%s): %w", function, shown, err)
	}
	return nil
}
