package locks

import (
	"context"
	"fmt"

	"github.com/seed4787c507/locks/db"
)

// A Mutex is a durable flag per task: acquired stays acquired until released, even when its holder
// crashes. So the next run is cancelled when the last one did not finish. DurableMutex is one.
type Mutex interface {
	// Acquire returns true when this call acquired the mutex, and false when it is acquired.
	Acquire(ctx context.Context, taskID string) (bool, error)
	// Release returns true when this call released the mutex, and false when it is not acquired, or
	// by another owner.
	Release(ctx context.Context, taskID string) (bool, error)
}

var _ Mutex = DurableMutex{}

// A DurableMutex is the Mutex of one owner in the database.
type DurableMutex struct {
	conn  db.DBTX
	owner string
}

// NewDurableMutex returns the DurableMutex of owner, a text of 1 to 1024 bytes. With "" it belongs
// to nobody in particular, and any caller without an owner's name can release it.
//
// On a *pgxpool.Pool every call is a transaction of its own, and is repeated when the database asks
// for it (see IsRetryable), up to 10 times. On a pgx.Tx it belongs to that transaction: rolled
// back, it never happened, and repeating is up to the caller. On a *pgx.Conn it belongs to the
// transaction that is open there, or is one of its own, and is not repeated.
func NewDurableMutex(conn db.DBTX, owner string) DurableMutex {
	return DurableMutex{conn, owner}
}

// Acquire returns true when this call acquired the mutex of taskID, and false when it is acquired.
// Exactly one of any number of concurrent callers gets true. It makes a mutex that is new.
//
// Contention: it waits for a transaction that has acquired the mutex and not ended. To bound that
// cancel ctx, or set lock_timeout or statement_timeout. On a pool the mutex is acquired when
// Acquire returns, and the call is repeated as NewDurableMutex says. On a transaction it is
// acquired when that commits, and until then others wait.
//
// Errors are wrapped. errors.As reaches the *pgconn.PgError with its SQLSTATE. 22023 is a task or
// owner that is empty or longer than 1024 bytes, 22021 one that is no text. 25006 is a standby or
// read-only transaction. 40001 and 40P01 are to be retried.
func (m DurableMutex) Acquire(ctx context.Context, taskID string) (bool, error) {
	return ask(ctx, m.conn, "acquire mutex", taskID, func(q *db.Queries) (bool, error) {
		return q.AcquireMutex(ctx, taskID, m.owner)
	})
}

// Release returns true when this call released the mutex of taskID, and false when it is not
// acquired, or by another owner.
//
// Contention: it waits for a transaction that has released the mutex and not ended. On a pool the
// mutex is free when Release returns, and the call is repeated as NewDurableMutex says. On a
// transaction it is free when that commits. Errors are those of Acquire.
func (m DurableMutex) Release(ctx context.Context, taskID string) (bool, error) {
	return ask(ctx, m.conn, "release mutex", taskID, func(q *db.Queries) (bool, error) {
		return q.ReleaseMutex(ctx, taskID, m.owner)
	})
}

// ask makes one call whose answer is yes or no.
func ask(ctx context.Context, conn db.DBTX, verb, id string, asking func(*db.Queries) (bool, error),
) (answer bool, err error) {
	err = call(ctx, conn, func(q *db.Queries) (err error) {
		answer, err = asking(q)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("locks: %s %.60q: %w", verb, id, err)
	}
	return answer, nil
}
