package locks

import (
	"cmp"
	"context"
	"time"

	"github.com/seed4787c507/locks/db"
)

// A Throttle grants a resource no more often than its interval and permits allow, and never waits.
// The resource is made by lock.create_throttled_resource, or on first use: see Every.
type Throttle struct {
	conn     db.DBTX
	details  string
	interval time.Duration
	permits  int32
}

// NewThrottle returns the Throttle that stores details with each grant, to say who and why. Details
// are a text of 1 to 1024 bytes that is not blank. NewDurableMutex says what happens on a pool, on
// a transaction and on a connection.
func NewThrottle(conn db.DBTX, details string) Throttle {
	return Throttle{conn: conn, details: details}
}

// Every returns a Throttle whose Acquire makes the resource when it is new. It is granted at most
// permits times (1 to 100) in any window of the interval. A resource that had other limits has
// these from then on, so all its callers should say the same. Changing them waits for a
// transaction that has the resource; otherwise Acquire goes on never to wait. For resources by the
// thousand, such as one for each customer, have lock.drop_unused_throttled_resources run.
func (t Throttle) Every(interval time.Duration, permits int) Throttle {
	t.interval, t.permits = interval, clamp(permits)
	return t
}

// Acquire returns true when this call was granted the resource, and false when it is too soon.
//
// Contention: it never waits. A resource that an open transaction has just locked is denied at
// once. On a pool the grant stands when Acquire returns. On a transaction it stands when that
// commits, and rolled back it never was.
//
// Errors are those of DurableMutex.Acquire, 22023 for bad details, interval or permits, and P0002
// for a resource that was never created, without Every.
func (t Throttle) Acquire(ctx context.Context, resourceID string) (bool, error) {
	return ask(ctx, t.conn, "acquire throttle", resourceID, func(q *db.Queries) (bool, error) {
		if t.interval != 0 || t.permits != 0 {
			return q.LockThrottledResourceEvery(ctx, db.LockThrottledResourceEveryParams{
				ResourceID: resourceID, Details: t.details, ThrottleInterval: t.interval,
				Permits: cmp.Or(t.permits, -1), // 0 would be the default
			})
		}
		return q.LockThrottledResource(ctx, resourceID, t.details)
	})
}
