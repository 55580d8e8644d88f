package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// TestTaskWorkerProcess is the worker process of TestTaskProcesses, when that runs it.
func TestTaskWorkerProcess(t *testing.T) {
	url := os.Getenv(workerURL)
	if url == "" {
		t.Skip("this is a part of TestTaskProcesses")
	}
	pool, err := pgxpool.New(ctx, url)
	must(t, err)
	err = locks.WorkTasks(ctx, pool, "", func(ctx context.Context, task db.Task) error {
		fmt.Printf("task %s:%d\n", task.ID, task.Attempt)
		return nil
	}, &locks.TaskOptions{Concurrency: 5, WorkerOptions: locks.WorkerOptions{Poll: 100 * time.Millisecond}})
	t.Fatal(err)
}

func TestTaskProcesses(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	const n = 1500
	s.exec("select lock.create_tasks(array(select 'task' || n from generate_series(1, $1) n), timeout => '100 ms')", n)
	work := &taskWork{grants: map[string]int{}}
	left := func() (count int) {
		if err := e.admin.QueryRow(ctx, "select count(*) from lock.task where status <> 'done'").Scan(&count); err != nil {
			t.Error(err)
		}
		return count
	}
	began := time.Now()
	over := func() bool { return t.Failed() || time.Since(began) > perseverance }
	var wg sync.WaitGroup
	var kills atomic.Int64
	for range 3 {
		wg.Go(func() {
			for left() > 0 && !over() {
				cmd := exec.Command(os.Args[0], "-test.run=^TestTaskWorkerProcess$", "-test.v")
				cmd.Env = append(os.Environ(), workerURL+"="+e.url)
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Error(err)
					return
				}
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				// Kill it in the middle of its work, or when there is none.
				lines := bufio.NewScanner(out)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for seen := 0; lines.Scan(); {
						if grant, ok := strings.CutPrefix(lines.Text(), "task "); ok {
							id, attempt, _ := strings.Cut(grant, ":")
							var number int64
							fmt.Sscan(attempt, &number)
							work.grant(id, number)
							if seen++; seen == 150 {
								cmd.Process.Kill()
							}
						}
					}
				}()
				for ended := false; !ended; {
					select {
					case <-done:
						ended = true
					case <-time.After(50 * time.Millisecond):
						if left() == 0 || over() {
							cmd.Process.Kill()
						}
					}
				}
				cmd.Wait()
				kills.Add(1)
			}
		})
	}
	wg.Wait()
	if found := work.doubles(); len(found) > 0 {
		t.Errorf("granted twice: %.200v", found)
	}
	answers(e.sessionAs(t, e.super), n, "select count(*) from lock.task where status = 'done'")
	if kills.Load() < 4 || len(work.grants) < n {
		t.Errorf("%d kills, %d grants", kills.Load(), len(work.grants))
	}
}

// taskLoop runs WorkTaskBatches until the test ends or stop is called.
func taskLoop(t *testing.T, pool *pgxpool.Pool, opts *locks.TaskOptions, work func(ctx context.Context, tasks []db.Task) []error) (stop func()) {
	t.Helper()
	return taskRun(t, func(ctx context.Context) error { return locks.WorkTaskBatches(ctx, pool, "", 10, work, opts) })
}

// taskLoopEach runs WorkTasks until the test ends or stop is called.
func taskLoopEach(t *testing.T, pool *pgxpool.Pool, opts *locks.TaskOptions, work func(ctx context.Context, task db.Task) error) (stop func()) {
	t.Helper()
	return taskRun(t, func(ctx context.Context) error { return locks.WorkTasks(ctx, pool, "", work, opts) })
}

func taskRun(t *testing.T, work func(ctx context.Context) error) (stop func()) {
	t.Helper()
	return taskEnds(t, context.Canceled, work)
}

