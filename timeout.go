package locks

import (
	"context"
	"time"

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

// NewTimeSlot returns the Timeout that cuts time into slots of resolution, aligned to the epoch, and grants each slot once: an
// hourly task can be acquired at 10:59 and again at 11:00. A task that is new is made. A call waits for a transaction that
// has acquired the task and not ended. The database counts in microseconds; a resolution below one is an error (22023).
func NewTimeSlot(conn db.DBTX, resolution time.Duration) Timeout { return timeSlot{conn, resolution} }

type timeSlot struct {
	conn       db.DBTX
	resolution time.Duration
}

func (t timeSlot) Acquire(ctx context.Context, taskID string) (bool, error) {
	return ask(ctx, t.conn, "acquire time slot", taskID, func(q *db.Queries) (bool, error) {
		return q.AcquireTimeSlot(ctx, db.AcquireTimeSlotParams{TaskID: taskID, Resolution: t.resolution})
	})
}

// NewThrottle returns the Timeout that never waits: a resource, made by lock.create_throttled_resource, that an open
// transaction has just locked is denied at once. details is stored with a grant, to say who and why (1 to 1024 bytes). A
// resource that was never created is an error (P0002).
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
