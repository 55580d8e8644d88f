//go:build linux

// Command load lets many connections want one key, and many keys, for minutes, and says how long they waited, how fairly they were served,
// and what that cost the server.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/lockstest/server"
)

const (
	denied = 20 * time.Millisecond // before a mutex that is acquired is asked for again
	ttl    = time.Minute
)

type options struct {
	duration    time.Duration
	connections int
	keys        int
	only        string
	report      string
}

// A Row is what one load did.
type Row struct {
	Kind        string
	Keys        int
	Seconds     float64
	Grants      int64
	MedianWait  float64 // milliseconds, from the call to the grant
	P99Wait     float64
	LongestWait float64
	Slowest     int64 // grants of the connection that was served least
	Fastest     int64
	Pss         int64 // bytes of memory of a back end, its share of what is shared included: the median, at the end
	Contexts    int64 // of these, in memory contexts
	Locks       int   // most lines of pg_locks at once
	SizeBefore  int64 // bytes of the tables of schema lock with their indexes
	SizeAfter   int64
	Dead        int64 // dead rows in them at the end
	Waiting     int64 // that had to be called off a minute after the end
	Errors      int64
}

// Results are what a run writes.
type Results struct {
	Server      string
	Go          string
	CPUs        int
	LoadBefore  string // of the machine
	Command     string
	Connections int
	Capacity    int // of the lock table: max_locks_per_transaction * (max_connections + max_prepared_transactions)
	Date        string
	Rows        []Row
}

// Keys64 and Capacity64 are for the page.
func (r Row) Keys64() int64         { return int64(r.Keys) }
func (r Results) Capacity64() int64 { return int64(r.Capacity) }

