package locks

import (
	"context"

	"github.com/seed4787c507/locks/db"
)

// A Throttle grants a resource, made by lock.create_throttled_resource, no more often than its
// interval and permits allow, and never waits.
type Throttle struct {
	conn    db.DBTX
	details string
}

// NewThrottle returns the Throttle that stores details with each grant, to say who and why. Details
// are a text of 1 to 1024 bytes that is not blank. NewMutex says what happens on a pool, on a
// transaction and on a connection.
func NewThrottle(conn db.DBTX, details string) Throttle { return Throttle{conn, details} }

// Acquire returns true when this call was granted the resource, and false when it is too soon.
//
// Contention: it never waits. A resource that an open transaction has just locked is denied at
// once. On a pool the grant stands when Acquire returns. On a transaction it stands when that
// commits, and rolled back it never was.
//
// Errors are those of DurableMutex.Acquire, 22023 for bad details, and P0002 for a resource that
// was never created.
func (t Throttle) Acquire(ctx context.Context, resourceID string) (bool, error) {
	return ask(ctx, t.conn, "acquire throttle", resourceID, func(q *db.Queries) (bool, error) {
		return q.LockThrottledResource(ctx, db.LockThrottledResourceParams{ResourceID: resourceID, Details: t.details})
	})
}
