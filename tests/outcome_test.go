package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
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
)

// A toldLog is what Settled was told of tasks, by their ids, and of batches, by their entities.
type toldLog struct {
	mu      sync.Mutex
	results map[string][]locks.Result
	batches map[string][][]db.Request
}

func (l *toldLog) note(id string, result locks.Result, batch []db.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.results == nil {
		l.results, l.batches = map[string][]locks.Result{}, map[string][][]db.Request{}
	}
	l.results[id] = append(l.results[id], result)
	l.batches[id] = append(l.batches[id], batch)
}

func (l *toldLog) task(_ context.Context, r locks.TaskResult) { l.note(r.Task.ID, r.Result, nil) }

func (l *toldLog) request(_ context.Context, r locks.RequestResult) {
	l.note(r.Batch[0].EntityID, r.Result, r.Batch)
}

// all is what it was told of one.
func (l *toldLog) all(id string) []locks.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.results[id])
}

// of are the errors among it.
func (l *toldLog) of(id string) (failed []error) {
	for _, result := range l.all(id) {
		if result.Err != nil {
			failed = append(failed, result.Err)
		}
	}
	return failed
}

// afterRollback is called after each rollback that pgx sends.
type afterRollback func()

func (f afterRollback) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, f.key(), q.SQL)
}

func (f afterRollback) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(f.key()) == "rollback" {
		f()
	}
}

func (afterRollback) key() any { return struct{ string }{"sql"} }

// requestRun runs WorkRequests until the test ends or stop is called, which returns its error.
func requestRun(t *testing.T, pool *pgxpool.Pool, opts *locks.RequestOptions, handle func(context.Context, pgx.Tx, []db.Request) error) (stop func() error) {
	t.Helper()
	return runUntil(t, func(ctx context.Context) error { return locks.WorkRequests(ctx, pool, "", handle, opts) })
}

func runUntil(t *testing.T, work func(ctx context.Context) error) (stop func() error) {
	t.Helper()
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- work(running) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("it does not end with its context")
		}
	})
	t.Cleanup(func() { stop() })
	return stop
}

// openLatin gives the test a database whose encoding has few letters.
func openLatin(t *testing.T) (super, app string) {
	t.Helper()
	onlyPostgreSQL(t, "its databases are UTF8")
	name := newDatabase()
	conn, err := pgx.Connect(ctx, target.url)
	must(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "create database "+name+" owner locks_owner template template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'")
	must(t, err)
	t.Cleanup(func() {
		conn, err := pgx.Connect(ctx, target.url)
		must(t, err)
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, dropDatabase(name))
		must(t, err)
	})
	must(t, fill(name))
	user, err := pgx.ParseConfig(target.url)
	must(t, err)
	const texts = "&client_encoding=UTF8" // else the server takes what it gets for its own encoding
	return as(target.url, user.User, name) + texts, as(target.url, "locks_app", name) + texts
}

// An odd error panics when it is looked at in one way.
type oddError struct{ way string }

func (e oddError) Error() string {
	if e.way == "Error" {
		panic("Error")
	}
	return "odd"
}

func (e oddError) Is(error) bool {
	if e.way == "Is" {
		panic("Is")
	}
	return false
}

func (e oddError) As(any) bool {
	if e.way == "As" {
		panic("As")
	}
	return false
}

func (e oddError) Unwrap() error {
	if e.way == "Unwrap" {
		panic("Unwrap")
	}
	return nil
}