func main() {
	var o options
	flag.DurationVar(&o.duration, "duration", time.Minute, "of each load")
	flag.IntVar(&o.connections, "connections", 500, "that want the keys")
	flag.IntVar(&o.keys, "keys", 10000, "of the loads that have many")
	flag.StringVar(&o.only, "kind", "", "only this one: key, mutex or lease")
	flag.StringVar(&o.report, "report", "", "the directory for load.json and load.md (default: out, and no page)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	results := Results{Go: runtime.Version(), CPUs: runtime.NumCPU(), Connections: o.connections, Date: time.Now().UTC().Format(time.DateOnly)}
	results.Command = fmt.Sprintf("make torture-load DURATION=%v CONNECTIONS=%d KEYS=%d", o.duration, o.connections, o.keys)
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		results.LoadBefore = strings.Fields(string(load))[0]
	}
	s, err := server.Start(ctx, server.Options{Durable: true, Settings: []string{
		"max_connections=" + strconv.Itoa(o.connections+50), "deadlock_timeout=1s", // its default: tests have a shorter one
	}})
	if err != nil {
		return err
	}
	defer s.Stop()
	conn, err := pgx.Connect(ctx, s.URL("postgres", "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, `select 'PostgreSQL ' || current_setting('server_version'), current_setting('max_locks_per_transaction')::integer
		* (current_setting('max_connections')::integer + current_setting('max_prepared_transactions')::integer)`).Scan(&results.Server, &results.Capacity)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "create role app login; grant pg_read_all_stats to app"); err != nil {
		return err
	}
	for _, kind := range []string{"key", "mutex", "lease"} {
		for _, keys := range []int{1, o.keys} {
			if o.only != "" && o.only != kind {
				continue
			}
			name := fmt.Sprintf("load_%s_%d", kind, keys)
			row, err := one(ctx, s, conn, name, kind, keys, o)
			if err != nil {
				return fmt.Errorf("%s, %d keys: %w", kind, keys, err)
			}
			results.Rows = append(results.Rows, row)
			fmt.Printf("%+v\n", row)
		}
	}
	return results.write(o.report)
}

// one is one load on a database of its own.
func one(ctx context.Context, s *server.Server, admin *pgx.Conn, name, kind string, keys int, o options) (Row, error) {
	row := Row{Kind: kind, Keys: keys}
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		return row, err
	}
	if err := migrate(ctx, s.URL("postgres", name)); err != nil {
		return row, err
	}
	conn, err := pgx.Connect(ctx, s.URL("postgres", name))
	if err != nil {
		return row, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	config, err := pgxpool.ParseConfig(s.URL("app", name))
	if err != nil {
		return row, err
	}
	config.MaxConns = int32(o.connections)
	config.ConnConfig.DialFunc = locks.Dial
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return row, err
	}
	defer pool.Close()
	if err := size(ctx, conn, &row.SizeBefore, &row.Dead); err != nil {
		return row, err
	}
	if err := fill(ctx, pool, o.connections); err != nil {
		return row, err
	}

	running, cancel := context.WithCancel(ctx)
	defer cancel()
	waits, grants := make([][]time.Duration, o.connections), make([]int64, o.connections)
	var failed, waiting atomic.Int64
	var first atomic.Pointer[error]
	var clients sync.WaitGroup
	began := time.Now()
	end := began.Add(o.duration)
	for n := range o.connections {
		clients.Go(func() {
			dice := rand.New(rand.NewPCG(1, uint64(n)))
			for time.Now().Before(end) && running.Err() == nil {
				asked := time.Now()
				err := hold(running, pool, kind, "key "+strconv.Itoa(dice.IntN(keys)), strconv.Itoa(n), func() {
					waits[n] = append(waits[n], time.Since(asked))
					grants[n]++
				})
				switch {
				case err != nil && running.Err() != nil: // It has waited at least so long.
					waits[n] = append(waits[n], time.Since(asked))
					waiting.Add(1)
				case err != nil:
					failed.Add(1)
					first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	sampled := make(chan error, 1)
	go func() { sampled <- sample(running, conn, end, &row.Locks) }()
	if err := <-sampled; err != nil {
		return row, err
	}
	stopped := time.AfterFunc(time.Minute, cancel) // of those that wait at the end
	clients.Wait()
	stopped.Stop()
	row.Seconds = time.Since(began).Seconds()
	row.Errors, row.Waiting = failed.Load(), waiting.Load()
	if err := first.Load(); err != nil {
		fmt.Println("the first error:", *err)
	}
	if row.Pss, row.Contexts, err = memory(ctx, pool); err != nil {
		return row, err
	}
	if err := size(ctx, conn, &row.SizeAfter, &row.Dead); err != nil {
		return row, err
	}
	all := slices.Concat(waits...)
	if len(all) == 0 {
		return row, errors.New("nobody was granted anything")
	}
	slices.Sort(all)
	at := func(share float64) float64 { return float64(all[int(share*float64(len(all)-1))].Microseconds()) / 1000 }
	row.MedianWait, row.P99Wait, row.LongestWait = at(0.5), at(0.99), at(1)
	row.Slowest, row.Fastest = slices.Min(grants), slices.Max(grants)
	for _, n := range grants {
		row.Grants += n
	}
	return row, nil
}

// fill opens all connections of a pool, so that nobody waits for one.
func fill(ctx context.Context, pool *pgxpool.Pool, connections int) error {
	for range connections {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
	}
	return nil
}

// hold holds a lock for no longer than it takes to say so.
func hold(ctx context.Context, pool *pgxpool.Pool, kind, key, owner string, granted func()) error {
	switch kind {
	case "key":
		return locks.Exclusive(ctx, pool, key, func(pgx.Tx) error {
			granted()
			return nil
		})
	case "mutex":
		mutex := locks.NewDurableMutex(pool, owner)
		for {
			acquired, err := mutex.Acquire(ctx, key)
			if err != nil {
				return err
			}
			if acquired {
				granted()
				_, err = mutex.Release(ctx, key)
				return err
			}
			select {
			case <-time.After(denied/2 + rand.N(denied)):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	default:
		return locks.WithLease(ctx, pool, key, ttl, func(context.Context, locks.Lease) error {
			granted()
			return nil
		}, &locks.LeaseOptions{Wait: true, Owner: owner})
	}
}

// sample counts the lines of pg_locks once a second.
func sample(ctx context.Context, conn *pgx.Conn, end time.Time, most *int) error {
	for time.Now().Before(end) {
		var n int
		if err := conn.QueryRow(ctx, "select count(*) from pg_locks").Scan(&n); err != nil {
			return err
		}
		*most = max(*most, n)
		select {
		case <-time.After(min(time.Second, time.Until(end))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func size(ctx context.Context, conn *pgx.Conn, bytes, dead *int64) error {
	return conn.QueryRow(ctx, `select sum(pg_total_relation_size(pg_class.oid))::bigint, coalesce(sum(pg_stat_get_dead_tuples(pg_class.oid)), 0)::bigint
		from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'r'`).Scan(bytes, dead)
}

// memory is what twenty back ends that have been at work have.
func memory(ctx context.Context, pool *pgxpool.Pool) (pss, contexts int64, err error) {
	var all, inContexts []int64
	for range 20 {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return 0, 0, err
		}
		defer conn.Release()
		var used int64
		if err := conn.QueryRow(ctx, "select sum(total_bytes)::bigint from pg_backend_memory_contexts").Scan(&used); err != nil {
			return 0, 0, err
		}
		of, err := pssOf(int(conn.Conn().PgConn().PID()))
		if err != nil {
			return 0, 0, err
		}
		all, inContexts = append(all, of), append(inContexts, used)
	}
	slices.Sort(all)
	slices.Sort(inContexts)
	return all[len(all)/2], inContexts[len(inContexts)/2], nil
}

func pssOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var kilobytes int64
		if n, _ := fmt.Sscanf(lines.Text(), "Pss: %d kB", &kilobytes); n == 1 {
			return kilobytes << 10, nil
		}
	}
	return 0, errors.New("smaps_rollup has no Pss")
}

func migrate(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, locks.Migrations(), goose.WithTableName("public.lock_goose_version"))
	if err != nil {
		return err
	}
	if _, err = provider.Up(ctx); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "select lock.grant_to('app')")
	return err
}

//go:embed load.md.tmpl
var page string

// write writes load.json, and with a directory for it the page, too.
func (r *Results) write(report string) error {
	dir := report
	if dir == "" {
		dir = "out"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "load.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := r.page(&out); err != nil {
		return err
	}
	fmt.Println(out.String())
	if report == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, "load.md"), out.Bytes(), 0o644)
}

func (r *Results) page(out *bytes.Buffer) error {
	functions := template.FuncMap{
		"ms": func(ms float64) string {
			if ms < 10 {
				return fmt.Sprintf("%.1f ms", ms)
			}
			return fmt.Sprintf("%.0f ms", ms)
		},
		"mb":       func(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/(1<<20)) },
		"thousand": thousands,
		"share": func(slowest, fastest int64) string {
			return fmt.Sprintf("%.2f", float64(slowest)/float64(max(fastest, 1)))
		},
		"rate": func(row Row) string { return thousands(int64(float64(row.Grants) / row.Seconds)) },
		"minutes": func() string {
			seconds := map[float64]bool{}
			for _, row := range r.Rows {
				seconds[float64(int(row.Seconds))] = true
			}
			return fmt.Sprintf("%.0f s", slices.Min(slices.Collect(maps.Keys(seconds))))
		},
	}
	tmpl, err := template.New("load").Funcs(functions).Parse(page)
	if err != nil {
		return err
	}
	return tmpl.Execute(out, r)
}

func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
