package model

import "fmt"

// Wake is the model of how an idle worker is woken: producers skip the notification while nobody idles.
//
//	producer: begin; insert; take a shared advisory lock; read on a new snapshot whether anybody idles; if so notify; commit
//	worker:   capture; nothing: commit that it idles; wait until those who hold the lock have ended; capture; nothing: sleep
type Wake struct {
	// Faults and other servers. The zero value is the protocol on PostgreSQL.
	ReadsFirst      bool // the producer reads before it takes the lock
	SkipsProducers  bool // the worker does not wait for the producers
	CapturesOnce    bool // the worker sleeps without a second capture
	HiddenProducers bool // YugabyteDB: pg_locks shows only transactions older than a second, so a producer may be overlooked
	AlwaysNotifies  bool // YugabyteDB: the producer notifies in any case
	LosesListener   bool // the listener's connection may break, and notifications are lost until it is back
	SleepsOn        bool // after a reconnect nobody is woken
}

const (
	producers = 2
	idlers    = 2
)

type producer struct {
	at     uint8 // 0 new, 1 begun, 2 locked (or, when it reads first, has read), 3 both, 4 ended
	notify bool
}

type idler struct {
	at       uint8 // 0 awake, 1 about to say that it idles, 2 has said so, 3 has waited for the producers, 4 asleep
	idles    bool
	awaits   uint8 // producers that held the lock
	notified bool
}

type wakeState struct {
	tasks     uint8 // committed and not captured
	producers [producers]producer
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
			if p.at != 0 && p.at != 4 {
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

func (p producer) locked(readsFirst bool) bool { return p.at == 3 || p.at == 2 && !readsFirst }

func (c Wake) steps(s wakeState, visit func(string, wakeState)) {
	for i, p := range s.producers {
		to := func(step string, change func(s *wakeState, p *producer)) {
			next := s
			change(&next, &next.producers[i])
			visit(fmt.Sprintf("producer %d %s", i, step), next)
		}
		read := func(s *wakeState, p *producer) {
			p.at++
			p.notify = c.AlwaysNotifies
			for _, w := range s.workers {
				p.notify = p.notify || w.idles
			}
		}
		lock := func(_ *wakeState, p *producer) { p.at++ }
		end := func(s *wakeState, p *producer) {
			*p = producer{at: 4}
			for j := range s.workers {
				s.workers[j].awaits &^= 1 << i
			}
		}
		switch p.at {
		case 0:
			to("inserts", func(_ *wakeState, p *producer) { p.at = 1 })
		case 1, 2:
			step, change := "takes the lock", lock
			if (p.at == 1) == c.ReadsFirst {
				step, change = "reads who idles", read
			}
			to(step, change)
			to("rolls back", end)
		case 3:
			to("rolls back", end)
			to("commits", func(s *wakeState, p *producer) {
				s.tasks++
				for j := range s.workers {
					if p.notify && !s.deaf {
						s.workers[j].notified = true
					}
				}
				end(s, p)
			})
		case 4:
			if s.tasks < 2 {
				to("begins anew", func(_ *wakeState, p *producer) { *p = producer{} })
			}
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
		switch w.at {
		case 0:
			to("captures", func(s *wakeState, w *idler) { w.notified = false; capture(s, w, 1) })
		case 1:
			to("says that it idles", func(_ *wakeState, w *idler) { w.idles, w.at = true, 2 })
		case 2:
			ask := func(hidden uint8) func(s *wakeState, w *idler) {
				return func(s *wakeState, w *idler) {
					w.at = 3
					for j, p := range s.producers {
						if p.locked(c.ReadsFirst) && !c.SkipsProducers && hidden>>j&1 == 0 {
							w.awaits |= 1 << j
						}
					}
				}
			}
			to("asks for the producers", ask(0))
			if c.HiddenProducers {
				to("asks for the producers and overlooks one", ask(1))
				to("asks for the producers and overlooks both", ask(3))
			}
		case 3:
			switch {
			case w.awaits != 0:
			case c.CapturesOnce:
				to("falls asleep", func(_ *wakeState, w *idler) { w.at = 4 })
			default:
				to("captures once more", func(s *wakeState, w *idler) { capture(s, w, 4) })
			}
		case 4:
			if w.notified {
				to("is woken", func(_ *wakeState, w *idler) { *w = idler{} })
			}
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
