package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/wake"
)

// connectionCount is how many connections have an application_name.
func connectionCount(t *testing.T, e *env, name string) (n int) {
	t.Helper()
	must(t, e.admin.QueryRow(ctx, "select count(*) from pg_stat_activity where application_name = $1", name).Scan(&n))
	return n
}

// Renewals and extensions do not wait for the application's pool, nor for what stands still there.
func TestConnectionOwn(t *testing.T) {
	t.Parallel()
	// named is a pool whose connections have a name, given as each is made.
	named := func(t *testing.T, url, name string, size int32) *pgxpool.Pool {
		t.Helper()
		config, err := pgxpool.ParseConfig(url)
		must(t, err)
		config.MaxConns = size
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "set application_name = '"+name+"'")
			return err
		}
		pool, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	const ttl = 3 * time.Second

	t.Run("a lease is renewed while others have the whole pool", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		name := fmt.Sprint("own lease ", newDatabase())
		pool := named(t, e.app, name, 1)
		must(t, locks.WithLease(ctx, pool, "a", ttl, func(leased context.Context, lease locks.Lease) error {
			conn, err := pool.Acquire(ctx)
			must(t, err)
			defer conn.Release()
			first := leaseRenewed(t, e)
			within(t, perseverance, "it outlives its ttl", func() bool {
				return leased.Err() != nil || leaseRenewed(t, e).Sub(first) > 2*ttl
			})
			if n := connectionCount(t, e, name); n != 2 {
				t.Errorf("%d connections, one of them the pool's", n)
			}
			return context.Cause(leased)
		}, nil))
		eventually(t, "the connections of its own have gone", func() bool { return connectionCount(t, e, name) == 1 })
	})

	t.Run("a task is extended while its handler has the whole pool", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool := openPool(t, e.url, 1)
		e.session(t).exec("select lock.create_task('a', timeout => '3 seconds')")
		working, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			ended <- locks.WorkTasks(working, pool, "", func(ctx context.Context, task db.Task) error {
				defer stop()
				conn, err := pool.Acquire(ctx)
				if err != nil {
					return err
				}
				defer conn.Release()
				first, last := *task.Deadline, *task.Deadline
				within(t, perseverance, "it outlives its timeout", func() bool {
					must(t, e.admin.QueryRow(ctx, "select deadline from lock.task where id = 'a'").Scan(&last))
					return ctx.Err() != nil || last.Sub(first) > 2*ttl
				})
				return ctx.Err()
			}, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{OnError: func(_ context.Context, err error) { t.Error(err) }}})
		}()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("WorkTasks: %v", err)
		}
	})

	t.Run("a lease is renewed by the pool where there is room for no more connections", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool := wakeDeaf(t, e)
		must(t, locks.WithLease(ctx, pool, "a", ttl, func(leased context.Context, lease locks.Lease) error {
			first := leaseRenewed(t, e)
			within(t, perseverance, "it outlives its ttl", func() bool {
				return leased.Err() != nil || leaseRenewed(t, e).Sub(first) > 2*ttl
			})
			return context.Cause(leased)
		}, nil))
	})

	t.Run("a renewal that is not answered is made again on another connection", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.app)
		pool := openPool(t, b.address, 4)
		must(t, locks.WithLease(ctx, pool, "a", 15*time.Second, func(leased context.Context, lease locks.Lease) error {
			for range 2 {
				before := leaseRenewed(t, e)
				eventually(t, "a renewal", func() bool { return leaseRenewed(t, e).After(before) })
				b.swallow(false)
			}
			before := leaseRenewed(t, e)
			within(t, perseverance, "a renewal", func() bool { return leased.Err() != nil || leaseRenewed(t, e).After(before) })
			return context.Cause(leased)
		}, nil))
	})
}

// The time of a lease counts from when there is a connection to ask on.
func TestConnectionWaitIsNotHeldTime(t *testing.T) {
	t.Parallel()
	for _, wait := range []bool{false, true} {
		t.Run(fmt.Sprintf("wait %t", wait), func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			pool := openPool(t, e.url, 1)
			conn, err := pool.Acquire(ctx)
			must(t, err)
			defer conn.Release()
			done := make(chan error, 1)
			began := time.Now()
			const ttl = 2 * time.Second
			go func() {
				done <- locks.WithLease(ctx, pool, "a", ttl, func(ctx context.Context, _ locks.Lease) error { return ctx.Err() }, &locks.LeaseOptions{Wait: wait})
			}()
			within(t, perseverance, "it waits for longer than its ttl", func() bool { return time.Since(began) > 2*ttl })
			conn.Release()
			must(t, <-done)
		})
	}
}

