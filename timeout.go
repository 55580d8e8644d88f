package locks

import (
	"context"

	"github.com/seed4787c507/locks/db"
)

// A Timeout can be acquired again once some time has passed, and nobody releases it.
// IntervalTimeout and TimeSlot are two. They differ in what that time is.
type Timeout interface {
	// Acquire returns true when this call acquired the task, and false when it is too soon.
	Acquire(ctx context.Context, taskID string) (bool, error)
}

var _ Timeout = IntervalTimeout{}

// An IntervalTimeout is the Timeout that counts a task's interval, set by lock.create_timeout, from
// the last grant.
type IntervalTimeout struct{ conn db.DBTX }

// NewIntervalTimeout returns the IntervalTimeout. NewDurableMutex says what happens on a pool, on a
// transaction and on a connection.
func NewIntervalTimeout(conn db.DBTX) IntervalTimeout { return IntervalTimeout{conn} }

// Acquire returns true when the interval of taskID has passed since the last grant. Then it counts
// from now. Otherwise it returns false. Exactly one of any number of concurrent callers gets true.
//
// Contention: it waits for a transaction that has acquired the task and not ended. On a pool the
// grant stands when Acquire returns. On a transaction it stands when that commits, and rolled back
// it never was.
//
// Errors are those of DurableMutex.Acquire, and P0002 for a task that was never created.
func (t IntervalTimeout) Acquire(ctx context.Context, taskID string) (bool, error) {
	return ask(ctx, t.conn, "acquire timeout", taskID, func(q *db.Queries) (bool, error) {
		return q.AcquireTimeout(ctx, taskID)
	})
}