// taskEnds is taskRun for one that ends with an error.
func taskEnds(t *testing.T, want error, work func(ctx context.Context) error) (stop func()) {
	t.Helper()
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- work(running) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, want) {
				t.Errorf("the worker: %v", err)
			}
		case <-time.After(patience):
			t.Error("the worker does not end with its context")
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestTaskWork(t *testing.T) {
	t.Parallel()
	hour := func() *locks.TaskOptions {
		return &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour}}
	}
	status := func(t *testing.T, e *env, id string) (s string) {
		t.Helper()
		must(t, e.admin.QueryRow(ctx, "select status || ':' || attempt from lock.task where id = $1", id).Scan(&s))
		return s
	}
	left := func(t *testing.T, e *env) (n int) {
		t.Helper()
		must(t, e.admin.QueryRow(ctx, "select count(*) from lock.task where status <> 'done'").Scan(&n))
		return n
	}
	t.Run("a single task takes few calls", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool, queries := openLogged(t, e.url, 4)
		taskLoopEach(t, pool, hour(), func(context.Context, db.Task) error { return nil })
		within(t, perseverance, "the worker sleeps", func() bool { return queries.lookedLast("SettleAndCapture", "NextTaskIn") })
		before := queries.count()
		e.session(t).exec("select lock.create_task('single')")
		within(t, perseverance, "it is settled", func() bool { return left(t, e) == 0 })
		within(t, perseverance, "the worker sleeps again", func() bool { return queries.lookedLast("SettleAndCapture", "NextTaskIn") })
		// It is captured, the worker looks for more, and settles it. A notification may come late.
		calls := queries.since(before)
		if len(calls) > 8 || strings.Contains(strings.Join(calls, " "), "Idling") {
			t.Errorf("%d calls: %q", len(calls), calls)
		}
	})
	t.Run("settles each task by its own error", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks('{good,later}')")
		s.exec("select lock.create_task('bad', retries_left => 2)")
		quick := &locks.TaskOptions{ShortestPause: time.Millisecond, LongestPause: time.Millisecond, WorkerOptions: locks.WorkerOptions{Poll: time.Hour, OnError: func(context.Context, error) {}}}
		taskLoop(t, e.pool, quick, func(ctx context.Context, tasks []db.Task) []error {
			errs := make([]error, len(tasks))
			for i, task := range tasks {
				switch task.ID {
				case "bad":
					errs[i] = errors.New("no good")
				case "later":
					errs[i] = fmt.Errorf("wrapped: %w", locks.RetryAfter(time.Hour, errors.New("not yet")))
				}
			}
			return errs
		})
		eventually(t, "all are settled", func() bool {
			return status(t, e, "good") == "done:1" && status(t, e, "bad") == "failed:2" && status(t, e, "later") == "failed:1"
		})
		answers(s, true, "select available_at > clock_timestamp() + interval '59 minutes' from lock.get_task('later')")
	})
	t.Run("is woken by what is created, given back, revived or falls due", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_task('dead', status => 'failed')")
		taskOwner(t, e, "update lock.task set retries_left = 0 where id = 'dead'")
		s.exec("select lock.create_task('held')")
		answers(s, "held:1", captured+"lock.capture(1)")
		for range 3 {
			taskLoop(t, e.pool, hour(), func(context.Context, []db.Task) []error { return nil })
		}
		idle := func() bool { return wakeIdlers(t, e, "default") == 3 }
		eventually(t, "all workers idle", idle)
		s.exec("select lock.create_task('created')")
		eventually(t, "the created task is done", func() bool { return status(t, e, "created") == "done:1" })
		eventually(t, "all workers idle", idle)
		s.exec("select lock.set_status('held', 'failed', 1)")
		eventually(t, "the failed task is done", func() bool { return status(t, e, "held") == "done:2" })
		eventually(t, "all workers idle", idle)
		s.exec("select lock.retry_task('dead', 1)")
		eventually(t, "the revived task is done", func() bool { return status(t, e, "dead") == "done:1" })
		eventually(t, "all workers idle", idle)
		s.exec("select lock.create_task('later', available_at => clock_timestamp() + interval '300 ms')")
		eventually(t, "the scheduled task is done", func() bool { return status(t, e, "later") == "done:1" })
		s.exec("select lock.create_task('slow', timeout => '300 ms', available_at => clock_timestamp() + interval '1 hour')")
		taskOwner(t, e, "update lock.task set status = 'in_progress', attempt = 1, deadline = clock_timestamp() + interval '300 ms' where id = 'slow'")
		s.exec("select lock.create_task('nudge')")
		eventually(t, "the task of a dead worker is done", func() bool { return status(t, e, "slow") == "done:2" })
	})
	t.Run("finds what another's rollback gives back", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_task('a')")
		s.exec("begin")
		answers(s, "a:1", captured+"lock.capture(1)")
		taskLoop(t, e.pool, hour(), func(context.Context, []db.Task) []error { return nil })
		eventually(t, "the worker idles", func() bool { return wakeIdlers(t, e, "default") == 1 })
		s.exec("rollback")
		eventually(t, "the task is done", func() bool { return status(t, e, "a") == "done:1" })
	})
	t.Run("settles what was done when its context ends", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks('{a,b,c}')")
		started := make(chan struct{})
		stop := taskRun(t, func(ctx context.Context) error {
			return locks.WorkTaskBatches(ctx, e.pool, "", 1, func(ctx context.Context, tasks []db.Task) []error {
				close(started)
				<-ctx.Done()
				return nil
			}, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Grace: time.Millisecond}})
		})
		<-started
		stop()
		answers(s, "done:1", "select status || ':' || attempt from lock.get_task('a')")
		answers(s, "new:0", "select status || ':' || attempt from lock.get_task('b')")
	})
	t.Run("drops the result of a worker that was taken over", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_task('a', timeout => '1 minute')")
		var calls atomic.Int64
		taskLoop(t, e.pool, hour(), func(ctx context.Context, tasks []db.Task) []error {
			if calls.Add(1) == 1 {
				var took string
				_, err := e.admin.Exec(ctx, "update lock.task set deadline = clock_timestamp()")
				if err == nil {
					err = s.conn.QueryRow(ctx, captured+"lock.capture(1)").Scan(&took)
				}
				if err != nil || took != "a:2" {
					t.Errorf("the other captured %q, %v", took, err)
				}
			}
			return nil
		})
		eventually(t, "the worker idles again", func() bool { return calls.Load() == 1 && wakeIdlers(t, e, "default") == 1 })
		answers(s, "in_progress:2", "select status || ':' || attempt from lock.get_task('a')")
	})
	t.Run("survives the loss of every connection", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		killed := 0
		pool := openPool(t, e.url+"&application_name=victim", 4)
		for range 2 {
			taskLoop(t, pool, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{OnError: func(context.Context, error) {}}}, func(context.Context, []db.Task) []error { return nil })
		}
		for n := range 20 {
			s.exec("select lock.create_tasks(array(select $1::integer || ' ' || n from generate_series(1, 20) n), timeout => '100 ms')", n)
			var n int
			must(t, e.admin.QueryRow(ctx, "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'victim' and datname = current_database()").Scan(&n))
			killed += n
		}
		if killed == 0 {
			t.Error("no connection was lost")
		}
		within(t, perseverance, "all are done", func() bool {
			var left int
			must(t, e.admin.QueryRow(ctx, "select count(*) from lock.task where status <> 'done'").Scan(&left))
			return left == 0
		})
	})
	t.Run("a slow task holds no other up, and no more are in work at once than may be", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_tasks(array['slow'] || array(select 'task ' || n from generate_series(1, 100) n))")
		release := make(chan struct{})
		t.Cleanup(sync.OnceFunc(func() { close(release) }))
		var running, most atomic.Int64
		taskLoopEach(t, e.pool, &locks.TaskOptions{Concurrency: 3, WorkerOptions: locks.WorkerOptions{Poll: time.Hour}}, func(_ context.Context, task db.Task) error {
			defer running.Add(-1)
			for now := running.Add(1); ; {
				if seen := most.Load(); seen >= now || most.CompareAndSwap(seen, now) {
					break
				}
			}
			if task.ID == "slow" {
				<-release
			}
			return nil
		})
		eventually(t, "all others are done", func() bool { return left(t, e) == 1 })
		if status(t, e, "slow") != "in_progress:1" || most.Load() > 3 || most.Load() < 2 {
			t.Errorf("the slow one is %s, %d were in work at once", status(t, e, "slow"), most.Load())
		}
		release <- struct{}{}
		eventually(t, "the slow one is done", func() bool { return left(t, e) == 0 })
	})
	t.Run("keeps the error, backs off, and gives up", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks('{bad,panics,wrong,exits}'), lock.create_task('permanent'), lock.create_task('later'), lock.create_task('limited', retries_left => 2)")
		var told sync.Map
		settled := func(_ context.Context, result locks.TaskResult) {
			var panicked *locks.PanicError
			if errors.As(result.Err, &panicked) && !strings.Contains(string(panicked.Stack), "task_work_test.go") {
				t.Errorf("the stack is %s", panicked.Stack)
			}
			told.Store(fmt.Sprint(result.Task.ID, " ", result.Task.Tries, " ", result.Outcome), result)
		}
		opts := &locks.TaskOptions{
			ShortestPause: time.Millisecond, LongestPause: 2 * time.Millisecond, MaxTries: 4, Settled: settled,
			WorkerOptions: locks.WorkerOptions{Poll: time.Hour},
		}
		taskLoopEach(t, e.pool, opts, func(_ context.Context, task db.Task) error {
			switch task.ID {
			case "bad", "limited":
				return errors.New("no\x00 good\xff" + strings.Repeat("!", 20000))
			case "panics":
				panic("out of ink")
			case "wrong":
				return &pgconn.PgError{Code: "40001", Message: "again"} // no transaction of the loop's
			case "exits":
				runtime.Goexit()
			case "permanent":
				return fmt.Errorf("wrapped: %w", locks.Permanent(locks.RetryAfter(time.Hour, errors.New("never"))))
			}
			return locks.RetryAfter(time.Hour, errors.New("not yet"))
		})
		eventually(t, "six are dead", func() bool {
			var dead int
			must(t, e.admin.QueryRow(ctx, "select count(*) from lock.dead_letter").Scan(&dead))
			return dead == 6
		})
		want := "bad 4 no good\uFFFD!, exits 4 the handler ended its goroutine, limited 2 no good\uFFFD!, panics 4 panic: out of ink, permanent 1 wrapped: retry in 1h0m0s: never, wrong 4 : again (SQLSTATE 40001)"
		got := "select string_agg(id || ' ' || tries || ' ' || regexp_replace(message, '!+', '!'), ', ' order by id) from lock.dead_letter"
		answers(e.sessionAs(t, e.super), want, got)
		answers(s, true, "select tries = 1 and status = 'failed' and message like '%not yet' and available_at > clock_timestamp() + interval '59 minutes' from lock.get_task('later')")
		for _, id := range []string{"bad 1 retry", "bad 4 dead", "panics 3 retry", "permanent 1 dead", "limited 2 dead", "later 1 retry", "exits 2 retry"} {
			if _, ok := told.Load(id); !ok {
				t.Errorf("nobody is told of %s", id)
			}
		}
		later, _ := told.Load("later 1 retry")
		var at time.Time
		must(t, e.admin.QueryRow(ctx, "select available_at from lock.task where id = 'later'").Scan(&at))
		if result, ok := later.(locks.TaskResult); ok && !result.RetryAt.Equal(at) {
			t.Errorf("told that it is tried again at %v, and it is at %v", result.RetryAt, at)
		}
	})
	t.Run("gives up what never comes to an end", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_task('poison', timeout => '1 hour'), lock.create_task('good')")
		s.exec("select lock.capture(1)")
		taskOwner(t, e, "update lock.task set tries = 4, deadline = clock_timestamp() - interval '1 s' where id = 'poison'")
		told := &toldLog{}
		opts := &locks.TaskOptions{MaxTries: 4, Settled: told.task, WorkerOptions: locks.WorkerOptions{Poll: time.Hour}}
		taskLoopEach(t, e.pool, opts, func(_ context.Context, task db.Task) error {
			if task.ID == "poison" {
				t.Error("it is tried once more")
			}
			return nil
		})
		eventually(t, "all are settled", func() bool { return left(t, e) == 1 && status(t, e, "poison") == "failed:1" })
		eventually(t, "somebody is told", func() bool { return len(told.all("poison")) > 0 })
		if results := told.all("poison"); len(results) != 1 || results[0].Outcome != locks.OutcomeDead || !errors.Is(results[0].Err, locks.ErrTimedOut) {
			t.Errorf("told %+v", results)
		}
		answers(e.sessionAs(t, e.super), "poison: not settled within its timeout", "select string_agg(id || ': ' || message, ' ') from lock.dead_letter")
	})
	t.Run("a batch fails as a whole when it panics or returns another number of errors", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_tasks('{a,b}')")
		var calls atomic.Int64
		opts := &locks.TaskOptions{ShortestPause: time.Millisecond, LongestPause: time.Millisecond, WorkerOptions: locks.WorkerOptions{Poll: time.Hour, OnError: func(context.Context, error) {}}}
		taskLoop(t, e.pool, opts, func(_ context.Context, tasks []db.Task) []error {
			switch calls.Add(1) {
			case 1:
				return make([]error, 3)
			case 2:
				panic("out of ink")
			}
			return nil
		})
		eventually(t, "all are done", func() bool { return left(t, e) == 0 })
		if calls.Load() < 3 {
			t.Errorf("%d calls", calls.Load())
		}
	})
	for name, c := range map[string]struct {
		grace  time.Duration
		work   func(ctx context.Context, finish <-chan struct{}) error
		result string // status, tries, retries left
	}{
		"what ends in the grace period counts":                          {time.Hour, func(ctx context.Context, finish <-chan struct{}) error { <-finish; return ctx.Err() }, "done:0:0"},
		"what fails in it counts, too":                                  {time.Hour, func(_ context.Context, finish <-chan struct{}) error { <-finish; return errors.New("no good") }, "failed:1:0"},
		"what is cut off is given back, as if it had not been captured": {time.Millisecond, func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return context.Cause(ctx) }, "new:0:1"},
		"what ends too late, and well, is done":                         {time.Millisecond, func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return nil }, "done:0:0"},
	} {
		for _, form := range []string{"each", "batches"} {
			t.Run("stops: "+name+": "+form, func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				s := e.session(t)
				s.exec("select lock.create_task('a', retries_left => 1)")
				started, finish := make(chan struct{}), make(chan struct{})
				opts := &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Grace: c.grace, Poll: time.Hour, OnError: func(context.Context, error) {}}}
				work := func(ctx context.Context, task db.Task) error {
					close(started)
					return c.work(ctx, finish)
				}
				inner, cancel := context.WithCancel(ctx)
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					if form == "each" {
						ended <- locks.WorkTasks(inner, e.pool, "", work, opts)
					} else {
						ended <- locks.WorkTaskBatches(inner, e.pool, "", 10, func(ctx context.Context, tasks []db.Task) []error { return []error{work(ctx, tasks[0])} }, opts)
					}
				}()
				<-started
				cancel()
				s.exec("select lock.create_task('b')") // Nothing more is captured.
				close(finish)
				select {
				case err := <-ended:
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				case <-time.After(patience):
					t.Fatal("it does not end")
				}
				answers(s, c.result, "select concat_ws(':', status, tries, retries_left) from lock.get_task('a')")
				answers(s, "new:0", "select concat_ws(':', status, tries) from lock.get_task('b')")
			})
		}
	}
	t.Run("the article's interface", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_tasks('{a,b}', 'q')")
		machine := locks.NewTaskQueue(e.pool, "q")
		tasks, err := machine.Capture(ctx, 3)
		must(t, err)
		if len(tasks) != 2 || tasks[0].ID != "a" || tasks[0].Status != db.TaskInProgress {
			t.Fatalf("captured %+v", tasks)
		}
		must(t, machine.SetStatus(ctx, "a", db.TaskFailed))
		if tasks, err = machine.Capture(ctx, 3); err != nil || len(tasks) != 1 || tasks[0].Attempt != 2 {
			t.Fatalf("captured %+v, %v", tasks, err)
		}
		wantCode(t, machine.SetStatus(ctx, "unknown", db.TaskDone), "P0002", "SetStatus")
		_, err = machine.Capture(ctx, 0)
		wantCode(t, err, "22023", "Capture")
	})
}