// A slow call is no reason to close what works: the application's connections stay. Those that are dead go, all at once.
func TestConnectionSlowCall(t *testing.T) {
	t.Parallel()
	const warm = 8
	// fill opens all of a pool's connections, and says which they are.
	fill := func(t *testing.T, pool *pgxpool.Pool) (pids []uint32) {
		t.Helper()
		var conns []*pgxpool.Conn
		for range warm {
			conn, err := pool.Acquire(ctx)
			must(t, err)
			conns, pids = append(conns, conn), append(pids, conn.Conn().PgConn().PID())
		}
		for _, conn := range conns {
			conn.Release()
		}
		slices.Sort(pids)
		return pids
	}
	// work lets a worker have one slow call, and then waits until it has done a task.
	work := func(t *testing.T, pool *pgxpool.Pool, slow func() error) {
		t.Helper()
		working, stop := context.WithCancel(ctx)
		defer stop()
		first := true
		err := wake.Watch(working, pool, wake.Tasks, "q", wake.Options{CallTimeout: 2 * time.Second}, func(ctx context.Context) (bool, error) {
			if first {
				first = false
				return false, slow()
			}
			calling, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			err := wake.Call(calling, pool, func(conn db.DBTX) error {
				_, err := db.New(conn).Engine(calling)
				return err
			})
			if err == nil {
				stop()
			}
			return false, err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	}

	t.Run("keeps the connections that work", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool := openPool(t, e.app, warm)
		before := fill(t, pool)
		work(t, pool, func() error {
			calling, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			_, err := pool.Exec(calling, "select pg_sleep(60)")
			return err
		})
		eventually(t, "the slow one has gone", func() bool { return pool.Stat().TotalConns() == pool.Stat().IdleConns() })
		left := 0
		for _, pid := range fill(t, pool) {
			if slices.Contains(before, pid) {
				left++
			}
		}
		if left != warm-1 {
			t.Errorf("%d of %d warm connections are left", left, warm)
		}
	})

	t.Run("closes those that are dead, and them alone", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.app)
		pool := openPool(t, b.address, warm)
		before := fill(t, pool)
		wake.Weed(pool)
		if after := fill(t, pool); !slices.Equal(before, after) {
			t.Errorf("of %v there are %v", before, after)
		}
		b.swallow(false)
		wake.Weed(pool)
		if n := pool.Stat().TotalConns(); n != 0 {
			t.Errorf("%d dead ones are left", n)
		}
	})

	t.Run("is not held up by those that are dead", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.app)
		pool := openPool(t, b.address, warm)
		fill(t, pool)
		began := time.Now()
		within(t, patience, "they are asked before they are used", func() bool { return time.Since(began) > 1500*time.Millisecond })
		b.swallow(false)
		// 2 s for the first, and 1 s for all others together.
		calling, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		must(t, wake.Call(calling, pool, func(conn db.DBTX) error {
			_, err := db.New(conn).Engine(calling)
			return err
		}))
	})
}

