//go:build linux

package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
)

// A kind is one sort of lock: what a worker does with it, and what must be true of what it was told.
type kind struct {
	name   string
	weight int
	round  func(s *session) error
	check  func(c *checker, id string, ops []*op)
	// final checks what the database knows at the end against the whole window's calls of the kind.
	final func(ctx context.Context, conn *pgx.Conn, c *checker, window int, ops []*op) error
}

var kinds = []*kind{keyKind, mutexKind, leaseKind, throttleKind, timeoutKind, slotKind, limitKind, taskKind, requestKind, workerKind}

func kindNamed(name string) *kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	return nil
}

// A checker collects what is found in one window after the other.
type checker struct {
	mu         sync.Mutex
	Violations map[string]int      `json:"violations"`
	Found      map[string]int      `json:"found,omitempty"`
	Examples   []string            `json:"examples,omitempty"`
	Undecided  map[string]int      `json:"undecided"` // histories that were not decided in time
	Checked    map[string]int64    `json:"checked"`
	Outcomes   map[string]counters `json:"outcomes"`
	Lost       map[string]int64    `json:"lost"`
	Histories  map[string]int64    `json:"histories"`
	Rate       []int64             `json:"answers_by_second"`
	// Histories of which the times were not judged: a fault moved the servers' clocks then, of one back end after the other.
	Unjudged map[string]int64 `json:"times_not_judged"`
	moved    []span
	answered map[string]*moments
	start    int64
}

type counters struct{ Yes, No, Failed, Unknown int64 }

func newChecker(start int64) *checker {
	c := &checker{
		Violations: map[string]int{}, Found: map[string]int{}, Undecided: map[string]int{}, Checked: map[string]int64{}, Outcomes: map[string]counters{},
		Lost: map[string]int64{}, Histories: map[string]int64{}, answered: map[string]*moments{}, Unjudged: map[string]int64{}, start: start,
	}
	for _, k := range kinds {
		c.Violations[k.name], c.Undecided[k.name] = 0, 0
	}
	c.Lost["task"], c.Lost["request"], c.Lost["worker"] = 0, 0, 0
	return c
}

// violate reports calls that contradict what the kind promises.
func (c *checker) violate(kind, id, what string, ops ...*op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Violations[kind]++
	c.Found[what]++
	if len(c.Examples) < 50 {
		lines := []string{fmt.Sprintf("%s %s: %s", kind, id, what)}
		for i, o := range ops {
			if i == 30 {
				lines = append(lines, fmt.Sprintf("and %d more", len(ops)-i))
				break
			}
			lines = append(lines, "    "+o.String())
		}
		c.Examples = append(c.Examples, strings.Join(lines, "\n"))
	}
}

func (c *checker) lose(kind, id, what string, ops ...*op) {
	c.violate(kind, id, what, ops...)
	c.mu.Lock()
	c.Lost[kind]++
	c.mu.Unlock()
}

// A span is a part of the run.
type span struct{ from, to int64 }

// clockMoved says whether the servers' clock was moved during a history.
func (c *checker) clockMoved(kind string, ops []*op) bool {
	for _, m := range c.moved {
		for _, o := range ops {
			if o.call <= m.to && (o.ret >= m.from && o.ret != forever || o.call >= m.from) {
				c.mu.Lock()
				c.Unjudged[kind]++
				c.mu.Unlock()
				return true
			}
		}
	}
	return false
}

func (c *checker) total() (violations int) {
	for _, n := range c.Violations {
		violations += n
	}
	return violations
}

// linearizable asks porcupine whether there is an order of the calls, each between its call and its return, that a single lock could
// have answered so.
func linearizable[S comparable](c *checker, kind, id string, initial S, ops []*op, step func(state S, o *op) (bool, S)) {
	history := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		history[i] = porcupine.Operation{ClientId: o.worker, Input: o, Output: nil, Call: o.call, Return: o.ret}
	}
	model := porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := step(state.(S), input.(*op))
			return ok, next
		},
		Equal: func(a, b any) bool { return a.(S) == b.(S) },
	}
	switch porcupine.CheckOperationsTimeout(model, history, 20*time.Second) {
	case porcupine.Illegal:
		c.violate(kind, id, "no order of these calls explains their answers", ops...)
	case porcupine.Unknown:
		c.mu.Lock()
		c.Undecided[kind]++
		c.mu.Unlock()
	}
}

// window checks one window, and forgets it.
func (c *checker) window(ctx context.Context, conn *pgx.Conn, dir string, window int) error {
	ops, err := load(dir, window)
	if err != nil {
		return err
	}
	type history struct {
		kind *kind
		id   string
		ops  []*op
	}
	byID := map[string]*history{}
	byKind := map[string][]*op{}
	for _, o := range ops {
		c.count(o)
		byKind[o.kind] = append(byKind[o.kind], o)
		h := byID[o.kind+" "+o.id]
		if h == nil {
			h = &history{kind: kindNamed(o.kind), id: o.id}
			byID[o.kind+" "+o.id] = h
		}
		h.ops = append(h.ops, o)
	}
	var wg sync.WaitGroup
	todo := make(chan *history)
	for range 2 {
		wg.Go(func() {
			for h := range todo {
				h.kind.check(c, h.id, h.ops)
			}
		})
	}
	for _, h := range byID {
		if h.kind != nil && h.kind.check != nil && h.id != "-" {
			c.Histories[h.kind.name]++
			todo <- h
		}
	}
	close(todo)
	wg.Wait()
	for _, k := range kinds {
		if k.final != nil {
			if err := k.final(ctx, conn, c, window, byKind[k.name]); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
	}
	return nil
}

// count adds a call to the report. What only notes a part of another call's answer is not counted.
func (c *checker) count(o *op) {
	if strings.HasPrefix(o.name, "+") {
		return
	}
	n := c.Outcomes[o.kind]
	switch o.outcome {
	case yes:
		n.Yes++
	case no:
		n.No++
	case failed:
		n.Failed++
	default:
		n.Unknown++
	}
	c.Outcomes[o.kind] = n
	c.Checked[o.kind]++
	if o.outcome == yes || o.outcome == no {
		m := c.answered[o.kind]
		if m == nil {
			m = &moments{}
			c.answered[o.kind] = m
		}
		m.add(o.ret - c.start)
		second := int((o.ret - c.start) / int64(time.Second))
		for len(c.Rate) <= second {
			c.Rate = append(c.Rate, 0)
		}
		c.Rate[second]++
	}
}

// moments remembers in which milliseconds something happened.
type moments struct{ bits []uint64 }

func (m *moments) add(at int64) {
	ms := int(at / int64(time.Millisecond))
	for len(m.bits) <= ms/64 {
		m.bits = append(m.bits, make([]uint64, 1024)...)
	}
	m.bits[ms/64] |= 1 << (ms % 64)
}

// longest is the longest time without any, and when it began.
func (m *moments) longest() (gap, at time.Duration) {
	last := -1
	for ms := range len(m.bits) * 64 {
		if m.bits[ms/64]&(1<<(ms%64)) == 0 {
			continue
		}
		if d := time.Duration(ms-last) * time.Millisecond; last >= 0 && d > gap {
			gap, at = d, time.Duration(last)*time.Millisecond
		}
		last = ms
	}
	return gap, at
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
