//go:build linux

package faults

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

const bar = 20 * time.Second

// A crew is one loop of one process, and when it was first at work on the promoted server.
type crew struct {
	loop string
	pool int
	back time.Time
}

type crews struct {
	mu   sync.Mutex
	all  []*crew
	late bool // work of the promoted server counts
}

func (c *crews) add(loop string, pool int) (atWork func()) {
	crew := &crew{loop: loop, pool: pool}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, crew)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.late && crew.back.IsZero() {
			crew.back = time.Now()
		}
	}
}

// The primary's packets are dropped silently, and the standby is promoted at once: every loop is at work there within 20 s, with the
// settings that docs/failover.md names. That is a time: it needs a machine that has nothing else to do.
func TestFailoverBar(t *testing.T) {
	if os.Getenv("LOCKS_FAILOVER_BAR") == "" {
		t.Skip("it measures times, and runs in: make torture-failover")
	}
	c := start(t, Options{Standby: "sync"})
	c.fault(t, "host vanished, and failover") // skips without
	if out, err := c.goose(ctx, c.url(), "up"); err != nil {
		t.Fatal(err, out)
	}
	running, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	crews := &crews{}
	const processes = 3
	queue := func(loop string, n int) string { return fmt.Sprintf("%s %d", loop, n) }
	quiet := slog.New(slog.DiscardHandler)
	slog.SetDefault(quiet)
	// Who holds what the waiters wait for renews it, also on the promoted server, and releases it there.
	admin, err := c.connect(ctx, c.url())
	must(t, err)
	holder := func(sql string, args ...any) {
		t.Helper()
		_, err := admin.Exec(ctx, sql, args...)
		must(t, err)
	}
	for n := range processes {
		holder("select lock.acquire_lease($1::text, 'holder', '10 s')", queue("waited for", n))
	}
	var pools []*pgxpool.Pool
	for n := range processes {
		config, err := pgxpool.ParseConfig(c.URL())
		must(t, err)
		config.MaxConns = 20
		config.ConnConfig.DialFunc = locks.Dial
		pool, err := pgxpool.NewWithConfig(running, config)
		must(t, err)
		pools = append(pools, pool)
		for _, loop := range []string{"idle WorkTasks", "busy WorkTasks"} {
			atWork := crews.add(loop, n)
			loops.Go(func() {
				locks.WorkTasks(running, pool, queue(loop, n), func(ctx context.Context, task db.Task) error {
					if strings.HasPrefix(task.ID, "new") {
						atWork()
					}
					return nil
				}, &locks.TaskOptions{Extend: true})
			})
		}
		for _, loop := range []string{"idle WorkRequests", "busy WorkRequests"} {
			atWork := crews.add(loop, n)
			loops.Go(func() {
				locks.WorkRequests(running, pool, queue(loop, n), func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
					if _, err := tx.Exec(ctx, "select pg_sleep(0.01)"); err != nil {
						return err
					}
					if strings.HasPrefix(batch[0].EntityID, "new") {
						atWork()
					}
					return nil
				}, nil)
			})
		}
		waited := crews.add("lease waiter", n)
		loops.Go(func() {
			for running.Err() == nil {
				locks.WithLease(running, pool, queue("waited for", n), 10*time.Second, func(context.Context, locks.Lease) error {
					waited()
					<-running.Done()
					return nil
				}, &locks.LeaseOptions{Wait: true})
				pause(running, time.Second)
			}
		})
		led := crews.add("leader loop", n)
		loops.Go(func() {
			for running.Err() == nil {
				locks.WithLease(running, pool, queue("leader", n), 15*time.Second, func(ctx context.Context, lease locks.Lease) error {
					for ctx.Err() == nil {
						err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return lease.Assert(ctx, tx) })
						if err == nil {
							led()
						}
						pause(ctx, 20*time.Millisecond)
					}
					return nil
				}, &locks.LeaseOptions{Wait: true})
				pause(running, time.Second)
			}
		})
	}
	created := 0
	feed := func(age string, loops ...string) {
		for n := range processes {
			for _, loop := range loops {
				created++
				if strings.HasSuffix(loop, "Tasks") {
					holder("select lock.create_task($1::text, $2::text, timeout => '1 h')", fmt.Sprint(age, created), queue(loop, n))
				} else {
					holder("select lock.enqueue('create', $1::text, null, $2::text)", fmt.Sprint(age, created), queue(loop, n))
				}
			}
		}
	}
	for began := time.Now(); time.Since(began) < 8*time.Second; pause(ctx, 20*time.Millisecond) { // so that idle ones are idle
		feed("old", "busy WorkTasks", "busy WorkRequests")
		for n := range processes {
			holder("select lock.renew_lease($1::text, token, '10 s') from lock.lease_holder where name = $1::text and owner = 'holder'", queue("waited for", n))
		}
	}
	vanished := time.Now()
	old, undo, err := c.promote(ctx, true)
	must(t, err)
	promoted := time.Now()
	defer func() { must(t, c.rebuild(ctx, old, undo)) }()
	admin.Close(ctx)
	admin, err = c.connect(ctx, c.url())
	must(t, err)
	defer admin.Close(ctx)
	crews.mu.Lock()
	crews.late = true // The old primary is dead: what commits now, commits here.
	crews.mu.Unlock()
	for n := range processes {
		holder("select lock.release_lease($1::text, token) from lock.lease_holder where name = $1::text and owner = 'holder'", queue("waited for", n))
	}
	feed("new", "idle WorkTasks", "idle WorkRequests")
	missing := func() (names []string) {
		crews.mu.Lock()
		defer crews.mu.Unlock()
		for _, crew := range crews.all {
			if crew.back.IsZero() {
				names = append(names, queue(crew.loop, crew.pool))
			}
		}
		return names
	}
	for time.Since(vanished) < 2*bar && len(missing()) > 0 {
		feed("new", "busy WorkTasks", "busy WorkRequests")
		pause(ctx, 20*time.Millisecond)
	}
	crews.mu.Lock()
	defer crews.mu.Unlock()
	longest := map[string]time.Duration{}
	for _, crew := range crews.all {
		if crew.back.IsZero() {
			crew.back = time.Now()
			t.Errorf("%s: not back", queue(crew.loop, crew.pool))
		}
		took := crew.back.Sub(vanished)
		longest[crew.loop] = max(longest[crew.loop], took)
		if took > bar {
			t.Errorf("%s: back after %v", queue(crew.loop, crew.pool), took)
		}
	}
	names := slices.SortedFunc(func(yield func(string) bool) {
		for name := range longest {
			if !yield(name) {
				return
			}
		}
	}, func(a, b string) int { return cmp.Compare(longest[a], longest[b]) })
	t.Logf("promoted %v after the primary vanished", promoted.Sub(vanished).Round(time.Millisecond))
	for _, name := range names {
		t.Logf("%-18s at work on the promoted server %v after the primary vanished", name, longest[name].Round(10*time.Millisecond))
	}
	stop()
	for _, pool := range pools {
		pool.Reset()
	}
}
