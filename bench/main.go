//go:build linux

// Command bench measures the package beside what people would use instead, in one run, on one server with the same settings.
//
// It writes docs/benchmarks: every value that was measured as JSON, charts, and the tables in all pages that ask for one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var (
	rounds   = flag.Int("rounds", 5, "of every row that does not say otherwise; the median counts")
	only     = flag.String("rows", "", "a regular expression: measure only these rows")
	duration = flag.Duration("duration", 1200*time.Millisecond, "of each measurement; amounts of work grow with it")
	growth   = flag.String("growth", "", "numbers of finished tasks, such as 1000000,10000000; default: 1000000 at a duration of a second or more")
	steady   = flag.Duration("steady", 0, "how long the steady load lasts; 0: it is left out")
	rate     = flag.Int("rate", 500, "tasks a second while a snapshot is held; under the steady load each has a tenth of it")
	force    = flag.Bool("force", false, "measure on a busy machine, too")
	out      = flag.String("out", "", "the directory to write to; default: docs/benchmarks for a whole run, else bench/out")
	again    = flag.Bool("again", false, "put the rows that were asked for into docs/benchmarks, which say so")
	docs     = flag.Bool("docs", false, "measure nothing: write charts and tables from docs/benchmarks/results.json")
	list     = flag.Bool("list", false, "measure nothing: list the rows")
)

// root is the project's directory; make starts the command in bench/.
const root = ".."

func main() {
	flag.Parse()
	log.SetFlags(log.Ltime)
	err := error(nil)
	if *docs {
		err = publish(root, filepath.Join(root, "docs/benchmarks"))
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if *rounds < 1 || *duration <= 0 {
		return errors.New("rounds and duration must be positive")
	}
	sizes, err := growthSizes()
	if err != nil {
		return err
	}
	load, err := loadAverage()
	if err != nil {
		return err
	}
	// Nobody takes the figures of short measurements for true.
	if limit := 0.3; load > limit && !*force && !*list && *duration >= time.Second {
		return fmt.Errorf("the machine is busy: its load is %.2f, and more than %.2f spoils the figures; wait, or set FORCE=1", load, limit)
	}
	l, err := open(ctx, *list)
	if err != nil {
		return err
	}
	defer l.close()
	rows := l.rows(sizes)
	if *list {
		for _, r := range rows {
			fmt.Printf("  %-12s %s\n", r.ID, r.Title)
		}
		return nil
	}
	l.result.Load = load
	began := time.Now()
	for _, r := range rows {
		if !wanted.MatchString(r.ID) {
			continue
		}
		if err := l.measure(ctx, &r); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", r.ID, err), os.MkdirAll("out", 0o755), l.result.save("out")) // of an hour's work
		}
	}
	l.result.Took = time.Since(began).Round(time.Second).String()
	return l.write()
}

// growthSizes are the numbers of finished tasks that the row growth has, after none.
func growthSizes() ([]int, error) {
	if *growth == "" {
		return []int{scaled(1_000_000)}, nil
	}
	var sizes []int
	for _, word := range strings.Split(*growth, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("growth is %q, and must be positive numbers", *growth)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// scaled is n, or less when measurements last less than a second.
func scaled(n int) int {
	return max(1, int(float64(n)*min(1, duration.Seconds())))
}

// write writes the results, and the tables and charts made from them. Only a whole run replaces the project's own figures.
func (l *lab) write() error {
	dir := *out
	record := (*only == "" || *again) && *rounds >= 5 && *duration >= time.Second
	if dir == "" {
		dir = "out"
		if record {
			dir = filepath.Join(root, "docs/benchmarks")
		}
	}
	if *again && record {
		old, err := load(dir)
		if err != nil {
			return err
		}
		if old.Machine != l.result.Machine {
			return fmt.Errorf("the record is of another machine: %s", old.Machine)
		}
		for _, row := range l.result.Rows {
			row.About += " This row is of another run, on " + l.result.When + "."
			at := slices.IndexFunc(old.Rows, func(r rowResult) bool { return r.ID == row.ID })
			if at < 0 {
				return fmt.Errorf("docs/benchmarks has no row %s that was measured before", row.ID)
			}
			old.Rows[at] = row
		}
		l.result = *old
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := l.result.save(dir); err != nil {
		return err
	}
	pages := dir
	if record && *out == "" {
		pages = root
	} else if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte(marked("conditions", "")+"\n"+marked("all", "")), 0o644); err != nil {
		return err
	}
	if err := publish(pages, dir); err != nil {
		return err
	}
	log.Printf("%s: written to %s", l.result.Took, dir)
	return nil
}