// TestRequestOutcomes: whatever a handler does, its batch is settled, and somebody is told, once.
func TestRequestOutcomes(t *testing.T) {
	t.Parallel()
	settled := func(s *session, entity string) string {
		return requestRows(s, "select request_status::text, count(*) from lock.request where entity_id = $1 group by 1 order by 1", entity)
	}
	t.Run("an entity that keeps getting updates is settled, and stops no other", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		const others = 200
		s.exec("select lock.enqueue('update', 'busy') from generate_series(1, 3)")
		s.exec("select lock.enqueue('update', 'other ' || n) from generate_series(1, $1::integer) n", others)
		told, calls, enough := &toldLog{}, atomic.Int64{}, atomic.Bool{}
		startRequestHandlers(t, e.pool, 1, func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			if batch[0].EntityID != "busy" {
				return nil
			}
			if calls.Add(1); !enough.Load() {
				if _, err := e.pool.Exec(ctx, "select lock.enqueue('update', 'busy')"); err != nil {
					t.Error(err)
				}
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(short, "select pg_sleep(5)")
			return err
		}, &locks.RequestOptions{Settled: told.request})
		eventually(t, "the others are complete, and some of it is settled", func() bool {
			return get[bool](s, "select count(*) filter (where request_status = 'complete') = $1 and count(*) filter (where request_status = 'error') >= 5 from lock.request", others)
		})
		enough.Store(true)
		eventually(t, "all of it is settled", func() bool {
			return get[int64](s, "select count(*) from lock.request where settled_at is null") == 0
		})
		// Each batch was handled once, and told once, with exactly its requests.
		seen := map[int64]bool{}
		for n, result := range told.all("busy") {
			if result.Outcome != locks.OutcomeDead || !errors.Is(result.Err, context.DeadlineExceeded) {
				t.Errorf("told %+v", result)
				continue
			}
			for _, request := range told.batches["busy"][n] {
				if seen[request.RequestID] {
					t.Errorf("told twice of request %d", request.RequestID)
				}
				seen[request.RequestID] = true
			}
		}
		if want := fmt.Sprintf("error %d", len(seen)); settled(s, "busy") != want || len(told.of("busy")) != int(calls.Load()) {
			t.Errorf("%s, and told of %s by %d calls", settled(s, "busy"), want, calls.Load())
		}
	})
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		t.Run("what is deferred is refused in the same transaction: "+mode, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			_, err := e.admin.Exec(ctx, `create table parent (id int primary key);
				create table child (parent_id int references parent deferrable initially deferred);
				grant insert on child to locks_app`)
			must(t, err)
			s := e.sessionAs(t, e.super)
			s.exec("select lock.enqueue('update', 'a')")
			told := &toldLog{}
			var process atomic.Value
			startRequestHandlers(t, openPool(t, e.url+"&default_query_exec_mode="+mode, 4), 1, func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
				process.Store(fmt.Sprint(batch[0].ProcessID))
				if _, err := e.pool.Exec(ctx, "select lock.enqueue('update', 'a') where not exists (select from lock.request_history('a') offset 5)"); err != nil {
					t.Error(err)
				}
				_, err := tx.Exec(ctx, "insert into child values (1)")
				return err
			}, &locks.RequestOptions{Settled: told.request})
			eventually(t, "they are settled", func() bool { return settled(s, "a") == "error 6" })
			if last := get[string](s, "select process_id::text from lock.request order by request_id desc limit 1"); last != process.Load() {
				t.Errorf("settled by %s, and captured by %s", last, process.Load())
			}
			if n := len(told.of("a")); n != 6 || code(told.of("a")[0]) != "23503" {
				t.Errorf("told %d times", n)
			}
		})
	}
	t.Run("a backlog is worked off in batches, the oldest first", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.enqueue('update', 'a') from generate_series(1, 25)")
		batches := make(chan string, 30)
		startRequestHandlers(t, e.pool, 1, func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
			batches <- fmt.Sprintf("%d to %d", batch[0].RequestID, batch[len(batch)-1].RequestID)
			return nil
		}, &locks.RequestOptions{BatchSize: 10})
		for _, want := range []string{"1 to 10", "11 to 20", "21 to 25"} {
			if got := <-batches; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		eventually(t, "all are settled", func() bool { return settled(s, "a") == "complete 25" })
	})
	t.Run("what was refused here and is done elsewhere cuts no other batch short", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.enqueue('update', 'a') from generate_series(1, 2)")
		config, err := pgxpool.ParseConfig(e.url)
		must(t, err)
		settling := sync.OnceFunc(func() { // between the two looks at what was refused
			s.exec("begin; select lock.capture_request(" + oneProcess + ", max => 2); select lock.settle_request(" + oneProcess + "); commit")
		})
		var refused atomic.Bool
		config.ConnConfig.Tracer = afterRollback(func() {
			if refused.Load() {
				settling()
			}
		})
		pool, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		t.Cleanup(pool.Close)
		batches := make(chan []db.Request, 10)
		requestRun(t, pool, quietRequests, func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			batches <- batch
			if refused.Load() {
				return nil
			}
			if _, err := e.pool.Exec(ctx, "select lock.enqueue('update', 'a') from generate_series(1, 3)"); err != nil {
				t.Error(err)
			}
			_, err := tx.Exec(ctx, "rollback /* by the handler */")
			refused.Store(true)
			return err
		})
		if first, second := <-batches, <-batches; len(first) != 2 || len(second) != 3 {
			t.Errorf("batches of %d and %d", len(first), len(second))
		}
		eventually(t, "all are settled", func() bool { return settled(s, "a") == "complete 5" })
	})
	t.Run("a transaction that is kept is closed", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.enqueue('update', 'a')")
		var kept, nested pgx.Tx
		startRequestHandlers(t, e.pool, 1, func(ctx context.Context, tx pgx.Tx, _ []db.Request) (err error) {
			kept = tx
			nested, err = tx.Begin(ctx)
			return err
		}, nil)
		eventually(t, "it is settled", func() bool { return settled(s, "a") == "complete 1" })
		for name, tx := range map[string]pgx.Tx{"kept": kept, "nested": nested} {
			_, exec := tx.Exec(ctx, "select 1")
			_, query := tx.Query(ctx, "select 1")
			_, begin := tx.Begin(ctx)
			_, prepare := tx.Prepare(ctx, "p", "select 1")
			_, copied := tx.CopyFrom(ctx, pgx.Identifier{"a"}, []string{"b"}, pgx.CopyFromRows(nil))
			for what, err := range map[string]error{
				"Exec": exec, "Query": query, "Begin": begin, "Prepare": prepare, "CopyFrom": copied,
				"QueryRow":  tx.QueryRow(ctx, "select 1").Scan(new(int)),
				"SendBatch": tx.SendBatch(ctx, &pgx.Batch{}).Close(),
				"Commit":    tx.Commit(ctx), "Rollback": tx.Rollback(ctx),
			} {
				if !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("%s: %s: %v", name, what, err)
				}
			}
		}
	})
	t.Run("a handler that ends its goroutine, or whose error cannot be looked at, has failed", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		ways := []string{"Goexit", "Error", "Is", "As", "Unwrap"}
		for _, way := range ways {
			s.exec("select lock.enqueue('update', $1)", way)
		}
		told := &toldLog{}
		stop := requestRun(t, e.pool, &locks.RequestOptions{Settled: told.request}, func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
			if batch[0].EntityID == "Goexit" {
				runtime.Goexit()
			}
			return oddError{batch[0].EntityID}
		})
		eventually(t, "all are settled", func() bool {
			return get[int64](s, "select count(*) from lock.request where request_status = 'error'") == int64(len(ways))
		})
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, way := range ways {
			if n := len(told.of(way)); n != 1 {
				t.Errorf("%s: told %d times", way, n)
			}
		}
	})
	for name, hook := range map[string]func(pool *pgxpool.Pool, err error) error{
		"uses the loop's own connection": func(pool *pgxpool.Pool, err error) error {
			calling, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			_, err = pool.Exec(calling, "insert into told values ($1)", err.Error())
			return err
		},
		"panics":             func(*pgxpool.Pool, error) error { panic("on error") },
		"ends its goroutine": func(*pgxpool.Pool, error) error { runtime.Goexit(); return nil },
	} {
		t.Run("a hook that "+name+" harms nobody", func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			_, err := e.admin.Exec(ctx, "create table told (what text); grant insert on told to locks_app")
			must(t, err)
			s := e.sessionAs(t, e.super)
			s.exec("select lock.enqueue('update', 'a'), lock.enqueue('update', 'b')")
			pool := openPool(t, e.url, 1)
			stop := requestRun(t, pool, &locks.RequestOptions{Settled: func(_ context.Context, result locks.RequestResult) {
				if err := hook(pool, result.Err); err != nil {
					t.Error(err)
				}
			}}, func(context.Context, pgx.Tx, []db.Request) error { return errors.New("no good") })
			eventually(t, "both are settled", func() bool { return settled(s, "a") == "error 1" && settled(s, "b") == "error 1" })
			if err := stop(); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if n := get[int64](s, "select count(*) from told"); strings.HasPrefix(name, "uses") && n != 2 {
				t.Errorf("%d were told", n)
			}
		})
	}
	t.Run("who waits for a connection is told that all are in use", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool := openPool(t, e.url, 1)
		only, err := pool.Acquire(ctx)
		must(t, err)
		defer only.Release()
		told := make(chan error, 100)
		stop := requestRun(t, pool, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{CallTimeout: 100 * time.Millisecond, OnError: func(_ context.Context, err error) { told <- err }}},
			func(context.Context, pgx.Tx, []db.Request) error { return nil })
		if err := <-told; !strings.Contains(err.Error(), "no connection of the pool, 1 of 1 are in use") || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("a message that the database has no letters for is spelled", func(t *testing.T) {
		t.Parallel()
		super, app := openLatin(t)
		admin := openPool(t, super, 2)
		_, err := admin.Exec(ctx, "select lock.enqueue('update', 'a')")
		must(t, err)
		told := &toldLog{}
		stop := requestRun(t, openPool(t, app, 2), &locks.RequestOptions{Settled: told.request}, func(context.Context, pgx.Tx, []db.Request) error {
			return errors.New("“é” is 5 €")
		})
		eventually(t, "it is settled", func() (is bool) {
			must(t, admin.QueryRow(ctx, `select count(*) = 1 from lock.request where request_status = 'error' and message = '\u201c\u00e9\u201d is 5 \u20ac' and tries = 1`).Scan(&is))
			return is
		})
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := len(told.of("a")); n != 1 {
			t.Errorf("told %d times", n)
		}
	})
	t.Run("what cannot be settled at the end is no clean stop", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.url)
		e.session(t).exec("select lock.enqueue('update', 'a')")
		working, finish := make(chan struct{}), make(chan struct{})
		opts := &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Grace: time.Second, CallTimeout: time.Second, OnError: func(context.Context, error) {}}}
		stop := requestRun(t, openPool(t, b.address, 2), opts, func(context.Context, pgx.Tx, []db.Request) error {
			close(working)
			<-finish
			return nil
		})
		<-working
		b.swallow(true)
		time.AfterFunc(10*time.Millisecond, func() { close(finish) }) // during or before the stop
		if err := stop(); !errors.Is(err, locks.ErrUnsettled) || errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestTaskOutcomes is the same for tasks.
