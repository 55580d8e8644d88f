package locks

import (
	"context"
	"time"

	"github.com/seed4787c507/locks/db"
)

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
