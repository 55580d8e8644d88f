package locks

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/internal/wake"
)

// A Key is what the closures of key locks take: a number, or a name of 1 to 1024 bytes. The number
// 42 and the name "42" are two different keys. What is not a string is a number.
type Key interface {
	~int | ~int32 | ~int64 | ~string
}

// Exclusive runs fn in a transaction that holds key alone, and commits it. TryExclusive does so
// within a time.
//
// Contention: it waits until every other holder, shared or exclusive, has ended. It keeps a
// connection of the pool meanwhile, so one holder that hangs can stop all that use the pool. Bound
// the wait by a ctx with a timeout, by lock_timeout or statement_timeout, or use TryExclusive. The
// lock ends with the transaction: on commit, on an error or panic of fn (which roll back), and when
// the connection or this process dies.
//
// Transaction: it is READ COMMITTED, so that what fn reads is not older than the lock. It is not
// fn's to end: tx's Commit and Rollback return an error and do nothing. A commit or rollback in SQL
// gives the lock up, and Exclusive returns an error for it. If fn then begins another transaction
// in SQL, nobody notices.
//
// fn cannot lock the same key by another call of this package. That is another connection, which
// waits for this one, and the database does not see that as a deadlock. To lock more, use
// db.New(tx).
//
// Cost: two round trips. Begin and lock travel together, in the connection's query exec mode. Where
// that prepares statements, the first call on a connection takes one more. On YugabyteDB it is
// three: there begin travels alone.
//
// Retries: when the database asks for one (see IsRetryable), the transaction is rolled back and the
// whole of fn runs again. That happens up to 10 times with growing, random pauses. So fn must keep
// its effects inside its tx.
//
// Errors: fn's own error comes back as it is, and so does its last one behind retries. An error of
// the lock or of its transaction begins with "locks: hold key", and errors.As reaches the
// *pgconn.PgError with its SQLSTATE. When ctx ends while every connection of the pool is in use,
// the error says that, and no key is to blame. 22023 is a bad name. 22021 is a name with a NUL or
// bytes that are no text in the connection's client_encoding. 25006 is a standby, 55P03
// lock_timeout, 57014 statement_timeout. When the connection is lost during the commit, nobody can
// know whether the commit happened. That error is ErrOutcomeUnknown, too, and never retried.
func Exclusive[K Key](ctx context.Context, pool *pgxpool.Pool, key K, fn func(tx pgx.Tx) error,
) error {
	_, err := holdKey(ctx, pool, reflect.ValueOf(key), exclusiveNumber, exclusiveName, nil, fn)
	return err
}

// Shared runs fn in a transaction that holds key together with other sharers, and commits it. It
// waits for an exclusive holder only. Bound the wait as with Exclusive, or use TryShared.
// Transaction, cost and errors are as with Exclusive.
func Shared[K Key](ctx context.Context, pool *pgxpool.Pool, key K, fn func(tx pgx.Tx) error) error {
	_, err := holdKey(ctx, pool, reflect.ValueOf(key), sharedNumber, sharedName, nil, fn)
	return err
}

// TryExclusive runs fn as Exclusive does and returns true. It returns false without having called
// fn when somebody else still has the key after wait. A wait of 0 asks once. While it waits, wait
// stands in for lock_timeout. When it returns an error, the boolean is false. Transaction, cost and
// errors are as with Exclusive. 22023 is also a wait that is negative.
func TryExclusive[K Key](ctx context.Context, pool *pgxpool.Pool, key K, wait time.Duration,
	fn func(tx pgx.Tx) error,
) (bool, error) {
	return holdKey(ctx, pool, reflect.ValueOf(key), tryExclusiveNumber, tryExclusiveName, &wait, fn)
}

// TryShared runs fn as Shared does and returns true. It returns false without having called fn when
// somebody else still has the key exclusively after wait. Everything else is as with TryExclusive.
func TryShared[K Key](ctx context.Context, pool *pgxpool.Pool, key K, wait time.Duration,
	fn func(tx pgx.Tx) error,
) (bool, error) {
	return holdKey(ctx, pool, reflect.ValueOf(key), trySharedNumber, trySharedName, &wait, fn)
}

// ExclusiveAll runs fn in a transaction that holds all names alone, and commits it. The names are
// taken in one global order, so that its callers never deadlock with each other, whatever the order
// of their slices. Duplicates count once, and no names lock nothing.
//
// Contention, transaction, cost and errors are as with Exclusive. 53200 says that the server's lock
// table is too small for so many. For keys by number, shared ones and a bounded wait there is
// db.Queries.TryAll, on a transaction.
func ExclusiveAll(ctx context.Context, pool *pgxpool.Pool, names []string, fn func(tx pgx.Tx) error,
) error {
	_, err := hold(ctx, pool, exclusiveAll, []any{append([]string{}, names...)}, false, fn)
	if err != nil {
		return blame(err, "locks: hold %d keys", len(names))
	}
	return nil
}

const (
	exclusiveNumber    = "select lock.exclusive($1::bigint)"
	exclusiveName      = "select lock.exclusive($1::text)"
	sharedNumber       = "select lock.shared($1::bigint)"
	sharedName         = "select lock.shared($1::text)"
	tryExclusiveNumber = "select lock.try_exclusive($1::bigint, $2::interval)"
	tryExclusiveName   = "select lock.try_exclusive($1::text, $2::interval)"
	trySharedNumber    = "select lock.try_shared($1::bigint, $2::interval)"
	trySharedName      = "select lock.try_shared($1::text, $2::interval)"
	exclusiveAll       = "select lock.exclusive_all($1::text[])"
)

// holdKey chooses the statement for the key. With a wait it is a try.
func holdKey(ctx context.Context, pool *pgxpool.Pool, key reflect.Value, number, name string,
	wait *time.Duration, fn func(tx pgx.Tx) error,
) (bool, error) {
	var sql string
	var args []any
	if key.Kind() == reflect.String {
		sql, args = name, append(args, key.String())
	} else {
		sql, args = number, append(args, key.Int())
	}
	if wait != nil {
		args = append(args, *wait)
	}
	held, err := hold(ctx, pool, sql, args, wait != nil, fn)
	if err != nil {
		shown := fmt.Sprint(key)
		if key.Kind() == reflect.String {
			shown = fmt.Sprintf("%.60q", shown)
		}
		return false, blame(err, "locks: hold key %s", shown)
	}
	return held, nil
}

// hold begins a transaction and locks in one round trip, runs fn and commits; all of it again when
// the database asks for that. A try may answer false, and then fn is not called. An error of fn is
// a closureError.
func hold(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, try bool,
	fn func(tx pgx.Tx) error,
) (held bool, err error) {
	err = retry(ctx, func() error {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return wake.NoConnection(pool, err)
		}
		defer conn.Release()
		held = true
		var answer any
		if try {
			answer = &held
		}
		opening := &pipeline{Conn: conn.Conn(), begins: true}
		err = opening.close(ctx, opening.QueryRow(ctx, sql, args...).Scan(answer))
		tx := opening.tx
		defer tx.Rollback(ctx) // Behind a commit it does nothing.
		if err != nil || !held {
			return err
		}
		if err := fn(givenTx{tx}); err != nil {
			return closureError{err}
		}
		if server := tx.Conn().PgConn(); !server.IsBusy() && server.TxStatus() == 'I' {
			return errEnded
		}
		return unanswered(tx.Commit(ctx))
	})
	return held && err == nil, err
}