// blankError has the fault that makes a nil pointer an error.
type blankError struct{ text string }

func (e *blankError) Error() string { return e.text }

// TestTaskWorkFaults: what a handler does, or its options are, must not be the end of the worker.
func TestTaskWorkFaults(t *testing.T) {
	t.Parallel()
	quiet := func() *locks.TaskOptions {
		return &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour, OnError: func(context.Context, error) {}}}
	}
	state := func(t *testing.T, e *env, id string) (s string) {
		t.Helper()
		must(t, e.admin.QueryRow(ctx, "select concat_ws(':', status, attempt, tries, retries_left) from lock.task where id = $1", id).Scan(&s))
		return s
	}
	t.Run("two attempts of one task are settled together", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		// The first attempt alone is not settled.
		mutate(t, e, "settle_and_capture", "if settle_and_capture.ids is distinct from '{}' then",
			"if settle_and_capture.ids is distinct from '{}' then if settle_and_capture.attempts = '{1}' then raise sqlstate '40001'; end if;")
		e.session(t).exec("select lock.create_task('a', timeout => '50 ms')")
		second, failed := make(chan struct{}), make(chan struct{})
		told := sync.OnceFunc(func() { close(failed) })
		opts := quiet()
		opts.Concurrency, opts.OnError = 2, func(context.Context, error) { told() }
		taskLoopEach(t, e.pool, opts, func(_ context.Context, task db.Task) error {
			switch task.Attempt {
			case 1:
				<-second
			case 2:
				close(second)
				<-failed
			}
			return nil
		})
		eventually(t, "it is done", func() bool { return strings.HasPrefix(state(t, e, "a"), "done") })
	})
	t.Run("a pause as long as can be", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks('{a,b}')")
		taskLoopEach(t, e.pool, quiet(), func(_ context.Context, task db.Task) error {
			if task.ID == "a" {
				return locks.RetryAfter(math.MaxInt64, errors.New("never again"))
			}
			return nil
		})
		eventually(t, "both are settled", func() bool { return state(t, e, "a") == "failed:1:1" && state(t, e, "b") == "done:1:0" })
		answers(s, true, "select available_at > clock_timestamp() + interval '99 years' from lock.get_task('a')")
	})
	t.Run("a task that is available since the first of all times", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, holder := e.session(t), e.sessionAs(t, e.super)
		s.exec("select lock.create_task('a', available_at => '4714-11-24 00:00:00+00 BC')")
		holder.exec("begin")
		holder.exec("lock table lock.task in exclusive mode")
		began := time.Now()
		taskLoopEach(t, e.pool, quiet(), func(context.Context, db.Task) error { return nil })
		eventually(t, "its first look is slow", func() bool {
			return get[bool](holder, "select exists (select from pg_locks where locktype = 'relation' and relation = 'lock.task'::regclass and not granted)") &&
				time.Since(began) > 100*time.Millisecond
		})
		holder.exec("commit")
		eventually(t, "it is done", func() bool { return state(t, e, "a") == "done:1:0" })
		s.exec("select lock.create_task('b')")
		eventually(t, "so is the next", func() bool { return state(t, e, "b") == "done:1:0" })
	})
	t.Run("an error that panics when it is looked at", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_tasks('{a}', retries_left => 1)")
		told := make(chan error, 1)
		opts := quiet()
		opts.Settled = func(_ context.Context, result locks.TaskResult) { told <- result.Err }
		taskLoopEach(t, e.pool, opts, func(context.Context, db.Task) error { return (*blankError)(nil) })
		eventually(t, "it has failed", func() bool { return state(t, e, "a") == "failed:1:1:0" })
		var panicked *locks.PanicError
		if err := <-told; !errors.As(err, &panicked) {
			t.Errorf("told of %v", err)
		}
	})
	t.Run("bad pauses are refused before anything is captured", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.create_task('a')")
		for _, opts := range []*locks.TaskOptions{{LongestPause: time.Millisecond}, {ShortestPause: -1}, {MaxTries: -1}} {
			running, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			err := locks.WorkTasks(running, e.pool, "", func(context.Context, db.Task) error { return nil }, opts)
			wantCode(t, err, "22023", "WorkTasks")
			if got := state(t, e, "a"); got != "new:0:0" {
				t.Errorf("the task is %s", got)
			}
		}
	})
	t.Run("a task that somebody holds in a transaction keeps no other waiting", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.create_tasks('{held,beside}')")
		beside := make(chan struct{})
		opts := quiet()
		opts.Concurrency, opts.CallTimeout = 2, time.Second
		taskLoopEach(t, e.pool, opts, func(_ context.Context, task db.Task) error {
			switch task.ID {
			case "held":
				s.exec("begin")
				s.exec("select from lock.task where id = 'held' for no key update")
				close(beside)
			case "beside":
				<-beside
			}
			return nil
		})
		<-beside
		e.session(t).exec("select lock.create_task('later')")
		eventually(t, "the others are done", func() bool { return state(t, e, "beside") == "done:1:0" && state(t, e, "later") == "done:1:0" })
		s.exec("rollback")
		eventually(t, "it is done", func() bool { return state(t, e, "held") == "done:1:0" })
	})
	t.Run("what is captured while the worker ends goes back", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "its waits cannot be seen at once")
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select pg_advisory_lock(7, 1)")
		mutate(t, e, "settle_and_capture", "-- They are the caller's.", "if chosen = '{b}' then perform pg_advisory_xact_lock(7, 1); end if;")
		s.exec("select lock.create_task('a')")
		finish := make(chan struct{})
		opts := quiet()
		opts.Concurrency = 2
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- locks.WorkTasks(inner, e.pool, "", func(context.Context, db.Task) error { <-finish; return nil }, opts)
		}()
		eventually(t, "it idles, with one in work", func() bool { return state(t, e, "a") == "in_progress:1:1" && wakeIdlers(t, e, "default") == 1 })
		s.exec("select lock.create_task('b', retries_left => 1)")
		eventually(t, "it captures", func() (waits bool) {
			must(t, e.admin.QueryRow(ctx, "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')").Scan(&waits))
			return waits
		})
		cancel()
		s.exec("select pg_advisory_unlock(7, 1)")
		close(finish)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if a, b := state(t, e, "a"), state(t, e, "b"); a != "done:1:0" || b != "new:1:0:1" {
			t.Errorf("the tasks are %s and %s", a, b)
		}
	})
	t.Run("the end of a worker does not wait for an answer to each", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.url)
		const many = 100
		e.session(t).exec("select lock.create_tasks(array(select n::text from generate_series(1, $1::integer) n))", many)
		var working atomic.Int64
		finish := make(chan struct{})
		opts := quiet()
		opts.Concurrency, opts.Grace = many, time.Second
		pool := openPool(t, b.address, 4)
		stop := taskEnds(t, locks.ErrUnsettled, func(ctx context.Context) error {
			return locks.WorkTasks(ctx, pool, "", func(context.Context, db.Task) error {
				working.Add(1)
				<-finish
				return nil
			}, opts)
		})
		eventually(t, "all are in work", func() bool { return working.Load() == many })
		b.swallow(true)
		close(finish)
		stop()
	})
}

