// Command bench measures with pgbench what docs/ claims, as ratios between scripts that run in turn on one durable server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"golang.org/x/sync/errgroup"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/lockstest/server"
)

// A comparison runs its scripts in turn, round after round, in one database of its own.
type comparison struct {
	kind    string // as in docs/<kind>.md
	name    string
	engine  string   // advisory unless set
	setup   []string // SQL, once, after the migrations
	hold    []string // SQL that a transaction runs and keeps open as long as the scripts run
	scripts []script // ratios are against the first
}

// A script is what pgbench runs as one of 8 clients.
type script struct {
	name     string
	sql      string
	before   string                                                              // SQL that runs once before each round, such as a truncate
	atLeast  float64                                                             // the ratio to the first script that the project promises; 0: none
	prepared float64                                                             // the same for prepared queries
	run      func(ctx context.Context, url string, seconds int) (float64, error) // instead of sql: returns operations per second
}

var comparisons []comparison

var (
	kind    = flag.String("kind", "", "only this kind")
	name    = flag.String("name", "", "only comparisons whose name contains this")
	seconds = flag.Int("seconds", 5, "of each run")
	rounds  = flag.Int("rounds", 3, "of each script; the median counts")
	clients = flag.Int("clients", 8, "of pgbench")
	modes   = flag.String("modes", "simple,prepared", "of pgbench's queries; what the project promises holds for the first, which is pgbench's own choice")

	look        = flag.Bool("looks", false, "measure instead what a look at lock.request costs, by what is outstanding")
	outstanding = flag.Int("outstanding", 100000, "requests, for -looks")
	mixed       = flag.Int("mixed", 6, "random mixtures, for -looks")
	seed        = flag.Uint64("seed", 1, "of these")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	s, err := server.Start(ctx, server.Options{Durable: true, Settings: []string{"synchronous_commit=on", "max_wal_size=8GB", "autovacuum=off"}})
	if err != nil {
		return err
	}
	defer s.Stop()
	if *look {
		return looks(ctx, s)
	}
	missed := 0
	for i, c := range comparisons {
		if *kind != "" && c.kind != *kind || !strings.Contains(c.name, *name) {
			continue
		}
		database := fmt.Sprintf("bench_%d", i)
		if err := prepare(ctx, s, c, database); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("\n%s: %s\n", c.kind, c.name)
		holder, err := hold(ctx, s.URL("postgres", database), c.hold)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		for i, mode := range c.modes() {
			rates := make([][]float64, len(c.scripts))
			for range *rounds {
				for j, script := range c.scripts {
					rate, err := measure(ctx, s, database, mode, script)
					if err != nil {
						return fmt.Errorf("%s: %s: %w", c.name, script.name, err)
					}
					rates[j] = append(rates[j], rate)
				}
			}
			if mode != "" {
				fmt.Printf(" %s queries\n", mode)
			}
			for j, script := range c.scripts {
				slices.Sort(rates[j])
				rate := rates[j][*rounds/2]
				ratio := rate / rates[0][*rounds/2]
				verdict := ""
				wanted := script.atLeast
				if i > 0 {
					wanted = script.prepared
				}
				if wanted > 0 {
					verdict = fmt.Sprintf("   wanted at least %.2f", wanted)
					if ratio < wanted {
						verdict += "   MISSED"
						missed++
					}
				}
				fmt.Printf("  %-44s %9.0f/s   %.2f%s\n", script.name, rate, ratio, verdict)
			}
		}
		holder.Close(ctx)
	}
	if missed > 0 {
		return fmt.Errorf("%d promises missed", missed)
	}
	return nil
}

// modes are pgbench's, or a single one without a name, when pgbench is not what runs the scripts.
func (c comparison) modes() []string {
	if slices.ContainsFunc(c.scripts, func(s script) bool { return s.run == nil }) {
		return strings.Split(*modes, ",")
	}
	return []string{""}
}

