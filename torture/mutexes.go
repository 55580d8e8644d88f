//go:build linux

package main

import "strconv"

var mutexKind = &kind{name: "mutex", weight: 22, round: mutexRound, check: checkMutex}

// mutexRound acquires a mutex under an owner that nobody else has, and releases it; or tries to release somebody else's.
func mutexRound(s *session) error {
	id, window := s.slot("m", 4)
	if s.dice.IntN(20) == 0 {
		p := s.call(window, "mutex", "release", id, -1)
		s.answer(p, s.truth("select lock.release_mutex($1, 'nobody')", id))
		return nil
	}
	p := s.call(window, "mutex", "acquire", id)
	owner := strconv.FormatInt(p.number, 10)
	result := s.truth("select lock.acquire_mutex($1, $2)", id, owner)
	if result == unknown {
		// Is it mine? If not, it may still become so: the server may be at it.
		found, err := s.until(func() outcome {
			return s.truth("select coalesce(owner = $2, false) from lock.mutex_status where task_id = $1", id, owner)
		})
		if err != nil {
			return err
		}
		if found == yes {
			result = yes
		}
	}
	s.answer(p, result)
	if result != yes {
		return nil
	}
	s.die("mutex acquired")
	if s.dice.IntN(3) == 0 { // it is held for a while: others are denied
		other, _ := s.slot("m", 4)
		if other != id {
			denied := s.call(window, "mutex", "acquire", id)
			s.answer(denied, s.truth("select lock.acquire_mutex($1, $2)", id, strconv.FormatInt(denied.number, 10)))
		}
	}
	p = s.call(window, "mutex", "release", id, p.number)
	result, doubt, err := s.insist(func() outcome { return s.truth("select lock.release_mutex($1, $2)", id, owner) })
	if err != nil {
		return err
	}
	if result == no && doubt {
		result = yes // A call without an answer had done it, since nobody else releases this owner.
	}
	s.answer(p, result)
	return nil
}

// checkMutex looks for an order in which one flag with an owner gives these answers. The state is the call that has it.
func checkMutex(c *checker, id string, ops []*op) {
	var history []*op
	for _, o := range ops {
		if o.outcome != failed {
			history = append(history, o)
		}
	}
	linearizable(c, "mutex", id, 0, history, func(holder int64, o *op) (bool, int64) {
		if o.name == "acquire" {
			switch {
			case o.outcome == no:
				return holder != 0, holder
			case holder == 0:
				return true, o.number
			}
			return o.outcome == unknown, holder
		}
		mine := o.in[0] == holder
		switch {
		case o.outcome == no:
			return !mine, holder
		case mine:
			return true, 0
		}
		return o.outcome == unknown, holder
	})
}