// The timeouts are such that a stall of some seconds loses no task.
func TestTaskExtend(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (e *env, s *session) {
		e = open(t, advisory)
		s = e.sessionAs(t, e.super)
		s.exec("select lock.create_task('a', timeout => '9 s')")
		return e, s
	}
	const status = "select concat_ws(':', status, attempt, tries) from lock.get_task('a')"
	deadline := func(s *session) time.Time { return get[time.Time](s, "select deadline from lock.get_task('a')") }
	t.Run("extends while the work lasts", func(t *testing.T) {
		t.Parallel()
		e, s := start(t)
		worked := make(chan error, 1)
		taskLoopEach(t, e.pool, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour}}, func(ctx context.Context, task db.Task) error {
			worked <- nil
			first := deadline(s)
			eventually(t, "it is extended", func() bool { return deadline(s).After(first.Add(time.Second)) })
			return ctx.Err()
		})
		<-worked
		eventually(t, "it is done", func() bool {
			var now string
			must(t, e.admin.QueryRow(ctx, status).Scan(&now))
			return now == "done:1:0"
		})
	})
	t.Run("ends the work when somebody else has settled the task", func(t *testing.T) {
		t.Parallel()
		e, s := start(t)
		s.exec("select lock.create_task('b')")
		cause, told := make(chan error, 1), &toldLog{}
		opts := &locks.TaskOptions{Settled: told.task, WorkerOptions: locks.WorkerOptions{Poll: time.Hour}}
		taskLoop(t, e.pool, opts, func(ctx context.Context, tasks []db.Task) []error {
			answers(s, true, "select lock.set_status('a', 'failed', dead => true, message => 'cancelled')")
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return []error{errors.New("stopped"), nil}
		})
		if err := <-cause; !errors.Is(err, locks.ErrTaskLost) {
			t.Errorf("the cause is %v", err)
		}
		eventually(t, "somebody is told", func() bool { return len(told.all("a")) > 0 })
		if results := told.all("a"); len(results) != 1 || !errors.Is(results[0].Err, locks.ErrTaskLost) {
			t.Errorf("told of %+v", results)
		}
		eventually(t, "the other one is done", func() bool {
			var done bool
			must(t, e.admin.QueryRow(ctx, "select exists (select from lock.task where id = 'b' and status = 'done')").Scan(&done))
			return done
		})
		answers(s, "failed:1:1", status)
		answers(s, "cancelled", "select message from lock.dead_letter where id = 'a'")
	})
	t.Run("ends the work before the attempt can be lost, when extending fails", func(t *testing.T) {
		t.Parallel()
		e, s := start(t)
		early := make(chan bool, 1)
		opts := &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour, OnError: func(context.Context, error) {}}}
		taskLoopEach(t, e.pool, opts, func(ctx context.Context, task db.Task) error {
			s.exec("begin")
			s.exec("select from lock.task where id = 'a' for no key update")
			<-ctx.Done()
			early <- get[bool](s, "select deadline > clock_timestamp() from lock.get_task('a')") && errors.Is(context.Cause(ctx), locks.ErrTaskLost)
			s.exec("rollback")
			return ctx.Err()
		})
		if !<-early {
			t.Error("the context ended after the attempt could be lost, or with another cause")
		}
	})
}

