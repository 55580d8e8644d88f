package locks

import (
	"context"

	"github.com/seed4787c507/locks/db"
)

// A Timeout can be acquired again once some time has passed, and nobody releases it.
//
// The three kinds differ in what that time is. Of each, exactly one of any number of concurrent callers gets true, and calls
// repeat and fail as those of NewMutex do.
type Timeout interface {
	// Acquire returns true when this call acquired the task, and false when it is too soon.
	Acquire(ctx context.Context, taskID string) (bool, error)
}

// NewTimeout returns the Timeout that counts a task's interval, set by lock.create_timeout, from the last grant. A task that
// was never created is an error (P0002). A call waits for a transaction that has acquired the task and not ended.
func NewTimeout(conn db.DBTX) Timeout { return timeout{conn} }

type timeout struct{ conn db.DBTX }

func (t timeout) Acquire(ctx context.Context, taskID string) (bool, error) {
	return ask(ctx, t.conn, "acquire timeout", taskID, func(q *db.Queries) (bool, error) {
		return q.AcquireTimeout(ctx, taskID)
	})
}