// Loops that failed together do not come back together.
func TestConnectionPauses(t *testing.T) {
	t.Parallel()
	const n = 4000
	var bins [10]int
	for range n {
		pauses := wake.Pauses{Shortest: 10 * time.Millisecond, Longest: time.Second}
		for last := time.Duration(0); last < time.Second; last = min(max(2*last, 10*time.Millisecond), time.Second) {
			pause, length := pauses.Next(), min(max(2*last, 10*time.Millisecond), time.Second)
			if pause < length/2 || pause >= length*3/2 {
				t.Fatalf("a pause of %v, whose length is %v", pause, length)
			}
		}
		bins[(pauses.Next()-time.Second/2)*10/time.Second]++
	}
	for bin, count := range bins {
		if count < n/20 || count > n/5 {
			t.Errorf("of %d pauses %d are in tenth %d", n, count, bin)
		}
	}
	pauses := wake.Pauses{Shortest: time.Second, Longest: time.Minute}
	pauses.Next()
	pauses.Next()
	if pauses.Over(); pauses.Next() >= 3*time.Second/2 {
		t.Error("it goes on growing")
	}
	t.Run("of loops", func(t *testing.T) {
		t.Parallel()
		config, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/nothing")
		must(t, err)
		pool, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		defer pool.Close()
		running, stop := context.WithCancel(ctx)
		defer stop()
		var mu sync.Mutex
		var attempts []time.Time
		const loops = 20
		var all sync.WaitGroup
		for range loops {
			all.Go(func() {
				wake.Watch(running, pool, wake.Tasks, "q", wake.Options{}, func(ctx context.Context) (bool, error) {
					mu.Lock()
					defer mu.Unlock()
					attempts = append(attempts, time.Now())
					return false, pool.Ping(ctx)
				})
			})
		}
		// Nine or so are made while the pauses grow to a second.
		within(t, perseverance, "they go on", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(attempts) > loops*14
		})
		stop()
		all.Wait()
		var phases [5]int
		late := attempts[loops*11 : loops*14]
		for _, at := range late {
			phases[at.Sub(late[0])%time.Second/(time.Second/5)]++
		}
		if most := slices.Max(phases[:]); most > len(late)/2 {
			t.Errorf("of %d attempts %d are in the same fifth of a second: %v", len(late), most, phases)
		}
	})
}

// Who stands in line has a turn in the order of coming, and one who leaves is not waited for.
func TestConnectionLine(t *testing.T) {
	t.Parallel()
	pool := &pgxpool.Pool{}
	var turns []<-chan struct{}
	var leaves []func()
	for range 5 {
		turn, leave := wake.Enter(pool, "a")
		turns, leaves = append(turns, turn), append(leaves, leave)
	}
	other, leaveOther := wake.Enter(pool, "b")
	elsewhere, leaveElsewhere := wake.Enter(&pgxpool.Pool{}, "a")
	have := func() (n []int) {
		for i, turn := range turns {
			select {
			case <-turn:
				n = append(n, i)
			default:
			}
		}
		return n
	}
	<-other
	<-elsewhere
	for _, step := range []struct {
		leave int
		have  []int
	}{{2, []int{0}}, {0, []int{0, 1}}, {0, []int{0, 1}}, {1, []int{0, 1, 3}}, {4, []int{0, 1, 3}}, {3, []int{0, 1, 3}}} {
		leaves[step.leave]()
		if got := have(); !slices.Equal(got, step.have) {
			t.Errorf("%d has left: turns %v, want %v", step.leave, got, step.have)
		}
	}
	leaveOther()
	leaveElsewhere()
	again, leave := wake.Enter(pool, "a")
	defer leave()
	<-again
}