// What is swallowed silently is never answered, and nothing says so.
func TestTaskBlackHole(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (e *env, b *blackHole, pool *pgxpool.Pool, queries *queryLog) {
		e = open(t, advisory)
		b = newBlackHole(t, e.url)
		pool, queries = openLogged(t, b.address, 4)
		return e, b, pool, queries
	}
	done := func(t *testing.T, e *env, id string) {
		t.Helper()
		eventually(t, id+" is done", func() bool {
			var done bool
			must(t, e.admin.QueryRow(ctx, "select exists (select from lock.task where id = $1 and status = 'done')", id).Scan(&done))
			return done
		})
	}
	t.Run("what was done is settled on another connection", func(t *testing.T) {
		t.Parallel()
		e, b, pool, _ := start(t)
		e.session(t).exec("select lock.create_tasks('{a,b}')")
		told := make(chan error, 100)
		opts := &locks.TaskOptions{Concurrency: 1, WorkerOptions: locks.WorkerOptions{CallTimeout: time.Second, Poll: time.Hour, OnError: func(_ context.Context, err error) { told <- err }}}
		taskLoopEach(t, pool, opts, func(_ context.Context, task db.Task) error {
			if task.ID == "a" {
				b.swallow(false)
			}
			return nil
		})
		done(t, e, "a")
		done(t, e, "b")
		if err := <-told; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("told of %v", err)
		}
	})
	t.Run("an idle worker listens on another connection", func(t *testing.T) {
		t.Parallel()
		e, b, pool, queries := start(t)
		taskLoopEach(t, pool, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: 2 * time.Second, CallTimeout: time.Second, OnError: func(context.Context, error) {}}},
			func(context.Context, db.Task) error { return nil })
		eventually(t, "it idles", func() bool { return wakeIdlers(t, e, "default") == 1 })
		b.swallow(false)
		eventually(t, "there is another listener", func() bool {
			queries.mu.Lock()
			defer queries.mu.Unlock()
			return len(queries.listeners) > 1
		})
		e.session(t).exec("select lock.create_task('a')")
		done(t, e, "a")
	})
	t.Run("the end of a worker does not wait for an answer", func(t *testing.T) {
		t.Parallel()
		e, b, pool, _ := start(t)
		e.session(t).exec("select lock.create_task('a')")
		working := make(chan struct{})
		stop := taskEnds(t, locks.ErrUnsettled, func(ctx context.Context) error {
			return locks.WorkTasks(ctx, pool, "", func(ctx context.Context, _ db.Task) error {
				b.swallow(true)
				close(working)
				_, err := pool.Exec(ctx, "select 1")
				return err
			}, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Grace: time.Second, Poll: time.Hour, OnError: func(context.Context, error) {}}})
		})
		<-working
		stop()
	})
}

