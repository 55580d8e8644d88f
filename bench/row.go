//go:build linux

package main

import (
	"context"
	"fmt"
	"log"

	"golang.org/x/sync/errgroup"
)

// A row is one sort of work. Everybody does it in every column, in turn, round after round.
type row struct {
	ID, Title, About string
	Columns          []column
	whole            bool // one run fills all columns
	together         bool // everybody at once, instead of in turn
	rounds           int  // at most; 0: as many as asked for
	entries          []entry
}

// A column is one form of the work, or one thing that is measured of it.
type column struct {
	Name, Unit string
	Less       bool // is better
}

// An entry is somebody who does the work. The first one is ours.
type entry struct {
	name, lacks string
	prepare     func(ctx context.Context) error                          // once
	run         func(ctx context.Context, column int) ([]float64, error) // no value: it cannot
}

func columns(unit string, names ...string) []column {
	all := make([]column, len(names))
	for i, name := range names {
		all[i] = column{Name: name, Unit: unit}
	}
	return all
}

func (l *lab) measure(ctx context.Context, r *row) error {
	done := rowResult{ID: r.ID, Title: r.Title, About: r.About, Columns: r.Columns, Rounds: *rounds}
	if r.rounds > 0 {
		done.Rounds = min(*rounds, r.rounds)
	}
	for _, e := range r.entries {
		if e.prepare != nil {
			if err := e.prepare(ctx); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
		done.Entries = append(done.Entries, entryResult{Name: e.name, Lacks: e.lacks, Values: make([][]float64, len(r.Columns))})
	}
	steps := len(r.Columns)
	if r.whole {
		steps = 1
	}
	before := used()
	for round := range done.Rounds {
		for step := range steps {
			group, working := errgroup.WithContext(ctx)
			if !r.together {
				group.SetLimit(1)
			}
			// Each round begins with another: who comes after a heavy neighbour has a slower disk.
			for n := range r.entries {
				i := (n + round) % len(r.entries)
				group.Go(func() error {
					values, err := r.entries[i].run(working, step)
					if err != nil {
						return fmt.Errorf("%s: %w", r.entries[i].name, err)
					}
					for n, value := range values {
						at := &done.Entries[i].Values[step+n]
						*at = append(*at, value)
					}
					return nil
				})
			}
			if err := group.Wait(); err != nil {
				return err
			}
		}
	}
	done.Others = others(before)
	l.result.Rows = append(l.result.Rows, done)
	log.Printf("%s\n%s", r.ID, done.table())
	return nil
}
