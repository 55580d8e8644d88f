package model

import "fmt"

// Keys is the model of tasks of one key, of which one may be in progress: workers look, take the key's lock, count, take a task,
// settle it, and take the next in the same transaction; they roll back and die.
type Keys struct {
	// Faults. The zero value is: count in a statement behind the lock, which is held until the transaction ends.
	WithoutLock   bool // nobody asks for the key's lock
	CountsBefore  bool // what was seen before the lock is taken for what is
	GivesUpEarly  bool // the lock is given up before the commit
	ForgetsWakeUp bool // who leaves the place says so only where it sees a task waiting
}

type keyAt uint8

const (
	keyIdle    keyAt = iota
	keyAsleep        // found nothing, is listed as idle, and looks again when it is notified
	keyLooked        // has seen how many are in progress
	keyLocked        // has the key's lock
	keyCounted       // has counted behind it
	keyTook          // has a task, not committed
	keyWorks         // committed
	keySettled       // has settled its task, not committed
	keyEnded         // its program has ended; the other workers go on
)

type keyWorker struct {
	at    keyAt
	seen  uint8 // in progress, its own changes included
	freed bool  // this transaction has settled a task
	tells bool  // it notifies when it commits
	told  bool  // it was notified since its look began
}

func (w keyWorker) lock() bool { return w.at == keyLocked || w.at == keyCounted || w.at == keyTook }

type keyState struct {
	workers  [3]keyWorker
	waiting  uint8 // committed
	running  uint8 // committed
	orphans  uint8 // of running: their workers have died
	creating uint8 // producers that have inserted one, and not committed
	created  uint8
}

// Check visits every state.
func (k Keys) Check() Result {
	return Explore([]keyState{{waiting: 2}}, k.steps, func(s keyState) []string {
		var wrong []string
		if s.running > 1 {
			wrong = append(wrong, "two of a key in progress")
		}
		sleepers, others := 0, 0
		for _, w := range s.workers {
			switch w.at {
			case keyAsleep:
				sleepers++
			case keyEnded:
			default:
				others++
			}
		}
		if s.waiting > 0 && s.running == 0 && s.creating == 0 && sleepers > 0 && others == 0 {
			wrong = append(wrong, "forgotten")
		}
		return wrong
	})
}

func (k Keys) steps(s keyState, visit func(string, keyState)) {
	notify := func(s *keyState) {
		for i := range s.workers {
			if s.workers[i].at == keyAsleep {
				s.workers[i] = keyWorker{}
			} else {
				s.workers[i].told = s.workers[i].at != keyEnded && s.workers[i].at != keyIdle
			}
		}
	}
	if s.created < 1 {
		next := s
		next.created, next.creating = s.created+1, 1
		visit("a producer inserts", next)
	}
	if s.creating > 0 {
		next := s
		next.creating, next.waiting = 0, s.waiting+1
		notify(&next)
		visit("a producer commits", next)
	}
	for i, w := range s.workers {
		to := func(step string, change func(s *keyState, w *keyWorker)) {
			next := s
			change(&next, &next.workers[i])
			visit(fmt.Sprintf("%d %s", i, step), next)
		}
		locked, taken := false, uint8(0)
		for j, other := range s.workers {
			if j != i {
				locked = locked || other.lock() && !(k.GivesUpEarly && other.at == keyTook)
				if other.at == keyTook {
					taken++ // its row is locked, and skipped
				}
			}
		}
		running := s.running
		if w.freed {
			running--
		}
		open := running == 0 && s.waiting > taken
		// Nothing was taken: a transaction that has settled commits that, and sleeps.
		nothing := func(s *keyState, w *keyWorker) {
			told := w.told
			if w.freed {
				s.running--
				if w.tells {
					notify(s)
				}
			}
			if told {
				*w = keyWorker{}
			} else {
				*w = keyWorker{at: keyAsleep}
			}
		}
		if w.at != keyIdle && w.at != keyAsleep && w.at != keyEnded {
			to("dies or rolls back", func(s *keyState, w *keyWorker) {
				if w.at == keyWorks || w.freed {
					s.orphans++
				}
				*w = keyWorker{}
			})
		}
		if w.at == keySettled {
			to("commits, and ends", func(s *keyState, w *keyWorker) {
				nothing(s, w)
				*w = keyWorker{at: keyEnded}
			})
		}
		switch w.at {
		case keyIdle, keySettled:
			if s.orphans > 0 && w.at == keyIdle {
				to("takes one over", func(s *keyState, w *keyWorker) { s.orphans--; w.at = keyWorks })
				break // until then its deadline keeps workers from sleeping for long
			}
			if open {
				to("looks", func(_ *keyState, w *keyWorker) { w.at, w.seen, w.told = keyLooked, running, false })
			} else {
				to("finds nothing", func(s *keyState, w *keyWorker) {
					w.told = false
					nothing(s, w)
				})
			}
		case keyLooked:
			if locked && !k.WithoutLock {
				// A look at what waits says that the key has a place: it looks again after a pause.
				to("passes the key over", func(s *keyState, w *keyWorker) {
					nothing(s, w)
					*w = keyWorker{}
				})
				break
			}
			to("has the lock", func(_ *keyState, w *keyWorker) { w.at = keyLocked })
		case keyLocked:
			to("counts", func(_ *keyState, w *keyWorker) {
				w.at = keyCounted
				if !k.CountsBefore {
					w.seen = running
				}
			})
		case keyCounted:
			if w.seen == 0 && s.waiting > taken {
				to("takes a task", func(_ *keyState, w *keyWorker) { w.at, w.tells = keyTook, false })
			} else {
				to("lets the key go", nothing)
			}
		case keyTook:
			to("commits", func(s *keyState, w *keyWorker) {
				s.waiting--
				if !w.freed {
					s.running++
				}
				*w = keyWorker{at: keyWorks}
			})
		case keyWorks:
			to("settles", func(_ *keyState, w *keyWorker) {
				*w = keyWorker{at: keySettled, freed: true, tells: !k.ForgetsWakeUp || s.waiting > 0}
			})
		case keyAsleep, keyEnded:
		}
	}
}