func TestTaskCost(t *testing.T) {
	t.Parallel()
	rows := rounds(t, 200000)
	e := open(t, advisory)
	s := e.session(t)
	capture := "select * from lock.capture(10, '%s')"
	// A session that planned on the empty table must not keep a plan for an empty table.
	for range 10 {
		s.exec("select lock.create_tasks('{a,b}', 'early')")
		s.exec("select lock.set_statuses(array_agg(id), array_agg(attempt), 'failed', 'early') from lock.capture(5, 'early')")
	}
	for _, backlog := range []struct{ queue, status, left string }{{"pending", "new", "null"}, {"done", "done", "null"}, {"dead", "failed", "0"}} {
		taskOwner(t, e, "insert into lock.task (queue_id, id, status, retries_left, available_at) select $1, 'task ' || n, $2::lock.task_status, "+backlog.left+
			", clock_timestamp() - interval '1 day' + n * interval '1 microsecond' from generate_series(1, $3) n", backlog.queue, backlog.status, rows)
		if backlog.queue != "pending" {
			s.exec("select lock.create_tasks(array(select 'late ' || n from generate_series(1, 300) n), $1)", backlog.queue)
		}
		for range 7 {
			if n := buffers(s, fmt.Sprintf(capture, backlog.queue)); n > 400 {
				t.Errorf("capture of 10 at %d %s: %d buffers", rows, backlog.queue, n)
			}
		}
		settle := fmt.Sprintf("select lock.set_statuses(array_agg(id), array_agg(attempt), 'done', '%s') from lock.capture(10, '%[1]s')", backlog.queue)
		if n := buffers(s, settle); n > 1000 {
			t.Errorf("capture and settling of 10 at %d %s: %d buffers", rows, backlog.queue, n)
		}
		if n := buffers(s, fmt.Sprintf("select lock.next_task_in('%s')", backlog.queue)); n > 50 {
			t.Errorf("next_task_in at %d %s: %d buffers", rows, backlog.queue, n)
		}
	}
	if n := buffers(s, "select * from lock.capture(10, 'empty')"); n > 50 {
		t.Errorf("capture from an empty queue: %d buffers", n)
	}
	if n := buffers(s, "select * from lock.capture(10, 'done', '{done}')"); n > 400 {
		t.Errorf("capture of 10 done tasks: %d buffers", n)
	}
	// The checker sees a scan when there is one.
	super := e.sessionAs(t, e.super)
	if n := buffers(super, "select * from lock.task where payload = '1'"); n < rows/100 {
		t.Errorf("a scan of everything touches only %d buffers", n)
	}
}

