package locks

import (
	"context"
	"time"

	"github.com/seed4787c507/locks/db"
)

var _ Timeout = TimeSlot{}

// A TimeSlot is the Timeout that cuts time into slots of one length, aligned to the epoch, and
// grants each slot once. An hourly task can be acquired at 10:59 and again at 11:00.
type TimeSlot struct {
	conn       db.DBTX
	resolution time.Duration
}

// NewTimeSlot returns the TimeSlot whose slots are as long as resolution, at least a microsecond.
// NewDurableMutex says what happens on a pool, on a transaction and on a connection.
func NewTimeSlot(conn db.DBTX, resolution time.Duration,
) TimeSlot {
	return TimeSlot{conn, resolution}
}

// Acquire returns true for the first call of the current slot, by the database's clock, and false
// for the others. Exactly one of any number of concurrent callers gets true. A task that is new is
// made.
//
// Contention: it waits for a transaction that has acquired the task and not ended. On a pool the
// grant stands when Acquire returns. On a transaction it stands when that commits, and rolled back
// it never was.
//
// Errors are those of DurableMutex.Acquire, and 22023 for a resolution below a microsecond.
func (t TimeSlot) Acquire(ctx context.Context, taskID string) (bool, error) {
	return ask(ctx, t.conn, "acquire time slot", taskID, func(q *db.Queries) (bool, error) {
		return q.AcquireTimeSlot(ctx,
			db.AcquireTimeSlotParams{TaskID: taskID, Resolution: t.resolution},
		)
	})
}
