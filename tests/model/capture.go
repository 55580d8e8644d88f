package model

import "fmt"

// Capture is the model of task capture: workers take one of two tasks, settle it, are slow, or die.
type Capture struct {
	Levels     []Isolation
	PostgreSQL bool

	// Faults. The zero value is: lock the first task that is free and not locked, skip what is, raise its attempt, settle by attempt.
	WithoutLock    bool // the usual recipe: update ... where id in (select ...), with no lock in the select
	IgnoresAttempt bool // settle whatever the attempt is
}

const (
	tasks    = 2
	attempts = 3 // after which a task is not taken over any more
)

type taskStatus uint8

const (
	newTask taskStatus = iota
	inProgress
	overdue // in progress for longer than its timeout
	done
)

type task struct {
	status  taskStatus
	attempt uint8
}

type captureAt uint8

const (
	free    captureAt = iota
	chosen            // the select has seen its task and is about to lock it, or without a lock to update it
	taken             // updated, not committed
	works             // committed: it has the task
	settles           // has settled, not committed
)

type worker struct {
	at      captureAt
	level   Isolation
	task    uint8
	attempt uint8 // its own
	stale   bool  // the task was changed and committed after the snapshot
}

type captureState struct {
	tasks   [tasks]task
	workers [processes]worker
	twice   bool // a task was captured that somebody had
	late    bool // a stale worker's result was accepted
}

func (w worker) locks(t uint8) bool { return (w.at == taken || w.at == settles) && w.task == t }

// Check visits every state.
func (c Capture) Check() Result {
	return Explore([]captureState{{}}, c.steps, func(s captureState) []string {
		var wrong []string
		if s.twice {
			wrong = append(wrong, "captured twice")
		}
		if s.late {
			wrong = append(wrong, "a stale worker settled")
		}
		return wrong
	})
}

func (c Capture) steps(s captureState, visit func(string, captureState)) {
	for i, w := range s.workers {
		to := func(step string, change func(s *captureState, w *worker)) {
			next := s
			change(&next, &next.workers[i])
			visit(fmt.Sprintf("%d %s", i, step), next)
		}
		commit := func(s *captureState, t uint8) {
			for j := range s.workers {
				if other := &s.workers[j]; j != i && other.at == chosen && other.task == t {
					other.stale = true
				}
			}
		}
		locked := false
		for j, other := range s.workers {
			locked = locked || j != i && other.locks(w.task)
		}
		if w.at != free {
			to("dies", func(s *captureState, w *worker) { *w = worker{} }) // uncommitted changes were kept in the worker alone
		}
		switch w.at {
		case free:
			for _, level := range c.Levels {
				for t := range uint8(tasks) {
					if s.tasks[t].status == newTask || s.tasks[t].status == overdue && s.tasks[t].attempt < attempts {
						// The order of the tasks does not matter for what is checked, so any that is free may be the first.
						to(fmt.Sprintf("sees task %d", t), func(s *captureState, w *worker) { *w = worker{at: chosen, level: level, task: t} })
					}
				}
			}
		case chosen:
			if !c.PostgreSQL {
				to("starts again", func(s *captureState, w *worker) { *w = worker{} })
			}
			if locked {
				if !c.WithoutLock && (w.level != Serializable || c.PostgreSQL) {
					to("skips a locked task", func(s *captureState, w *worker) { *w = worker{} })
				}
				break // it waits
			}
			to("takes the task", func(s *captureState, w *worker) {
				t := &s.tasks[w.task]
				if w.stale {
					eligible := t.status == newTask || t.status == overdue && t.attempt < attempts
					switch {
					case !c.PostgreSQL || w.level != ReadCommitted, !c.WithoutLock && !eligible:
						*w = worker{} // starts again, fails with 40001, or finds its condition gone in the newest version
						return
					}
					// What the recipe asks again of the newest version is the id alone, and that has not changed.
				}
				s.twice = s.twice || t.status == inProgress || t.status == done
				w.at, w.attempt, w.stale = taken, t.attempt+1, false
			})
		case taken:
			to("rolls back", func(s *captureState, w *worker) { *w = worker{} })
			to("commits", func(s *captureState, w *worker) {
				s.tasks[w.task] = task{inProgress, w.attempt}
				w.at, w.level = works, 0
				commit(s, w.task)
			})
		case works:
			if locked {
				break // set_status waits for the row
			}
			to("settles", func(s *captureState, w *worker) {
				if t := s.tasks[w.task]; !c.IgnoresAttempt && (t.attempt != w.attempt || t.status != inProgress && t.status != overdue) {
					*w = worker{} // refused
					return
				}
				w.at = settles
			})
		case settles:
			to("commits its result", func(s *captureState, w *worker) {
				s.late = s.late || s.tasks[w.task].attempt != w.attempt
				s.tasks[w.task].status = done
				commit(s, w.task)
				*w = worker{}
			})
		}
	}
	for t := range tasks {
		if s.tasks[t].status == inProgress {
			next := s
			next.tasks[t].status = overdue
			visit(fmt.Sprintf("task %d is overdue", t), next)
		}
	}
}