// A plan that is made for one call alone names its values.
func TestTaskPlans(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "auto_explain's output is another")
	// anew counts the statements with a plan of the primary key, and those of them that were planned for one call.
	anew := func(t *testing.T, e *env) (keyed, planned int) {
		t.Helper()
		config, err := pgx.ParseConfig(e.super)
		must(t, err)
		config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
			if strings.Contains(notice.Message, "using task_pkey") {
				keyed++
				if strings.Contains(notice.Message, "queue_id = 'default'") {
					planned++
				}
			}
		}
		conn, err := pgx.ConnectConfig(ctx, config)
		must(t, err)
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "load 'auto_explain'"); err != nil {
			t.Skipf("auto_explain is not installed: %v", err)
		}
		for _, sql := range []string{
			"set auto_explain.log_min_duration = 0", "set auto_explain.log_nested_statements = on", "set client_min_messages = log",
			"select lock.create_tasks(array(select 'task ' || n from generate_series(1, 100) n))",
		} {
			_, err = conn.Exec(ctx, sql)
			must(t, err)
		}
		keyed, planned = 0, 0
		for range 10 {
			_, err = conn.Exec(ctx, "with c as materialized (select * from lock.capture(3)) select lock.settle_and_capture(array_agg(id), array_agg(attempt), array_agg('done'::text), 2) from c")
			must(t, err)
			_, err = conn.Exec(ctx, "with c as materialized (select * from lock.capture(1)) select lock.set_statuses(array_agg(id), array_agg(attempt), 'done') from c")
			must(t, err)
		}
		return keyed, planned
	}
	t.Run("capturing and settling are planned once", func(t *testing.T) {
		t.Parallel()
		if keyed, planned := anew(t, open(t, advisory)); keyed < 30 || planned > 0 {
			t.Errorf("%d of %d statements were planned for one call", planned, keyed)
		}
	})
	for _, function := range []string{"settle_and_capture", "set_statuses"} {
		t.Run("the checker catches a "+function+" that is not", func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, function, " SET plan_cache_mode TO 'force_generic_plan'\n", "")
			if keyed, planned := anew(t, e); keyed < 30 || planned == 0 {
				t.Errorf("%d of %d statements were planned for one call", planned, keyed)
			}
		})
	}
}