// hold opens a transaction that ends with its connection.
func hold(ctx context.Context, url string, statements []string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	for _, sql := range append([]string{"begin"}, statements...) {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	return conn, nil
}

func prepare(ctx context.Context, s *server.Server, c comparison, database string) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres", "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if c.engine == "" {
		c.engine = "advisory"
	}
	for _, sql := range []string{"create database " + database, "alter database " + database + " set lock.engine = " + c.engine} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	config, err := pgx.ParseConfig(s.URL("postgres", database))
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, locks.Migrations(), goose.WithTableName("public.lock_goose_version"))
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return err
	}
	for _, sql := range append(c.setup, "vacuum analyze", "checkpoint") {
		if _, err := db.ExecContext(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// drive makes a script's run from an operation that as many goroutines repeat as pgbench would have clients.
func drive(operation func(ctx context.Context, pool *pgxpool.Pool) error) func(context.Context, string, int) (float64, error) {
	return func(ctx context.Context, url string, seconds int) (float64, error) {
		pool, err := open(ctx, url, *clients)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		var done atomic.Int64
		var group errgroup.Group
		end := time.Now().Add(time.Duration(seconds) * time.Second)
		for range *clients {
			group.Go(func() error {
				for time.Now().Before(end) {
					if err := operation(ctx, pool); err != nil {
						return err
					}
					done.Add(1)
				}
				return nil
			})
		}
		err = group.Wait()
		return float64(done.Load()) / float64(seconds), err
	}
}

// open makes a pool of a number of connections.
func open(ctx context.Context, url string, size int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = int32(size), int32(size)
	return pgxpool.NewWithConfig(ctx, config)
}

// ping makes a script's run that sends to an idle receiver, again and again, and returns one over the median time from the start of
// the statement to the receiver's call of started.
func ping(send string, receive func(ctx context.Context, pool *pgxpool.Pool, started func()) error) func(context.Context, string, int) (float64, error) {
	return func(ctx context.Context, url string, seconds int) (float64, error) {
		pool, err := open(ctx, url, 8)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		running, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
		starts, ended := make(chan time.Time, 1), make(chan error, 1)
		go func() {
			ended <- receive(running, pool, func() {
				select {
				case starts <- time.Now():
				case <-running.Done():
				}
			})
		}()
		var took []time.Duration
		for running.Err() == nil {
			time.Sleep(30 * time.Millisecond) // Long enough to be idle again.
			var again <-chan time.Time
			if len(took) == 0 {
				again = time.After(200 * time.Millisecond) // The receiver may not have been there yet.
			}
			select {
			case <-starts: // of such a repetition
			default:
			}
			began := time.Now()
			if _, err := pool.Exec(ctx, send); err != nil {
				cancel()
				<-ended
				return 0, err
			}
			select {
			case at := <-starts:
				took = append(took, at.Sub(began))
			case <-again:
			case <-running.Done():
			case err := <-ended:
				if running.Err() == nil {
					return 0, fmt.Errorf("the receiver ended: %w", err)
				}
				ended <- err
			}
		}
		if err := <-ended; err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return 0, fmt.Errorf("the receiver ended: %w", err)
		}
		if len(took) == 0 {
			return 0, errors.New("nothing was received in time")
		}
		slices.Sort(took)
		return 1 / took[len(took)/2].Seconds(), nil
	}
}

func once(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

var tps = regexp.MustCompile(`tps = ([0-9.]+)`)

func measure(ctx context.Context, s *server.Server, database, mode string, script script) (float64, error) {
	url := s.URL("postgres", database)
	// Nobody cleans up after one script while the next one is measured.
	for _, sql := range []string{script.before, "vacuum analyze", "checkpoint"} {
		if err := once(ctx, url, sql); err != nil {
			return 0, err
		}
	}
	if script.run != nil {
		return script.run(ctx, url, *seconds)
	}
	file, err := os.CreateTemp("", "locks-bench-*.sql")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	if _, err := file.WriteString(script.sql); err != nil {
		return 0, err
	}
	file.Close()
	out, err := exec.CommandContext(ctx, filepath.Join(s.BinDir, "pgbench"), "-n", "-M", mode, "-c", strconv.Itoa(*clients), "-j", "2",
		"-T", strconv.Itoa(*seconds), "-f", file.Name(), url).CombinedOutput()
	found := tps.FindSubmatch(out)
	if err != nil || found == nil {
		return 0, errors.Join(err, errors.New(string(out)))
	}
	return strconv.ParseFloat(string(found[1]), 64)
}