// A password that is being changed, a database that is being restored: what is told to somebody who connects ends no loop.
func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	if target.own == nil {
		t.Skip("it changes pg_hba.conf, and the server is not ours")
	}
	e := open(t, advisory)
	role := fmt.Sprintf("locks_rotating_%d", time.Now().UnixNano())
	admin := func(sql string) {
		t.Helper()
		_, err := e.admin.Exec(ctx, sql)
		must(t, err)
	}
	admin("create role " + role + " login password 'one' in role locks_app")
	rules := filepath.Join(target.own.Dir, "data", "pg_hba.conf")
	old, err := os.ReadFile(rules)
	must(t, err)
	reload := func(text []byte) {
		must(t, os.WriteFile(rules, text, 0o600))
		admin("select pg_reload_conf()")
	}
	reload(append([]byte("host all "+role+" all scram-sha-256\n"), old...))
	password := atomic.Pointer[string]{}
	one, two, wrong := "one", "two", "wrong"
	config, err := pgxpool.ParseConfig(strings.Replace(e.app, "locks_app@", role+"@", 1))
	must(t, err)
	config.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		conn.Password = *password.Load()
		return nil
	}
	password.Store(&wrong)
	strict, err := pgx.ParseConfig(config.ConnString())
	must(t, err)
	strict.Password = wrong
	eventually(t, "passwords are asked for", func() bool {
		conn, err := pgx.ConnectConfig(ctx, strict)
		if err == nil {
			conn.Close(ctx)
		}
		return code(err) == "28P01"
	})
	password.Store(&one)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	working, stop := context.WithCancel(ctx)
	var told sync.Map // which loop was told of which SQLSTATE
	tell := func(loop string) func(context.Context, error) {
		return func(_ context.Context, err error) { told.Store(loop+" "+code(err), true) }
	}
	var tasks, requests, led atomic.Int64
	loops := map[string]func() error{
		"tasks": func() error {
			return locks.WorkTasks(working, pool, "", func(context.Context, db.Task) error { tasks.Add(1); return nil }, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{OnError: tell("tasks")}})
		},
		"requests": func() error {
			return locks.WorkRequests(working, pool, "", func(context.Context, pgx.Tx, []db.Request) error { requests.Add(1); return nil }, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{OnError: tell("requests")}})
		},
		"lease": func() error {
			return locks.WithLease(working, pool, "a", time.Hour, func(ctx context.Context, _ locks.Lease) error {
				led.Add(1)
				<-ctx.Done()
				return ctx.Err()
			}, &locks.LeaseOptions{Wait: true, OnError: tell("lease")})
		},
	}
	s := e.session(t)
	token := s.lease("a", 1)
	ended := make(chan error, len(loops))
	for name, loop := range loops {
		go func() {
			err := loop()
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s ended: %v", name, err)
			}
			ended <- err
		}()
	}
	defer func() {
		stop()
		for range loops {
			<-ended
		}
		pool.Close()
		reload(old)
		eventually(t, "the role's connections have ended", func() bool {
			_, err := e.admin.Exec(ctx, "drop role "+role)
			return err == nil
		})
	}()
	done := int64(0)
	works := func() {
		t.Helper()
		done++
		s.exec("select lock.create_task($1)", fmt.Sprint(done))
		s.exec("select lock.enqueue('create', $1)", fmt.Sprint(done))
		eventually(t, "they work", func() bool { return tasks.Load() >= done && requests.Load() >= done })
	}
	refused := func(state string) {
		t.Helper()
		// The one that listens ends last: its end makes who waits for the lease ask, and that must find no other connection.
		for _, which := range []string{"not", ""} {
			eventually(t, "they are cut off", func() (gone bool) {
				const listens = " (query ilike 'listen %' or query ilike 'notify %')"
				must(t, e.admin.QueryRow(ctx, "select count(pg_terminate_backend(pid)) = 0 from pg_stat_activity where usename = '"+role+"' and "+which+listens).Scan(&gone))
				return gone
			})
		}
		eventually(t, "all are told of "+state, func() bool {
			for name := range loops {
				if _, yes := told.Load(name + " " + state); !yes {
					return len(ended) > 0
				}
			}
			return true
		})
	}
	works()
	awaited := func() {
		t.Helper()
		eventually(t, "the lease is awaited", func() (yes bool) {
			must(t, e.admin.QueryRow(ctx, "select coalesce(bool_or(awaited), false) from lock.lease").Scan(&yes))
			return yes
		})
	}
	awaited()
	admin("alter role " + role + " password 'two'")
	refused("28P01")
	admin("update lock.lease set awaited = false") // who waits says so again when it gets through
	password.Store(&two)
	works()
	awaited()
	eventually(t, "it listens again", func() (yes bool) {
		must(t, e.admin.QueryRow(ctx, "select exists (select from pg_stat_activity where usename = '"+role+"' and (query ilike 'listen %' or query ilike 'notify %'))").Scan(&yes))
		return yes
	})
	admin("alter role " + role + " nologin")
	refused("28000")
	admin("alter role " + role + " login")
	works()
	answers(s, true, "select lock.release_lease('a', $1)", token)
	eventually(t, "the lease is granted", func() bool { return led.Load() == 1 })
}

// A heartbeat may be in the middle of a beat when the last user of the connections leaves, who never used them.
func TestConnectionOwnAfterItsEnd(t *testing.T) {
	t.Parallel()
	own, leave := wake.UseOwn(open(t, engines()[0]).pool)
	leave()
	if err := own.Call(ctx, func(db.DBTX) error { return nil }); err == nil {
		t.Error("a call behind the end")
	}
}
