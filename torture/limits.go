//go:build linux

package main

import (
	"sort"
	"time"
)

var limitKind = &kind{name: "rate_limit", weight: 10, round: limitRound, check: checkBucket}

// limitOf is what a bucket of ours has: tokens that come back per period, the period and the burst.
func limitOf(id string) (rate int64, per time.Duration, burst int64) {
	if (id[len(id)-1]-'0')%2 == 1 {
		return 70, 300 * time.Millisecond, 9
	}
	return 20, 100 * time.Millisecond, 20
}

// limitRound takes some tokens of a bucket that others are at, too.
func limitRound(s *session) error {
	id, window := s.slot("b", 3)
	rate, per, burst := limitOf(id)
	cost := 1 + s.dice.Int64N(burst)
	p := s.call(window, "rate_limit", "take", id, rate, per.Microseconds(), burst, cost)
	result, before, after := s.between("(select granted from lock.take($1, $2, $3, $4, $5))", id, rate, per, burst, cost)
	s.answer(p, result, before, after)
	return nil
}

// checkBucket looks for a window that was granted more than the burst and what comes back within it, whenever in their calls the
// grants were.
//
// In the order of their ends, a window is grants that stand side by side. It is at most as long as from the earliest beginning of
// one of them, or of a later one, to the end of the last. So the sum of its costs, less what comes back in that time, is a
// difference of two numbers, of which one belongs to its first grant and one to its last.
func checkBucket(c *checker, id string, ops []*op) {
	var grants []*op
	if len(ops) == 0 || c.clockMoved("rate_limit", ops) {
		return
	}
	for _, o := range ops {
		if o.outcome == yes {
			grants = append(grants, o)
		}
	}
	sort.Slice(grants, func(i, j int) bool { return grants[i].out[1] < grants[j].out[1] })
	earliest := make([]int64, len(grants))
	for i := len(grants) - 1; i >= 0; i-- {
		earliest[i] = grants[i].out[0]
		if i+1 < len(grants) {
			earliest[i] = min(earliest[i], earliest[i+1])
		}
	}
	var taken, lowest, first int64 // in tokens times the period, so that all of it is exact
	for i, o := range grants {
		rate, per, burst, cost := o.in[0], o.in[1], o.in[2], o.in[3]
		begins := taken - rate*(earliest[i]-earliest[0])
		if i == 0 || begins < lowest {
			lowest, first = begins, int64(i)
		}
		taken += cost * per
		if taken-rate*(o.out[1]-earliest[0])-lowest > burst*per {
			c.violate("rate_limit", id, "more tokens than the burst and what came back", grants[first:i+1]...)
			return
		}
	}
}