func TestTaskOutcomes(t *testing.T) {
	t.Parallel()
	state := func(t *testing.T, e *env, id string) (s string) {
		t.Helper()
		must(t, e.admin.QueryRow(ctx, "select concat_ws(':', status, attempt, retries_left) from lock.task where id = $1", id).Scan(&s))
		return s
	}
	each := func(t *testing.T, e *env, opts *locks.TaskOptions, work func(context.Context, db.Task) error) (stop func() error) {
		return runUntil(t, func(ctx context.Context) error { return locks.WorkTasks(ctx, e.pool, "", work, opts) })
	}
	t.Run("the result is kept before anybody is told", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_tasks('{a,b}')")
		seen, calls := make(chan struct{}), atomic.Int64{}
		stop := each(t, e, &locks.TaskOptions{Concurrency: 1, Settled: func(context.Context, locks.TaskResult) {
			calls.Add(1)
			<-seen
		}}, func(context.Context, db.Task) error { return locks.Permanent(errors.New("no good")) })
		eventually(t, "the first is settled", func() bool { return state(t, e, "a") == "failed:1:0" })
		eventually(t, "somebody is told", func() bool { return calls.Load() == 1 })
		close(seen)
		eventually(t, "the second is settled", func() bool { return state(t, e, "b") == "failed:1:0" })
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := calls.Load(); n != 2 {
			t.Errorf("told %d times", n)
		}
	})
	for name, hook := range map[string]func(){"panics": func() { panic("settled") }, "ends its goroutine": runtime.Goexit} {
		t.Run("a hook that "+name+" harms nobody", func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			e.session(t).exec("select lock.create_tasks('{a,b}', retries_left => 1)")
			told := &toldLog{}
			stop := each(t, e, &locks.TaskOptions{Concurrency: 2, Settled: func(ctx context.Context, result locks.TaskResult) {
				told.task(ctx, result)
				hook()
			}}, func(context.Context, db.Task) error { return errors.New("no good") })
			eventually(t, "both are settled", func() bool { return state(t, e, "a") == "failed:1:0" && state(t, e, "b") == "failed:1:0" })
			if err := stop(); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			for _, id := range []string{"a", "b"} {
				if results := told.all(id); len(results) != 1 || results[0].Outcome != locks.OutcomeDead {
					t.Errorf("%s: told %+v", id, results)
				}
			}
		})
	}
	t.Run("who is told in the grace period has a context that lives", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_task('a')")
		finish, told := make(chan struct{}), make(chan error, 1)
		stop := each(t, e, &locks.TaskOptions{Settled: func(ctx context.Context, _ locks.TaskResult) { told <- ctx.Err() }}, func(context.Context, db.Task) error {
			<-finish
			return errors.New("no good")
		})
		eventually(t, "it idles", func() bool { return wakeIdlers(t, e, "default") == 1 })
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		eventually(t, "the loop has ended", func() bool { return wakeIdlers(t, e, "default") == 0 })
		close(finish)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-told; err != nil {
			t.Error(err)
		}
	})
	t.Run("a task whose time is over ends its handler, and its result is told to be dropped", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_task('a', timeout => '200 ms')")
		told := &toldLog{}
		release := make(chan struct{})
		var cause error
		stop := each(t, e, &locks.TaskOptions{Concurrency: 2, NoExtend: true, Settled: told.task}, func(ctx context.Context, task db.Task) error {
			if task.Attempt == 1 {
				select {
				case <-ctx.Done():
					cause = context.Cause(ctx)
				case <-time.After(patience):
					cause = errors.New("it goes on")
				}
				<-release // It is taken over meanwhile.
			}
			return nil
		})
		eventually(t, "it is taken over and done", func() bool { return state(t, e, "a") == "done:2" })
		close(release)
		eventually(t, "somebody is told", func() bool { return len(told.of("a")) == 1 })
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if errs := told.of("a"); len(errs) != 1 || !errors.Is(errs[0], locks.ErrTaskLost) {
			t.Errorf("told %v", errs)
		}
		if !errors.Is(cause, locks.ErrTaskLost) {
			t.Errorf("the cause is %v", cause)
		}
	})
	t.Run("a batch is extended by one call", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		const size = 500
		e.session(t).exec("select lock.create_tasks(array(select n::text from generate_series(1, $1::integer) n), timeout => '6 s')", size)
		pool, queries := openLogged(t, e.url, 4)
		layers := make(chan int, 1)
		stop := runUntil(t, func(ctx context.Context) error {
			return locks.WorkTaskBatches(ctx, pool, "", size, func(ctx context.Context, tasks []db.Task) []error {
				before := queries.count()
				var deadline time.Time
				eventually(t, "all are extended twice", func() bool {
					var least time.Time
					must(t, e.admin.QueryRow(ctx, "select min(deadline) from lock.task where attempt = 1 and deadline is not null").Scan(&least))
					if deadline.IsZero() {
						deadline = least
					}
					return least.After(deadline.Add(3 * time.Second))
				})
				layers <- len(queries.since(before))
				return nil
			}, nil)
		})
		if n := <-layers; n > 4 {
			t.Errorf("%d calls to extend a batch twice", n)
		}
		eventually(t, "all are done", func() (done bool) {
			must(t, e.admin.QueryRow(ctx, "select count(*) = $1 from lock.task where status = 'done' and attempt = 1", size).Scan(&done))
			return done
		})
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("a message that the database has no letters for is spelled", func(t *testing.T) {
		t.Parallel()
		super, app := openLatin(t)
		admin := openPool(t, super, 2)
		_, err := admin.Exec(ctx, "select lock.create_task('a')")
		must(t, err)
		pool := openPool(t, app, 2)
		stop := runUntil(t, func(ctx context.Context) error {
			return locks.WorkTasks(ctx, pool, "", func(context.Context, db.Task) error { return locks.Permanent(errors.New("5 €\n\\")) }, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{OnError: func(context.Context, error) {}}})
		})
		eventually(t, "it is settled", func() (is bool) {
			must(t, admin.QueryRow(ctx, `select status = 'failed' and message = E'5 \\u20ac\n\\' and tries = 1 from lock.task`).Scan(&is))
			return is
		})
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("an error that cannot be looked at has failed", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_tasks('{Error,Is,As,Unwrap}', retries_left => 1)")
		told := &toldLog{}
		stop := each(t, e, &locks.TaskOptions{Settled: told.task}, func(_ context.Context, task db.Task) error { return oddError{task.ID} })
		for _, way := range []string{"Error", "Is", "As", "Unwrap"} {
			eventually(t, way+" has failed", func() bool { return state(t, e, way) == "failed:1:0" })
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, way := range []string{"Error", "Is", "As", "Unwrap"} {
			if n := len(told.of(way)); n != 1 {
				t.Errorf("%s: told %d times", way, n)
			}
		}
	})
	t.Run("what cannot be settled at the end is no clean stop, and is told", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.url)
		e.session(t).exec("select lock.create_task('a')")
		working, finish := make(chan struct{}), make(chan struct{})
		told := &toldLog{}
		pool := openPool(t, b.address, 4)
		stop := runUntil(t, func(ctx context.Context) error {
			return locks.WorkTasks(ctx, pool, "", func(context.Context, db.Task) error {
				close(working)
				<-finish
				return errors.New("no good")
			}, &locks.TaskOptions{Settled: told.task, WorkerOptions: locks.WorkerOptions{Grace: time.Second, CallTimeout: time.Second}})
		})
		<-working
		b.swallow(true)
		close(finish)
		if err := stop(); !errors.Is(err, locks.ErrUnsettled) || errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if errs := told.of("a"); len(errs) != 1 || !errors.Is(errs[0], locks.ErrUnsettled) || !strings.Contains(errs[0].Error(), "no good") {
			t.Errorf("told %v", errs)
		}
	})
}

