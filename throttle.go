package locks

import (
	"context"

	"github.com/seed4787c507/locks/db"
)

// NewThrottle returns the Timeout that never waits: a resource, made by lock.create_throttled_resource, is granted as many
// times as it has permits (1 by default) in any window of its interval, and one that open transactions have just locked is
// denied at once. details is stored with a grant, to say who and why (1 to 1024 bytes). A resource that was never created
// is an error (P0002).
func NewThrottle(conn db.DBTX, details string) Timeout { return throttle{conn, details} }

type throttle struct {
	conn    db.DBTX
	details string
}

func (t throttle) Acquire(ctx context.Context, resourceID string) (bool, error) {
	return ask(ctx, t.conn, "lock throttled resource", resourceID, func(q *db.Queries) (bool, error) {
		return q.LockThrottledResource(ctx, db.LockThrottledResourceParams{ResourceID: resourceID, Details: t.details})
	})
}
