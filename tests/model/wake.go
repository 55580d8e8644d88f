package model

import "fmt"

// Wake is the model of how an idle worker is woken: producers skip the notification while nobody idles.
//
//	producer: begin; get an id; insert; read on a new snapshot whether anybody idles; if so notify; commit
//	worker:   capture; nothing: commit that it idles; read which ids are open; capture; nothing: sleep, and capture again when one of these is over
//	          or a notification comes; something: leave the list, or stay and capture again
//
// Ids grow. A snapshot names the open ids below the newest that is over, and none above it; a worker that gets an id of its own first
// knows that all below that were given.
type Wake struct {
	// Faults and other servers. The zero value is the protocol on PostgreSQL.
	LooksFirst     bool // the producer reads who idles before it gets its id
	ReadsFirst     bool // the worker reads which ids are open before it commits that it idles
	SkipsOpen      bool // the worker does not wait for those who were open
	SkipsYoung     bool // the worker waits for the ids that its snapshot names, and has none of its own
	CapturesOnce   bool // the worker sleeps without a second capture
	HiddenIDs      bool // YugabyteDB: the id of a transaction on another node may be overlooked
	AlwaysNotifies bool // YugabyteDB: the producer notifies in any case
	LosesListener  bool // the listener's connection may break, and notifications are lost until it is back
	SleepsOn       bool // after a reconnect nobody is woken
}

const (
	producers = 2
	idlers    = 2
)

type producer struct {
	id, looked bool
	ended      bool
	notify     bool
	young      bool // no id above its own is over
}

type idler struct {
	at       uint8 // 0 awake, 1 found nothing, 2 has written its line, 3 has read the open ids and committed its line, 4 asleep, 5 awake and listed
	reads    bool  // it has read which ids are open
	idles    bool  // the line is committed
	older    uint8 // producers with an id below that of its uncommitted line
	awaits   uint8 // producers that were open when it read
	notified bool
}

type wakeState struct {
	tasks     uint8 // committed and not captured
	producers [producers]producer
	olders    [producers]uint8 // producers with an id below this one's
	workers   [idlers]idler
	deaf      bool // the listener's connection is broken
}

// Check visits every state.
func (c Wake) Check() Result {
	return Explore([]wakeState{{}}, c.steps, func(s wakeState) []string {
		if s.tasks == 0 || s.deaf {
			return nil
		}
		for _, p := range s.producers {
			if !p.ended && (p.id || p.looked) {
				return nil
			}
		}
		for _, w := range s.workers {
			if w.at != 4 || w.notified {
				return nil
			}
		}
		return []string{"a task waits and everybody sleeps"}
	})
}

// withIDs are the producers that have an id and are not over.
func (s *wakeState) withIDs() (set uint8) {
	for i, p := range s.producers {
		if p.id {
			set |= 1 << i
		}
	}
	return set
}

// over notes that an id is over, which these are below: snapshots name them from now on.
func (s *wakeState) over(older uint8) {
	for i := range s.producers {
		if older>>i&1 == 1 {
			s.producers[i].young = false
		}
	}
}

func (c Wake) steps(s wakeState, visit func(string, wakeState)) {
	for i, p := range s.producers {
		to := func(step string, change func(s *wakeState, p *producer)) {
			next := s
			change(&next, &next.producers[i])
			visit(fmt.Sprintf("producer %d %s", i, step), next)
		}
		end := func(s *wakeState, p *producer) {
			s.over(s.olders[i])
			s.olders[i] = 0
			*p = producer{ended: true}
			for j := range s.producers {
				s.olders[j] &^= 1 << i
			}
			for j := range s.workers {
				w := &s.workers[j]
				w.older &^= 1 << i
				if w.awaits>>i&1 == 1 {
					if w.awaits &^= 1 << i; w.at == 4 {
						*w = idler{at: 5, reads: true, idles: w.idles, awaits: w.awaits, notified: w.notified} // it looks again
					}
				}
			}
		}
		switch {
		case p.ended:
			if s.tasks < 2 {
				to("begins anew", func(_ *wakeState, p *producer) { *p = producer{} })
			}
			continue
		case !p.id && p.looked == c.LooksFirst:
			to("gets its id and inserts", func(s *wakeState, p *producer) {
				s.olders[i] = s.withIDs()
				p.id, p.young = true, true
			})
		case !p.looked:
			to("looks who idles", func(s *wakeState, p *producer) {
				p.looked, p.notify = true, c.AlwaysNotifies
				for _, w := range s.workers {
					p.notify = p.notify || w.idles
				}
			})
		default:
			to("commits", func(s *wakeState, p *producer) {
				s.tasks++
				for j := range s.workers {
					if p.notify && !s.deaf {
						s.workers[j].notified = true
					}
				}
				end(s, p)
			})
		}
		if p.id || p.looked {
			to("rolls back", end)
		}
	}
	for i, w := range s.workers {
		to := func(step string, change func(s *wakeState, w *idler)) {
			next := s
			change(&next, &next.workers[i])
			visit(fmt.Sprintf("worker %d %s", i, step), next)
		}
		capture := func(s *wakeState, w *idler, otherwise uint8) {
			if s.tasks > 0 {
				s.tasks--
				*w = idler{}
				return
			}
			w.at = otherwise
		}
		again := func(step string) {
			if s.tasks == 0 {
				to(step+" and finds nothing", func(_ *wakeState, w *idler) { w.at, w.notified = 4, false })
				return
			}
			to(step+" and leaves the list", func(s *wakeState, w *idler) { capture(s, w, 0) })
			to(step+" and stays listed", func(s *wakeState, w *idler) {
				s.tasks--
				w.at, w.notified = 5, false
			})
		}
		read := func(hidden uint8) func(s *wakeState, w *idler) {
			return func(s *wakeState, w *idler) {
				w.reads = true
				w.awaits = s.withIDs() &^ hidden
				for j, p := range s.producers {
					if c.SkipsYoung && p.young {
						w.awaits &^= 1 << j
					}
				}
				if c.SkipsOpen {
					w.awaits = 0
				}
			}
		}
		reads := func() {
			to("reads which ids are open", read(0))
			if c.HiddenIDs {
				to("reads which ids are open and overlooks one", read(1))
				to("reads which ids are open and overlooks both", read(3))
			}
		}
		switch w.at {
		case 0:
			to("captures", func(s *wakeState, w *idler) { w.notified = false; capture(s, w, 1) })
		case 1:
			if c.ReadsFirst && !w.reads {
				reads()
				break
			}
			to("writes that it idles", func(s *wakeState, w *idler) { w.at, w.older = 2, s.withIDs() })
		case 2:
			to("commits that it idles", func(s *wakeState, w *idler) {
				s.over(w.older)
				w.idles, w.at, w.older = true, 3, 0
			})
		case 3:
			switch {
			case !w.reads:
				reads()
			case c.CapturesOnce:
				to("falls asleep", func(_ *wakeState, w *idler) { w.at = 4 })
			default:
				again("captures once more")
			}
		case 4:
			if w.notified {
				to("is woken", func(_ *wakeState, w *idler) { w.at = 5 })
			}
		case 5:
			again("captures")
		}
	}
	if c.LosesListener && !s.deaf {
		next := s
		next.deaf = true
		visit("the listener's connection breaks", next)
	}
	if s.deaf {
		next := s
		next.deaf = false
		for j := range next.workers {
			next.workers[j].notified = next.workers[j].notified || !c.SleepsOn
		}
		visit("the listener is back", next)
	}
}
