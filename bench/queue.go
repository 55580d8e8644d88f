//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// A queue is one way to hand tasks to workers: ours, or somebody else's. What it does not have is nil or empty.
type queue struct {
	id, name string
	lacks    string // what it does not guarantee
	database string
	setup    func(ctx context.Context, l *lab) error
	empty    string // SQL
	fill     string // SQL: adds $1 tasks
	finished string // SQL: adds $1 tasks that are done
	left     string // SQL: is anything not settled?
	sizes    string // SQL: bytes of its tables and indexes

	// create adds one task, and wakes whoever idles. sent is what a worker's handle gets to see.
	create func(ctx context.Context, conn *pgx.Conn, sent int64) error
	// step settles what the step before captured, and captures up to size.
	step func(conn *pgx.Conn) step
	// work is its own loop of workers, or the one that its users would write, until ctx ends.
	work func(ctx context.Context, l *lab, how workers, handle func(sent int64)) error
}

type step func(ctx context.Context, size int) (captured int, err error)

// workers is how a loop works: so many at a time, and up to so many tasks a batch.
type workers struct {
	number, batch int
	drain         bool // there is a backlog, and nothing but throughput matters
}

func (q *queue) entry(run func(ctx context.Context, column int) ([]float64, error)) entry {
	return entry{name: q.name, lacks: q.lacks, run: run}
}

// refill leaves n tasks in the queue and nothing else to do for the server.
func (l *lab) refill(ctx context.Context, q *queue, n int) error {
	if err := l.exec(ctx, q.database, q.empty); err != nil {
		return err
	}
	return l.add(ctx, q, q.fill, n)
}

