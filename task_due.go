package locks

import "time"

// A taskDue asks when a task falls due or times out. It does not ask more often than its own cost
// allows, which is high only while an old snapshot keeps dead rows from being removed.
type taskDue struct {
	rare                // the question
	stuck time.Duration // how long to wait for a task that is due and cannot be had
}

const (
	shortestStuck = 100 * time.Millisecond
	longestStuck  = time.Second
)

// next is after how long there is something to look for; 0: not by itself.
func (d *taskDue) next(horizon *taskHorizon, ask func() ([]time.Duration, error),
) (time.Duration, error) {
	if pause := d.rest(time.Now()); d.took > time.Millisecond && pause > 0 {
		return pause, nil
	}
	asked := time.Now()
	due, err := ask()
	d.rare = rare{asked, time.Since(asked)}
	switch {
	case err != nil || len(due) == 0:
		return 0, err
	case due[0] > 0:
		d.stuck = 0
		return due[0], nil
	case -due[0] >= overlap && horizon.forget():
		d.rare = rare{} // the next look has its own answer
		return time.Millisecond, nil
	}
	// Somebody's open transaction holds a task that is due. When it rolls back, nobody says so.
	d.stuck = min(max(2*d.stuck, shortestStuck), longestStuck)
	return d.stuck, nil
}
