//go:build linux

package faults

import (
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

const bar = 12 * time.Second

// A crew is one loop, and when it was first at work on the promoted server.
type crew struct {
	loop string
	pool string
	back time.Time
}

type crews struct {
	mu   sync.Mutex
	all  []*crew
	late bool // work of the promoted server counts
}

func (c *crews) add(loop, pool string) (atWork func()) {
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

// The primary's packets are dropped silently, and the standby is promoted at once: every loop is at work there within 12 s, with the
// settings that docs/failover.md names: with pools of 2, 4 and 20, shared by all loops or one for each sort. That is a time: it needs a machine that has nothing else to do.
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
	shapes := []string{"2 shared", "4 shared", "20 shared", "2 apart", "4 apart", "20 apart"}
	queue := func(loop, shape string) string { return loop + ", pool of " + shape }
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
	for _, shape := range shapes {
		holder("select lock.acquire_lease($1::text, 'holder', '10 s')", queue("waited for", shape))
	}
	var pools []*pgxpool.Pool
	for _, shape := range shapes {
		var size int32
		fmt.Sscan(shape, &size)
		open := func() *pgxpool.Pool {
			config, err := pgxpool.ParseConfig(c.URL())
			must(t, err)
			config.MaxConns = size
			config.ConnConfig.DialFunc = locks.Dial
			pool, err := pgxpool.NewWithConfig(running, config)
			must(t, err)
			pools = append(pools, pool)
			return pool
		}
		pool := open()
		of := map[string]*pgxpool.Pool{"idle": pool, "busy": pool, "leases": pool}
		if strings.HasSuffix(shape, "apart") {
			of["idle"], of["busy"] = open(), open()
		}
		for _, loop := range []string{"idle WorkTasks", "busy WorkTasks"} {
			atWork, pool := crews.add(loop, shape), of[loop[:4]]
			loops.Go(func() {
				locks.WorkTasks(running, pool, queue(loop, shape), func(ctx context.Context, task db.Task) error {
					if strings.HasPrefix(task.ID, "new") {
						atWork()
					}
					return nil
				}, nil)
			})
		}
		for _, loop := range []string{"idle WorkRequests", "busy WorkRequests"} {
			atWork, pool := crews.add(loop, shape), of[loop[:4]]
			loops.Go(func() {
				locks.WorkRequests(running, pool, queue(loop, shape), func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
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
		waited := crews.add("lease waiter", shape)
		loops.Go(func() {
			for running.Err() == nil {
				locks.WithLease(running, of["leases"], queue("waited for", shape), 10*time.Second, func(context.Context, locks.Lease) error {
					waited()
					<-running.Done()
					return nil
				}, &locks.LeaseOptions{Wait: true})
				pause(running, time.Second)
			}
		})
		led := crews.add("leader loop", shape)
		loops.Go(func() {
			for running.Err() == nil {
				locks.WithLease(running, of["leases"], queue("leader", shape), 15*time.Second, func(ctx context.Context, lease locks.Lease) error {
					for ctx.Err() == nil {
						err := pgx.BeginFunc(ctx, of["leases"], func(tx pgx.Tx) error { return lease.Assert(ctx, tx) })
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
		for _, shape := range shapes {
			for _, loop := range loops {
				created++
				if strings.HasSuffix(loop, "Tasks") {
					holder("select lock.create_task($1::text, $2::text, timeout => '1 h')", fmt.Sprint(age, created), queue(loop, shape))
				} else {
					holder("select lock.enqueue('create', $1::text, null, $2::text)", fmt.Sprint(age, created), queue(loop, shape))
				}
			}
		}
	}
	for began := time.Now(); time.Since(began) < 8*time.Second; pause(ctx, 20*time.Millisecond) { // so that idle ones are idle
		feed("old", "busy WorkTasks", "busy WorkRequests")
		for _, shape := range shapes {
			holder("select lock.renew_lease($1::text, token, '10 s') from lock.lease_holder where name = $1::text and owner = 'holder'", queue("waited for", shape))
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
	for _, shape := range shapes {
		holder("select lock.release_lease($1::text, token) from lock.lease_holder where name = $1::text and owner = 'holder'", queue("waited for", shape))
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
	for _, crew := range crews.all {
		if crew.back.IsZero() {
			crew.back = time.Now()
			t.Errorf("%s: not back", queue(crew.loop, crew.pool))
		}
		took := crew.back.Sub(vanished)
		if took > bar {
			t.Errorf("%s: back after %v", queue(crew.loop, crew.pool), took)
		}
	}
	t.Logf("promoted %v after the primary vanished", promoted.Sub(vanished).Round(time.Millisecond))
	slices.SortFunc(crews.all, func(a, b *crew) int { return a.back.Compare(b.back) })
	for _, crew := range crews.all {
		t.Logf("%-40s at work on the promoted server %v after the primary vanished", queue(crew.loop, crew.pool), crew.back.Sub(vanished).Round(10*time.Millisecond))
	}
	stop()
	for _, pool := range pools {
		pool.Reset()
	}
}
