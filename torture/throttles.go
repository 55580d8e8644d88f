//go:build linux

package main

import (
	"sort"
	"strconv"
	"time"
)

var (
	throttleKind = &kind{name: "throttle", weight: 14, round: throttleRound, check: checkWindows}
	timeoutKind  = &kind{name: "timeout", weight: 8, round: timeoutRound, check: checkWindows}
	slotKind     = &kind{name: "time_slot", weight: 8, round: slotRound, check: checkSlot}
)

// clocked calls between two looks at the server's clock.
func clocked(call string) string {
	return "select (extract(epoch from clock_timestamp()) * 1000000)::bigint, " + call + ", (extract(epoch from clock_timestamp()) * 1000000)::bigint"
}

// between is a grant, and the times by the server's clock before and after it.
func (s *session) between(call, id string, args ...any) (result outcome, before, after int64) {
	var granted bool
	result, _ = s.ask([]any{&before, &granted, &after}, clocked(call), append([]any{id}, args...)...)
	if result == yes && !granted {
		result = no
	}
	return result, before, after
}

// permitsOf is how many permits a throttled resource of ours has, and its interval.
func permitsOf(id string) (int64, time.Duration) {
	if (id[len(id)-1]-'0')%2 == 1 {
		return 3, 200 * time.Millisecond
	}
	return 1, 100 * time.Millisecond
}

// throttleRound asks for a permit, as a caller that is too eager.
func throttleRound(s *session) error {
	if s.dice.IntN(4) > 0 {
		return s.throttles(4)
	}
	id, window := s.slot("h", 4)
	permits, interval := permitsOf(id)
	if !s.once(id, "select lock.create_throttled_resource($1, $2, $3)", id, interval, permits) {
		return nil
	}
	p := s.call(window, "throttle", "lock", id, permits, interval.Microseconds())
	details := strconv.FormatInt(p.number, 10)
	result, before, after := s.between("lock.lock_throttled_resource($1, $2)", id, details)
	if result == unknown {
		// The newest grant tells whose it is; when that is another's, it may have come after this one.
		found, err := s.until(func() outcome {
			found, _ := s.ask([]any{&before},
				"select (extract(epoch from last_locked) * 1000000)::bigint from lock.throttled_resource_status where resource_id = $1 and last_locker_details = $2", id, details)
			return found
		})
		if err != nil {
			return err
		}
		if found == yes {
			result, after = yes, before
		}
	}
	s.answer(p, result, before, after)
	return nil
}

// throttles asks for permits of several resources in one round trip and one transaction.
func (s *session) throttles(n int) error {
	type answer struct {
		before, after int64
		granted       bool
	}
	var calls []pending
	var statements []statement
	answers := make([]answer, n)
	for i := range n {
		id, window := s.slot("h", 4)
		permits, interval := permitsOf(id)
		if !s.once(id, "select lock.create_throttled_resource($1, $2, $3)", id, interval, permits) {
			return nil
		}
		p, a := s.call(window, "throttle", "lock", id, permits, interval.Microseconds()), &answers[i]
		calls = append(calls, p)
		statements = append(statements, statement{
			sql: clocked("lock.lock_throttled_resource($1, $2)"), args: []any{id, strconv.FormatInt(p.number, 10)}, dest: []any{&a.before, &a.granted, &a.after},
		})
	}
	result, _ := s.pipeline(statements...)
	at := now()
	for i, p := range calls {
		if result == yes && !answers[i].granted {
			s.answerAt(at, p, no)
		} else {
			s.answerAt(at, p, result, answers[i].before, answers[i].after)
		}
	}
	return nil
}

func timeoutRound(s *session) error {
	id, window := s.slot("o", 3)
	interval := 50 * time.Millisecond
	if !s.once(id, "select lock.create_timeout($1, $2)", id, interval) {
		return nil
	}
	p := s.call(window, "timeout", "acquire", id, 1, interval.Microseconds())
	result, before, after := s.between("lock.acquire_timeout($1)", id)
	s.answer(p, result, before, after)
	return nil
}

// checkWindows looks for more grants than permits that all lie in one interval, whenever in their calls they were. Both clocks must
// say so, since a server's clock may be set back and come to the same time again.
func checkWindows(c *checker, id string, ops []*op) {
	var grants []*op
	if len(ops) > 0 && c.clockMoved(ops[0].kind, ops) {
		return
	}
	for _, o := range ops {
		if o.outcome == yes {
			grants = append(grants, o)
		}
	}
	sort.Slice(grants, func(i, j int) bool { return grants[i].out[1] < grants[j].out[1] })
	for i, last := range grants {
		permits, interval := last.in[0], last.in[1]
		within := []*op{last}
		for j := i - 1; j >= 0 && last.out[1]-grants[j].out[1] <= interval; j-- {
			apart := max(last.ret, grants[j].ret) - min(last.call, grants[j].call)
			if last.out[1]-grants[j].out[0] <= interval && apart < interval*1000+int64(10*time.Second) {
				within = append(within, grants[j])
			}
		}
		if int64(len(within)) > permits {
			c.violate(last.kind, id, "more grants than permits in one interval", within...)
		}
	}
}

// slotRound asks for a slot of time near the present one, as a producer of data points.
func slotRound(s *session) error {
	id, window := s.slot("s", 4)
	const resolution = 10 * time.Millisecond
	slot := now()/int64(resolution) + int64(s.dice.IntN(4)) - 2
	p := s.call(window, "time_slot", "acquire", id, slot)
	s.answer(p, s.truth("select lock.acquire_time_slot($1, $2, $3)", id, resolution, time.UnixMilli(slot*resolution.Milliseconds()).Add(time.Duration(s.dice.IntN(10))*time.Millisecond)))
	return nil
}

// checkSlot looks for an order in which every slot that is granted is newer than all before, and every one that is denied is not.
func checkSlot(c *checker, id string, ops []*op) {
	var history []*op
	for _, o := range ops {
		if o.outcome != failed {
			history = append(history, o)
		}
	}
	linearizable(c, "time_slot", id, 0, history, func(newest int64, o *op) (bool, int64) {
		slot := o.in[0]
		switch o.outcome {
		case yes:
			return slot > newest, slot
		case no:
			return slot <= newest, newest
		}
		return true, max(slot, newest)
	})
}
