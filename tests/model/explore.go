// Package model holds small executable models of what this package relies on, and visits every state they can reach: the row engine
// of key locks, the capture of tasks, the queue of requests, and the waking of idle workers. docs/model.md says what they cover.
package model

import (
	"fmt"
	"slices"
)

// A Result is what Explore saw.
type Result struct {
	States, Transitions int
	Violations          map[string][]string // what went wrong: the shortest way there
}

// Explore visits every state that can be reached from the initial ones, nearest first. next calls visit for every step that is possible
// in a state; wrong names what must not be, and is asked once per state. The way to the first state of every violation is kept.
func Explore[S comparable](initial []S, next func(s S, visit func(step string, to S)), wrong func(s S) []string) Result {
	type origin struct {
		from int32
		step string
	}
	seen := map[S]struct{}{}
	var states []S
	var origins []origin
	add := func(s S, from int32, step string) {
		if _, ok := seen[s]; !ok {
			seen[s] = struct{}{}
			states = append(states, s)
			origins = append(origins, origin{from, step})
		}
	}
	for _, s := range initial {
		add(s, -1, "")
	}
	result := Result{Violations: map[string][]string{}}
	for i := 0; i < len(states); i++ {
		for _, name := range wrong(states[i]) {
			if result.Violations[name] != nil {
				continue
			}
			way := []string{}
			for at := int32(i); at >= 0; at = origins[at].from {
				way = append(way, fmt.Sprintf("%-36s %v", origins[at].step, states[at]))
			}
			slices.Reverse(way)
			result.Violations[name] = way
		}
		next(states[i], func(step string, to S) {
			result.Transitions++
			add(to, int32(i), step)
		})
	}
	result.States = len(states)
	return result
}
