package locks

import (
	"time"

	"github.com/seed4787c507/locks/db"
)

// A rare thing gets a twentieth of the time at most: what took long is done less often.
type rare struct {
	began time.Time     // when it was done last
	took  time.Duration // and for how long
}

// rest is how long after now it rests.
func (r rare) rest(now time.Time) time.Duration { return 20*r.took - now.Sub(r.began) }

// A taskHorizon says how far back a look goes. After a full batch it goes to where that ended,
// after another to shortly before its end, and now and then to the beginning. Under an old snapshot
// a look from the beginning passes all that was done since, so it is rare.
type taskHorizon struct {
	rare                // the look from the beginning
	mark  *time.Time    // where to look from; nil: from the beginning
	short bool          // the last look was from the mark
	least time.Duration // how long the mark is good, however cheap a look from the beginning is
}

// Tasks may be committed in another order than they become available in.
const overlap = 50 * time.Millisecond

// since is where a look that begins now looks from.
func (h *taskHorizon) since(now time.Time) *time.Time {
	if max(h.rest(now), h.least-now.Sub(h.began)) <= 0 {
		return nil
	}
	return h.mark
}

// looked notes what a look has found that had room for so many.
func (h *taskHorizon) looked(began time.Time, since *time.Time, room int, found []db.Task) {
	h.short = since != nil
	if !h.short {
		h.rare = rare{began, time.Since(began)}
	}
	h.least = 0
	if len(found) == 0 {
		return
	}
	last := found[len(found)-1]
	before := last.AvailableAt.Add(-overlap)
	switch {
	case len(found) < room && before.Year() >= 0: // Else there may be no such time.
		h.mark = &before
	case len(found) == room && (last.Attempt == 1 || last.Timeout == nil):
		h.mark, h.least = &last.AvailableAt, time.Second
	default:
		// Where one may have timed out there may be more, which only a look from the beginning
		// finds.
		h.mark = nil
	}
}

// forget makes the next look one from the beginning, and says whether the last one was not.
func (h *taskHorizon) forget() (short bool) {
	h.rare = rare{}
	return h.short
}
