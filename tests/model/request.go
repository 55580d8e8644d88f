package model

import (
	"fmt"
	"math/bits"
)

// Requests is the model of the queue of one entity: who works on it holds its lock, and producers look at nothing.
//
//	worker:   meet a request; try the lock; read what is outstanding; take it; settle it, or put it back until later; commit; let go of the lock
//	producer: insert and commit, in any order
//
// A conflict on YugabyteDB starts the capture again, which undoes its lock; there, commit and letting go are one step.
type Requests struct {
	PostgreSQL bool
	Snapshot   bool // one snapshot for the whole transaction: lock.capture_request refuses that

	// Faults. The zero value is the protocol.
	LetsGoEarly     bool // the lock is given up before the commit
	LooksFirst      bool // what is outstanding is read before the lock
	KeepsPassedOver bool // the lock of an entity that has nothing for this worker is kept until the transaction ends
}

const (
	requests   = 3
	createdBy  = 1 // the request that is a create; another has a lower number
	hands      = 2
	requestNew = 1
	requestPut = 2 // back until later
	requestEnd = 3
)

const (
	atRest  = iota
	hasMet  // a request, on the walk's snapshot
	hasLock // and has not looked
	hasRead // what is outstanding
	hasTaken
	hasCommitted // and still has the lock
	keepsLock    // of an entity that it does not work on
)

type hand struct {
	at    uint8
	lock  bool
	seen  [requests]uint8 // its snapshot
	taken uint8           // a bit for each request
	first bool            // a create was outstanding when it got the lock
}

type requestState struct {
	requests [requests]uint8
	hands    [hands]hand
	wrong    [4]bool
}

var requestWrongs = [4]string{"a put-back entity did not wait", "an entity in two hands", "an update before its create", "settled twice"}

// Check visits every state.
func (c Requests) Check() Result {
	return Explore([]requestState{{}}, c.steps, func(s requestState) (wrong []string) {
		for i, name := range requestWrongs {
			if s.wrong[i] {
				wrong = append(wrong, name)
			}
		}
		for _, h := range s.hands {
			if h.at == keepsLock {
				wrong = append(wrong, "in others' way")
			}
		}
		return wrong
	})
}

// outstanding is what a capture takes of what it sees: the create alone, or all updates; nothing when some wait.
func outstanding(seen [requests]uint8) (taken uint8) {
	for i, status := range seen {
		switch {
		case status == requestPut:
			return 0
		case status == requestNew:
			taken |= 1 << i
		}
	}
	if taken>>createdBy&1 == 1 {
		taken = 1 << createdBy
	}
	return taken
}

func (c Requests) steps(s requestState, visit func(string, requestState)) {
	for i, status := range s.requests {
		next := s
		switch status {
		case 0:
			next.requests[i] = requestNew
			visit(fmt.Sprintf("request %d is committed", i), next)
		case requestPut:
			next.requests[i] = requestNew
			visit(fmt.Sprintf("request %d is due", i), next)
		}
	}
	for i, h := range s.hands {
		other := s.hands[1-i]
		to := func(step string, change func(s *requestState, h *hand)) {
			next := s
			change(&next, &next.hands[i])
			visit(fmt.Sprintf("%d %s", i, step), next)
		}
		end := func(_ *requestState, h *hand) { *h = hand{} }
		if h.at != atRest && h.at != hasCommitted {
			to("rolls back, or dies", end)
		}
		if !c.PostgreSQL && h.at >= hasMet && h.at <= hasRead {
			to("starts again", end)
		}
		switch h.at {
		case atRest:
			if outstanding(s.requests) != 0 {
				to("meets a request", func(s *requestState, h *hand) { *h = hand{at: hasMet, seen: s.requests} })
			}
		case hasMet:
			if other.lock {
				to("passes over", end)
				break
			}
			to("gets the lock", func(s *requestState, h *hand) {
				h.at, h.lock = hasLock, true
				h.first = s.requests[createdBy] == requestNew
			})
		case hasLock:
			to("looks", func(s *requestState, h *hand) {
				if !c.LooksFirst && !c.Snapshot {
					h.seen = s.requests
				}
				h.at, h.taken = hasRead, outstanding(h.seen)
				if h.taken == 0 && c.KeepsPassedOver {
					*h = hand{at: keepsLock, lock: true}
				} else if h.taken == 0 {
					*h = hand{}
				}
			})
		case hasRead:
			if other.at == hasTaken && other.taken&h.taken != 0 {
				break // it waits for a row
			}
			to("takes", func(s *requestState, h *hand) {
				for j := range s.requests {
					if h.taken>>j&1 == 1 && s.requests[j] != h.seen[j] && (c.Snapshot || !c.PostgreSQL) {
						*h = hand{} // 40001, or it starts again
						return
					}
					if s.requests[j] == requestEnd {
						h.taken &^= 1 << j // its condition is asked again of the newest version
					}
				}
				if h.taken == 0 {
					*h = hand{}
					return
				}
				for _, status := range s.requests {
					s.wrong[0] = s.wrong[0] || status == requestPut
				}
				s.wrong[1] = s.wrong[1] || other.at == hasTaken
				s.wrong[2] = s.wrong[2] || h.first && s.requests[createdBy] == requestNew && h.taken>>createdBy&1 == 0
				h.at, h.lock, h.seen = hasTaken, !c.LetsGoEarly, [requests]uint8{}
			})
		case hasTaken:
			for _, status := range []uint8{requestEnd, requestPut} {
				to([]string{"", "", "puts back", "settles"}[status]+" and commits", func(s *requestState, h *hand) {
					for rest := h.taken; rest != 0; rest &= rest - 1 {
						j := bits.TrailingZeros8(rest)
						s.wrong[3] = s.wrong[3] || s.requests[j] == requestEnd
						s.requests[j] = status
					}
					*h = hand{at: hasCommitted, lock: h.lock}
					if !c.PostgreSQL {
						*h = hand{}
					}
				})
			}
		case hasCommitted:
			to("lets go of the lock", end)
		}
	}
}