// TestWorkerOptions: what no worker can work with is refused before anything is captured.
func TestWorkerOptions(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("select lock.create_task('a'), lock.enqueue('update', 'a')")
	task := func(context.Context, db.Task) error { return nil }
	tasks := func(context.Context, []db.Task) []error { return nil }
	request := func(context.Context, pgx.Tx, []db.Request) error { return nil }
	running, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for want, work := range map[string]func() error{
		`task queue "q": the handler is nil`:   func() error { return locks.WorkTasks(running, e.pool, "q", nil, nil) },
		`task queue "default": the handler`:    func() error { return locks.WorkTaskBatches(running, e.pool, "", 1, nil, nil) },
		`request queue "default": the handler`: func() error { return locks.WorkRequests(running, e.pool, "", nil, nil) },
		`task queue "default": Poll is -1s`: func() error {
			return locks.WorkTasks(running, e.pool, "", task, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: -time.Second}})
		},
		`task queue "default": Poll is 1ns`: func() error {
			return locks.WorkTasks(running, e.pool, "", task, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: 1}})
		},
		`task queue "default": Blind is 1ns`: func() error {
			return locks.WorkTasks(running, e.pool, "", task, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Blind: 1}})
		},
		`task queue "default": Grace is -1s`: func() error {
			return locks.WorkTasks(running, e.pool, "", task, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Grace: -time.Second}})
		},
		`task queue "default": the batches' size is 0`: func() error {
			return locks.WorkTaskBatches(running, e.pool, "", 0, tasks, nil)
		},
		`task queue "default": Concurrency is`: func() error { return locks.WorkTasks(running, e.pool, "", task, &locks.TaskOptions{Concurrency: -1}) },
		`queue "default": CallTimeout is -1ns`: func() error {
			return locks.WorkRequests(running, e.pool, "", request, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{CallTimeout: -1}})
		},
		`request queue "default": Poll is 1ms`: func() error {
			return locks.WorkRequests(running, e.pool, "", request, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Millisecond}})
		},
		`request queue "default": MaxTries is`: func() error {
			return locks.WorkRequests(running, e.pool, "", request, &locks.RequestOptions{MaxTries: -1})
		},
		`request queue "default": BatchSize is`: func() error {
			return locks.WorkRequests(running, e.pool, "", request, &locks.RequestOptions{BatchSize: -1})
		},
	} {
		if err := work(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	answers(s, "new:0", "select status || ':' || tries from lock.get_task('a')")
	answers(s, "new", "select request_status::text from lock.request_history('a')")
}

// What workers log without hooks. The default logger is everybody's, so this test runs beside no other.
func TestWorkersLog(t *testing.T) {
	var lines lockedBuffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&lines, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	e := open(t, advisory)
	s := e.session(t)
	s.exec("select lock.create_task('poison'), lock.create_task('last', retries_left => 1), lock.create_task('later'), lock.create_task('never')")
	s.exec("select lock.enqueue('update', 'x')")
	proxy := newBlackHole(t, e.url)
	pool := openPool(t, proxy.address, 4)
	tasks := runUntil(t, func(ctx context.Context) error {
		return locks.WorkTasks(ctx, pool, "", func(_ context.Context, task db.Task) error {
			switch task.ID {
			case "later":
				return locks.RetryAfter(time.Hour, errors.New("closed"))
			case "never":
				return locks.Permanent(errors.New("no such file"))
			}
			return errors.New("no antidote")
		}, &locks.TaskOptions{ShortestPause: time.Hour, WorkerOptions: locks.WorkerOptions{CallTimeout: time.Second, Poll: time.Second}})
	})
	requests := runUntil(t, func(ctx context.Context) error {
		return locks.WorkRequests(ctx, e.pool, "", func(context.Context, pgx.Tx, []db.Request) error { return errors.New("no paper") }, nil)
	})
	logged := func(parts ...string) func() bool {
		return func() bool {
			for _, line := range strings.Split(lines.String(), "\n") {
				if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
					return true
				}
			}
			return false
		}
	}
	for _, parts := range [][]string{
		{"level=INFO", `msg="locks: task worker begins" queue=default`},
		{"level=INFO", `msg="locks: request worker begins" queue=default`},
		{"level=WARN", "task=poison attempt=1 tries=1 outcome=retry", `error="no antidote"`},
		{"level=WARN", "task=later", "outcome=retry", "retry_at="},
		{"level=ERROR", "task=last", "outcome=dead"},
		{"level=ERROR", "task=never", "outcome=dead", `error="no such file"`},
		{"level=ERROR", "entity=x", "outcome=dead", `error="no paper"`},
	} {
		eventually(t, strings.Join(parts, " "), logged(parts...))
	}
	proxy.swallow(true)
	eventually(t, "the worker is cut off", logged("level=WARN", "locks: work on task queue"))
	proxy.swallow(false)
	eventually(t, "the worker is back", logged("level=INFO", "locks: task worker is back"))
	for _, stop := range []func() error{tasks, requests} {
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for _, kind := range []string{"task", "request"} {
		if !logged("level=INFO", "locks: "+kind+" worker has ended")() {
			t.Errorf("the end of the %s worker is not logged:\n%s", kind, lines.String())
		}
	}
}

// A lockedBuffer is written to by many.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