func TestTaskOldSnapshot(t *testing.T) {
	t.Parallel()
	// wading works a backlog off under an old snapshot and returns how many of its last 100 captures wade through the dead.
	wading := func(t *testing.T, since func(done int) string) (waded int) {
		t.Helper()
		e := open(t, advisory)
		s, holder := e.session(t), e.session(t)
		s.exec(`select lock.create_tasks(array(select 'task ' || n from generate_series(1, 60000) n), timeout => '1 microsecond',
			available_at => '2020-01-01 UTC')`)
		holder.exec("begin isolation level repeatable read")
		answers(holder, "", captured+"lock.get_task('none')")
		step := "select lock.set_statuses(array_agg(id), array_agg(attempt), 'done') from lock.capture(200, since => %s)"
		for n := range 290 {
			s.exec(fmt.Sprintf(step, since(200*n)))
		}
		for n := range 100 {
			buffers, rows := buffersOnce(s, fmt.Sprintf("select * from lock.capture(10, since => %s)", since(58000+10*n)))
			if rows != 10 {
				t.Fatalf("%d tasks", rows)
			}
			if buffers > 800 {
				waded++
			}
		}
		holder.exec("commit")
		return waded
	}
	t.Run("who says how far he has come does not wade through the dead", func(t *testing.T) {
		t.Parallel()
		mark := func(done int) string {
			return fmt.Sprintf("timestamptz '2020-01-01 UTC' + %d * interval '1 microsecond'", max(0, done-1))
		}
		if n := wading(t, mark); n > 0 {
			t.Errorf("%d of 100 captures waded", n)
		}
	})
	t.Run("the checker catches captures that do", func(t *testing.T) {
		t.Parallel()
		if n := wading(t, func(int) string { return "null" }); n < 90 {
			t.Errorf("only %d of 100 captures waded", n)
		}
	})
	// working runs a worker whose batches are all full, until done says so, and returns how many captures were from the beginning, and from a mark.
	workingOn := func(t *testing.T, e *env, size int, done func(task db.Task) bool) (beginning, marked int) {
		t.Helper()
		pool, queries := openLogged(t, e.url, 4)
		s := e.session(t)
		s.exec("select lock.create_task('task 0')")
		inner, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		n, found := 0, false
		err := locks.WorkTaskBatches(inner, pool, "", size, func(_ context.Context, tasks []db.Task) []error {
			n++
			s.exec("select lock.create_task($1)", fmt.Sprint("task ", n))
			if done(tasks[0]) {
				found = true
				cancel()
			}
			return nil
		}, nil)
		if !errors.Is(err, context.Canceled) || !found {
			t.Errorf("WorkTasks: %v; found: %v", err, found)
		}
		for _, query := range queries.queries {
			if strings.HasPrefix(query.sql, "-- name: SettleAndCapture ") {
				if query.args[9].(*time.Time) == nil {
					beginning++
				} else {
					marked++
				}
			}
		}
		return beginning, marked
	}
	working := func(t *testing.T, e *env, done func(task db.Task) bool) (beginning, marked int) {
		t.Helper()
		return workingOn(t, e, 1, done)
	}
	t.Run("a worker that is never behind does not wade either", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, holder := e.session(t), e.session(t)
		s.exec(`select lock.create_tasks(array(select 'dead ' || n from generate_series(1, 100000) n), available_at => '2020-01-01 UTC')`)
		holder.exec("begin isolation level repeatable read")
		answers(holder, "", captured+"lock.get_task('none')")
		s.exec("select lock.set_statuses(array_agg(id), array_agg(attempt), 'done') from lock.capture(100000)")
		n, began := 0, time.Now()
		beginning, marked := workingOn(t, e, 10, func(db.Task) bool { n++; return n == 200 })
		if most := 10 + int(time.Since(began)/time.Second); beginning > most || marked < 150 {
			t.Errorf("%d looks from the beginning, %d from a mark", beginning, marked)
		}
	})
	t.Run("a look that had to wait does not put off what times out", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, holder := e.session(t), e.sessionAs(t, e.super)
		s.exec("select lock.create_task('left', timeout => '1 hour')")
		answers(s, "left", "select id from lock.capture(1)")
		s.exec("select lock.create_task('a')")
		holder.exec("begin")
		holder.exec("lock table lock.task in exclusive mode")
		began, done := time.Now(), make(chan string, 3)
		taskLoopEach(t, e.pool, &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour}}, func(_ context.Context, task db.Task) error {
			done <- task.ID
			return nil
		})
		eventually(t, "its first look has waited", func() bool {
			return get[bool](holder, "select exists (select from pg_locks where locktype = 'relation' and relation = 'lock.task'::regclass and not granted)") &&
				time.Since(began) > 2*time.Second
		})
		holder.exec("commit")
		if id := <-done; id != "a" {
			t.Fatal(id)
		}
		holder.exec("update lock.task set deadline = clock_timestamp() where id = 'left'")
		s.exec("select lock.create_task('b')")
		released := time.Now()
		for got := 0; got < 2; got++ {
			<-done
		}
		if late := time.Since(released); late > 10*time.Second {
			t.Errorf("taken over after %v", late)
		}
	})
	t.Run("a worker with full batches looks from where it was", func(t *testing.T) {
		t.Parallel()
		n, began := 0, time.Now()
		beginning, marked := working(t, open(t, advisory), func(db.Task) bool { n++; return n == 200 })
		if most := 5 + int(time.Since(began)/time.Second); beginning > most || marked < 150 {
			t.Errorf("%d looks from the beginning, %d from a mark", beginning, marked)
		}
	})
	t.Run("what appears behind the mark is found", func(t *testing.T) {
		t.Parallel()
		for name, appears := range map[string]func(e *env, s *session){
			"older": func(_ *env, s *session) {
				s.exec("select lock.create_task('older', available_at => clock_timestamp() - interval '1 hour')")
			},
			"timed out": func(e *env, s *session) {
				taskOwner(t, e, "update lock.task set deadline = clock_timestamp() where id = 'timed out'")
			},
			"returned": func(_ *env, s *session) { s.exec("rollback") },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				s := e.session(t)
				s.exec("select lock.create_tasks('{timed out}', timeout => '1 hour')")
				answers(s, "timed out:1", captured+"lock.capture(1)")
				s.exec("select lock.create_tasks('{returned}', available_at => clock_timestamp() - interval '1 hour')")
				s.exec("begin")
				answers(s, "returned:1", captured+"lock.capture(1)")
				if name != "returned" {
					s.exec("select lock.set_status('returned', 'done')")
					s.exec("commit")
				}
				n := 0
				working(t, e, func(task db.Task) bool {
					if n++; n == 20 {
						appears(e, s)
					}
					return task.ID == name
				})
			})
		}
	})
	t.Run("one that may have timed out has another look from the beginning after it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks(array(select 'late ' || n from generate_series(1, 50) n), timeout => '1 hour')")
		answers(s, 50, "select count(*) from lock.capture(50)")
		taskOwner(t, e, "update lock.task set deadline = clock_timestamp()")
		n, late := 0, 0
		working(t, e, func(task db.Task) bool {
			n++
			if task.Attempt == 2 {
				late++
			}
			return n == 50
		})
		if late != 50 {
			t.Errorf("%d of the first 50 tasks are those that timed out", late)
		}
	})
}
