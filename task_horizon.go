package locks

import (
	"time"

	"github.com/seed4787c507/locks/db"
)

// A taskHorizon says how far back a look goes. After a full batch it goes to where that ended,
// after another to shortly before its end, and now and then to the beginning. Under an old snapshot
// a look from the beginning passes all that was done since, so it gets a twentieth of the time.
type taskHorizon struct {
	mark  *time.Time    // where to look from; nil: from the beginning
	short bool          // the last look was from the mark
	began time.Time     // when the last one from the beginning was
	took  time.Duration // and how long
	holds time.Duration // how long after that the mark is good
}

// Tasks may be committed in another order than they become available in.
const overlap = 50 * time.Millisecond

// since is where a look that begins now looks from.
func (h *taskHorizon) since(now time.Time) *time.Time {
	if now.Sub(h.began) >= h.holds {
		return nil
	}
	return h.mark
}

// looked notes what a look has found that had room for so many.
func (h *taskHorizon) looked(began time.Time, since *time.Time, room int, found []db.Task) {
	h.short = since != nil
	if !h.short {
		h.began, h.took = began, time.Since(began)
	}
	h.holds = 20 * h.took
	if len(found) == 0 {
		return
	}
	last := found[len(found)-1]
	before := last.AvailableAt.Add(-overlap)
	switch {
	case len(found) < room && before.Year() >= 0: // Else there may be no such time.
		h.mark = &before
	case len(found) == room && (last.Attempt == 1 || last.Timeout == nil):
		h.mark, h.holds = &last.AvailableAt, max(time.Second, h.holds)
	default:
		// Where one may have timed out there may be more, which only a look from the beginning finds.
		h.mark = nil
	}
}

// forget makes the next look one from the beginning, and says whether the last one was not.
func (h *taskHorizon) forget() (short bool) {
	h.holds = 0
	return h.short
}