func (l *lab) add(ctx context.Context, q *queue, sql string, n int) error {
	conn, err := pgx.Connect(ctx, l.url(q.database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if n > 0 {
		if _, err := conn.Exec(ctx, sql, n); err != nil {
			return fmt.Errorf("%.200s: %w", sql, err)
		}
	}
	for _, sql := range []string{"vacuum analyze", "checkpoint"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// drain steps on so many connections until nothing is left or the limit has passed, and returns when how many tasks were settled. Before
// the clock starts, each connection has captured and settled a task, and captured another: so everybody's statements are prepared.
func (l *lab) drain(ctx context.Context, q *queue, url string, clients, size int, limit time.Duration) ([]settled, error) {
	pool, err := l.pool(ctx, url, clients)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	steps := make([]step, clients)
	captured := 0
	for n := range steps {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Release()
		steps[n] = q.step(conn.Conn())
		for range 2 {
			if captured, err = steps[n](ctx, 1); err != nil || captured != 1 {
				return nil, errors.Join(fmt.Errorf("%d tasks for the first calls", captured), err)
			}
		}
	}
	began := time.Now()
	all := make([][]settled, clients)
	var group errgroup.Group
	for n, next := range steps {
		group.Go(func() error {
			last := 1
			for time.Since(began) < limit {
				captured, err := next(ctx, size)
				if err != nil {
					return err
				}
				all[n] = append(all[n], settled{time.Since(began), last})
				if last = captured; captured == 0 {
					return nil
				}
			}
			return nil
		})
	}
	err = group.Wait()
	together := slices.Concat(all...)
	slices.SortFunc(together, func(a, b settled) int { return int(a.at - b.at) })
	return together, err
}

type settled struct {
	at time.Duration
	n  int
}

func count(done []settled) (n int) {
	for _, s := range done {
		n += s.n
	}
	return n
}

// between is tasks a second from one fraction of what was settled to another.
func between(done []settled, from, to float64) float64 {
	total := count(done)
	reached := func(fraction float64) (at time.Duration) {
		count := 0
		for _, s := range done {
			if float64(count) >= fraction*float64(total) {
				break
			}
			count, at = count+s.n, s.at
		}
		return at
	}
	took := reached(to) - reached(from)
	if took <= 0 {
		return 0
	}
	return (to - from) * float64(total) / took.Seconds()
}

// workOff is tasks a second of the queue's own workers, from the first one's start until all n are settled.
func (l *lab) workOff(ctx context.Context, q *queue, n int) ([]float64, error) {
	var started atomic.Int64
	var first atomic.Pointer[time.Time]
	var took time.Duration
	err := l.during(ctx, q, workers{number: 4, batch: 1000, drain: true}, func(int64) {
		if started.Add(1) == 1 {
			now := time.Now()
			first.Store(&now)
		}
	}, func(ctx context.Context) error {
		if err := within(ctx, time.Minute, func() bool { return int(started.Load()) >= n }); err != nil {
			return fmt.Errorf("%d of %d tasks: %w", started.Load(), n, err)
		}
		conn, err := pgx.Connect(ctx, l.url(q.database))
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		err = within(ctx, time.Minute, func() bool {
			left := true
			return conn.QueryRow(ctx, q.left).Scan(&left) == nil && !left
		})
		took = time.Since(*first.Load())
		return err
	})
	return []float64{float64(n) / took.Seconds()}, err
}

// during lets workers work as long as meanwhile runs.
func (l *lab) during(ctx context.Context, q *queue, how workers, handle func(int64), meanwhile func(ctx context.Context) error) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	var ended error
	var wg sync.WaitGroup
	meeting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Go(func() {
		ended = q.work(working, l, how, handle)
		if working.Err() != nil {
			ended = nil
		} else {
			ended = fmt.Errorf("the workers ended: %w", errors.Join(errors.New("too early"), ended))
			cancel(ended)
		}
	})
	err := meanwhile(meeting)
	stop()
	wg.Wait()
	return errors.Join(err, ended)
}

// toStart is the median of the time from a task's creation to its start by an idle worker, without the median of the creation itself.
func (l *lab) toStart(ctx context.Context, q *queue) ([]float64, error) {
	if err := l.refill(ctx, q, 0); err != nil {
		return nil, err
	}
	started := make(chan int64, 1000)
	var whole, creating []float64
	err := l.during(ctx, q, workers{number: 1, batch: 1}, func(sent int64) { started <- time.Now().UnixMicro() - sent }, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, l.url(q.database))
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		end := time.Now().Add(2 * *duration)
		for n := 0; n < 10 || time.Now().Before(end); n++ {
			pause(ctx, 30*time.Millisecond) // The worker idles again.
			began := time.Now()
			if err := q.create(ctx, conn, began.UnixMicro()); err != nil {
				return err
			}
			created := time.Since(began)
			select {
			case took := <-started:
				if n > 2 { // It takes a moment until the worker is there.
					whole, creating = append(whole, float64(took)/1000), append(creating, created.Seconds()*1000)
				}
			case <-time.After(time.Minute):
				return errors.New("a task was not started in a minute")
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	a, _ := median(whole)
	b, _ := median(creating)
	return []float64{a - b, b}, err
}

// produce is tasks created a second, while two workers are busy and all the other connections create.
func (l *lab) produce(ctx context.Context, q *queue, producers int) (rates []float64, err error) {
	if err := l.refill(ctx, q, 2); err != nil {
		return nil, err
	}
	create := func(ctx context.Context) (err error) {
		rates, err = l.each(ctx, l.url(q.database), producers, func(ctx context.Context, conn *pgx.Conn, _ int) error { return q.create(ctx, conn, 0) })
		return err
	}
	if q.work == nil {
		return rates, create(ctx)
	}
	var busy atomic.Int64
	done := make(chan struct{})
	err = l.during(ctx, q, workers{number: 2, batch: 1}, func(int64) { busy.Add(1); <-done }, func(ctx context.Context) error {
		defer close(done)
		if err := within(ctx, 30*time.Second, func() bool { return busy.Load() == 2 }); err != nil {
			return err
		}
		return create(ctx)
	})
	return rates, err
}

// load lets tasks come at so many a second, and workers work. It returns what of the last fifth was started in time, a second; the 99th
// percentile of the time to its tasks' start; and the megabytes of the tables in the end.
func (l *lab) load(ctx context.Context, q *queue, lasts time.Duration, rate int) ([]float64, error) {
	if err := l.refill(ctx, q, 0); err != nil {
		return nil, err
	}
	// It stays on: these rows are the last.
	if err := l.exec(ctx, "postgres", "alter system set autovacuum = on", "select pg_reload_conf()"); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var delays []float64
	var from, to, inTime, created atomic.Int64
	from.Store(math.MaxInt64)
	const patience = 30 * time.Second
	err := l.during(ctx, q, workers{number: 4, batch: 10}, func(sent int64) {
		now := time.Now().UnixMicro()
		if sent < from.Load() {
			return
		}
		if now < to.Load() {
			inTime.Add(1)
		}
		mu.Lock()
		defer mu.Unlock()
		delays = append(delays, float64(now-sent)/1000)
	}, func(ctx context.Context) error {
		const producers = 8
		pool, err := l.pool(ctx, l.url(q.database), producers)
		if err != nil {
			return err
		}
		defer pool.Close()
		began := time.Now()
		to.Store(began.Add(lasts).UnixMicro())
		from.Store(began.Add(lasts * 4 / 5).UnixMicro())
		group, working := errgroup.WithContext(ctx)
		for n := range producers {
			group.Go(func() error {
				conn, err := pool.Acquire(working)
				if err != nil {
					return err
				}
				defer conn.Release()
				// When it is late it catches up, and the tasks count from when they were due.
				every := time.Second * producers / time.Duration(rate)
				for due := began.Add(every * time.Duration(n) / producers); due.Before(began.Add(lasts)); due = due.Add(every) {
					pause(working, time.Until(due))
					if err := q.create(working, conn.Conn(), due.UnixMicro()); err != nil {
						return err
					}
					if due.UnixMicro() >= from.Load() {
						created.Add(1)
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		within(ctx, patience, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(delays) >= int(created.Load())
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	for range int(created.Load()) - len(delays) { // They would have taken even longer.
		delays = append(delays, float64(patience.Milliseconds()))
	}
	slices.Sort(delays)
	bytes, err := get[float64](ctx, l, q.database, "select ("+q.sizes+")::float8")
	return []float64{float64(inTime.Load()) / (lasts / 5).Seconds(), delays[len(delays)*99/100], bytes / 1e6}, err
}

// idle is transactions a second of so many workers that have nothing to do, and the milliseconds that the server works for them in a second.
func (l *lab) idle(ctx context.Context, q *queue, number int) (rates []float64, err error) {
	if err := l.refill(ctx, q, 0); err != nil {
		return nil, err
	}
	count := func() (float64, error) {
		return get[float64](ctx, l, "postgres", "select (xact_commit + xact_rollback)::float8 from pg_stat_database where datname = '"+q.database+"'")
	}
	err = l.during(ctx, q, workers{number: number, batch: 1}, func(int64) {}, func(ctx context.Context) error {
		// They come, look, and go to sleep; and the counters of idle sessions are up to 10 s late.
		pause(ctx, 2*time.Second+10**duration)
		before, err := count()
		if err != nil {
			return err
		}
		began, work := time.Now(), processorTime(l.serverPID())
		pause(ctx, max(2*time.Second, 10**duration))
		after, err := count()
		took := time.Since(began).Seconds()
		rates = []float64{(after - before) / took, (processorTime(l.serverPID()) - work).Seconds() * 1000 / took}
		return err
	})
	return rates, err
}

// loops runs number loops until the first error.
func loops(ctx context.Context, number int, loop func(ctx context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for range number {
		group.Go(func() error { return loop(ctx) })
	}
	return group.Wait()
}
