package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

type letter struct {
	To    string `json:"to"`
	Pages int    `json:"pages,omitempty"`
}

// TestQueue: one declaration for both sides.
func TestQueue(t *testing.T) {
	t.Parallel()
	mail := locks.Queue[letter]{Name: "mail", Timeout: time.Minute, Tries: 5}
	t.Run("creates by its declaration, and by options", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		create := func(conn db.DBTX, id string, want bool, opts *locks.CreateOptions) {
			t.Helper()
			if created, err := mail.Create(ctx, conn, id, letter{To: id}, opts); err != nil || created != want {
				t.Errorf("%s: %v, %v", id, created, err)
			}
		}
		create(e.pool, "plain", true, nil)
		create(e.pool, "plain", false, nil)
		create(e.pool, "own", true, &locks.CreateOptions{Tries: 1, Timeout: time.Hour, Delay: time.Hour})
		at := time.Now().Add(48 * time.Hour).Truncate(time.Second)
		create(e.pool, "at", true, &locks.CreateOptions{At: at})
		if _, err := (locks.Queue[letter]{}).Create(ctx, e.pool, "default", letter{}, nil); err != nil {
			t.Error(err)
		}
		create(e.pool, "keyed", true, &locks.CreateOptions{Key: "customer 42"})
		create(e.pool, "once", true, nil)
		_, err := db.New(e.pool).SetStatus(ctx, db.SetStatusParams{ID: "once", QueueID: "mail", Status: db.TaskDone})
		must(t, err)
		create(e.pool, "once", false, nil)
		create(e.pool, "once", true, &locks.CreateOptions{Again: true, Tries: 2})
		tx, err := e.pool.Begin(ctx)
		must(t, err)
		create(tx, "in a transaction", true, nil)
		must(t, tx.Rollback(ctx))
		s := e.sessionAs(t, e.super)
		row := `select concat_ws(' ', queue_id, retries_left, timeout, payload, available_at <= clock_timestamp(),
			extract(epoch from available_at - clock_timestamp()) between 3500 and 3600, available_at = $2) from lock.task where id = $1`
		for id, want := range map[string]string{
			"plain":   `mail 5 00:01:00 {"to": "plain"} t f f`,
			"own":     `mail 1 01:00:00 {"to": "own"} f t f`,
			"at":      `mail 5 00:01:00 {"to": "at"} f f t`,
			"default": `default 00:05:00 {"to": ""} t f f`,
		} {
			answers(s, want, row, id, at)
		}
		answers(s, "keyed customer 42, once new 2", "select string_agg(concat_ws(' ', id, key, nullif(status, case when key is null then null else status end), case when key is null then retries_left end), ', ' order by id) from lock.task where id in ('keyed', 'once')")
		answers(s, int64(0), "select count(*) from lock.task where id = 'in a transaction'")
	})
	t.Run("refuses what is bad, and changes nothing", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		for _, opts := range []*locks.CreateOptions{{Tries: -1}, {Timeout: -time.Second}, {Delay: -time.Second}} {
			if created, err := mail.Create(ctx, e.pool, "a", letter{}, opts); err == nil || code(err) != "22023" && opts.Delay == 0 || created {
				t.Errorf("%+v: %v, %v", *opts, created, err)
			}
		}
		if _, err := (locks.Queue[any]{}).Create(ctx, e.pool, "a", func() {}, nil); !errors.As(err, new(*json.UnsupportedTypeError)) {
			t.Error(err)
		}
		if _, err := mail.Create(ctx, e.pool, "a", letter{To: "\x00"}, nil); code(err) != "22P05" {
			t.Error(err)
		}
		answers(e.sessionAs(t, e.super), int64(0), "select count(*) from lock.task")
	})
	t.Run("a payload that does not decode is a dead letter at once", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec(`select lock.create_task('good', 'mail', payload => '{"to": "anna"}'), lock.create_task('bad', 'mail', payload => '{"to": 7}'), lock.create_task('none', 'mail')`)
		told, to := &toldLog{}, make(chan string, 3)
		runUntil(t, func(ctx context.Context) error {
			return mail.Work(ctx, e.pool, func(_ context.Context, task locks.Task[letter]) error {
				to <- task.ID + " to " + task.Payload.To
				return nil
			}, &locks.TaskOptions{Settled: told.task})
		})
		seen := map[string]bool{<-to: true, <-to: true}
		eventually(t, "all are told of", func() bool {
			return len(told.all("good")) == 1 && len(told.all("bad")) == 1 && len(told.all("none")) == 1
		})
		if bad := told.all("bad")[0]; !seen["good to anna"] || !seen["none to "] || bad.Outcome != locks.OutcomeDead || !errors.As(bad.Err, new(*json.UnmarshalTypeError)) {
			t.Errorf("%v, %+v", seen, bad)
		}
		answers(e.sessionAs(t, e.super), "bad 1", "select id || ' ' || tries from lock.dead_letter")
	})
	t.Run("works on what is due, in the caller's goroutine", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		for _, id := range []string{"a", "b", "fails", "snoozes", "dead"} {
			_, err := mail.Create(ctx, e.pool, id, letter{To: id}, nil)
			must(t, err)
		}
		_, err := mail.Create(ctx, e.pool, "later", letter{}, &locks.CreateOptions{Delay: time.Hour})
		must(t, err)
		results, err := mail.WorkDue(ctx, e.pool, func(_ context.Context, task locks.Task[letter]) error {
			if task.ID == "a" {
				_, err := mail.Create(ctx, e.pool, "follows", letter{To: "follows"}, nil)
				return err
			}
			return map[string]error{"fails": errors.New("no"), "snoozes": locks.Snooze(time.Hour), "dead": locks.Permanent(errors.New("never"))}[task.Payload.To]
		})
		must(t, err)
		got := ""
		for _, r := range results {
			got += fmt.Sprintf("%s %s %v, ", r.Task.ID, r.Outcome, r.Err)
			if r.Began.IsZero() || r.Ended.Before(r.Began) || r.Settled.Before(r.Ended) {
				t.Errorf("%s: %+v", r.Task.ID, r.Result)
			}
			if again := r.Outcome == locks.OutcomeRetry || r.Outcome == locks.OutcomeSnoozed; again == r.RetryAt.IsZero() {
				t.Errorf("%s: tried again at %v", r.Task.ID, r.RetryAt)
			}
		}
		if want := "a done <nil>, b done <nil>, fails retry no, snoozes snoozed <nil>, dead dead never, follows done <nil>, "; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		answers(e.sessionAs(t, e.super), "new:0:5:t", `select concat_ws(':', status, tries, retries_left, available_at > clock_timestamp() + interval '59 minutes')
			from lock.task where id = 'snoozes'`)
		func() { // A panic is the caller's.
			defer func() {
				if recover() != "stop" {
					t.Error("nobody panicked")
				}
			}()
			// What extends it ends, too: else it would find the connections closed.
			_, err := mail.Create(ctx, e.pool, "panics", letter{}, &locks.CreateOptions{Timeout: 30 * time.Millisecond})
			must(t, err)
			mail.WorkDue(ctx, e.pool, func(context.Context, locks.Task[letter]) error { panic("stop") })
		}()
		eventually(t, "its time is over", func() bool {
			return get[bool](e.sessionAs(t, e.super), "select deadline < clock_timestamp() - interval '50 ms' from lock.task where id = 'panics'")
		})
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if results, err := mail.WorkDue(ended, e.pool, func(context.Context, locks.Task[letter]) error { return nil }); !errors.Is(err, context.Canceled) || len(results) > 0 {
			t.Errorf("%v, %v", results, err)
		}
	})
}

// TestSnooze: it costs no try, however often.
func TestSnooze(t *testing.T) {
	t.Parallel()
	t.Run("tasks", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.create_task('a', retries_left => 2)")
		var calls atomic.Int64
		told := &toldLog{}
		taskLoopEach(t, e.pool, &locks.TaskOptions{MaxTries: 2, Settled: told.task}, func(context.Context, db.Task) error {
			if calls.Add(1) <= 5 {
				return fmt.Errorf("not now: %w", locks.Snooze(0))
			}
			return nil
		})
		eventually(t, "it is done", func() bool { return len(told.all("a")) == 6 })
		for n, result := range told.all("a") {
			if want := map[bool]locks.Outcome{true: locks.OutcomeSnoozed, false: locks.OutcomeDone}[n < 5]; result.Outcome != want || result.Err != nil {
				t.Errorf("%d: %+v", n, result)
			}
		}
		answers(s, "done:0:1", "select concat_ws(':', status, tries, retries_left) from lock.get_task('a')")
	})
	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.enqueue('update', 'a'), lock.enqueue('update', 'a')")
		var calls atomic.Int64
		told := &toldLog{}
		requestRun(t, e.pool, &locks.RequestOptions{MaxTries: 1, Settled: told.request}, func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
			if batch[0].Tries != 1 || len(batch) != 2 {
				t.Errorf("%d requests, try %d", len(batch), batch[0].Tries)
			}
			if calls.Add(1) <= 5 {
				return locks.Snooze(0)
			}
			return nil
		})
		eventually(t, "it is done", func() bool { return len(told.all("a")) == 6 })
		answers(s, "complete 1 , complete 1 ", "select string_agg(request_status || ' ' || tries || ' ' || coalesce(message, ''), ', ') from lock.request")
	})
	t.Run("those that snooze keep no new one waiting, and are kept waiting by none", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.enqueue('update', 'sleepy ' || n) from generate_series(1, 20) n")
		var fresh, sleepy atomic.Int64
		e.session(t).exec("select lock.enqueue('update', 'fresh 0')")
		requestRun(t, e.pool, nil, func(ctx context.Context, _ pgx.Tx, batch []db.Request) error {
			if strings.HasPrefix(batch[0].EntityID, "sleepy") {
				sleepy.Add(1)
				return locks.Snooze(time.Millisecond)
			}
			_, err := e.pool.Exec(ctx, "select lock.enqueue('update', $1)", fmt.Sprint("fresh ", fresh.Add(1)))
			return err
		})
		eventually(t, "both have their turns", func() bool { return fresh.Load() > 50 && sleepy.Load() > 50 })
	})
}

// TestEntities: the same for requests.
func TestEntities(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	letters := locks.Entities[letter]{Name: "letters"}
	for n, ask := range []func(context.Context, db.DBTX, string, letter) (int64, error){letters.Create, letters.Update, letters.Update} {
		if _, err := ask(ctx, e.pool, "anna", letter{Pages: n}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := letters.Create(ctx, e.pool, "anna", letter{}); code(err) != "23505" {
		t.Errorf("created twice: %v", err)
	}
	s.exec(`select lock.enqueue('update', 'bert', '{"pages": "many"}', 'letters')`)
	told := &toldLog{}
	got := make(chan string, 10)
	runUntil(t, func(ctx context.Context) error {
		return letters.Work(ctx, e.pool, func(_ context.Context, _ pgx.Tx, batch []locks.Request[letter]) error {
			text := string(batch[0].RequestType)
			for _, request := range batch {
				text += fmt.Sprint(" ", request.Payload.Pages)
			}
			got <- text
			return nil
		}, &locks.RequestOptions{Settled: told.request})
	})
	for _, want := range []string{"create 0", "update 1 2"} {
		if got := <-got; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	eventually(t, "all are settled", func() bool { return get[int64](s, "select count(*) from lock.request where settled_at is null") == 0 })
	eventually(t, "all are told of", func() bool { return len(told.all("anna")) == 2 && len(told.all("bert")) == 1 })
	for _, id := range []string{"anna", "bert"} {
		for _, r := range told.all(id) {
			if r.Began.IsZero() || r.Ended.Before(r.Began) || r.Settled.Before(r.Ended) {
				t.Errorf("%s: %+v", id, r)
			}
		}
	}
	if bert := told.all("bert")[0]; bert.Outcome != locks.OutcomeDead || !errors.As(bert.Err, new(*json.UnmarshalTypeError)) {
		t.Errorf("%+v", bert)
	}
}

// TestRequestConcurrency: one call of WorkRequests works on several entities at once, and tells of its trouble once.
func TestRequestConcurrency(t *testing.T) {
	t.Parallel()
	t.Run("so many at once", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.enqueue('update', n::text) from generate_series(1, 7) n")
		begun, finish := make(chan string, 10), make(chan struct{})
		requestRun(t, openPool(t, e.url, 4), &locks.RequestOptions{Concurrency: 3}, func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
			begun <- batch[0].EntityID
			<-finish
			return nil
		})
		at := map[string]bool{<-begun: true, <-begun: true, <-begun: true}
		eventually(t, "three transactions have entities", func() bool {
			return get[int64](s, "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'") == 3
		})
		if len(at) != 3 || len(begun) != 0 {
			t.Errorf("%v, and %d more", at, len(begun))
		}
		close(finish)
		eventually(t, "all are done", func() bool { return get[int64](s, "select count(*) from lock.request where settled_at is null") == 0 })
	})
	t.Run("trouble is told once", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		var told atomic.Int64
		pool := openPool(t, e.url, 4)
		err := locks.WorkRequests(ctx, pool, "", func(context.Context, pgx.Tx, []db.Request) error { return nil },
			&locks.RequestOptions{Concurrency: 4, WorkerOptions: locks.WorkerOptions{OnError: func(context.Context, error) {
				if told.Add(1) == 1 {
					go pool.Close()
				}
			}}, MaxTries: 1, BatchSize: startTrouble(t, e)})
		if err == nil || told.Load() != 1 {
			t.Errorf("told %d times, and it ended with %v", told.Load(), err)
		}
	})
}

// startTrouble takes the right to capture away for a moment that no worker survives without a word.
func startTrouble(t *testing.T, e *env) int {
	t.Helper()
	mutate(t, e, "capture_request", "if capture_request.process_id is null", "raise sqlstate '40001'; if capture_request.process_id is null")
	return 10
}

// TestSettle: a stale worker cannot settle what another is at.
func TestSettle(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("select lock.create_task('a')")
	queue := locks.NewTaskQueue(e.pool, "")
	first, err := queue.Capture(ctx, 1)
	must(t, err)
	taskOwner(t, e, "update lock.task set deadline = clock_timestamp()")
	second, err := queue.Capture(ctx, 1)
	must(t, err)
	if err := queue.Settle(ctx, first[0], db.TaskDone); !errors.Is(err, locks.ErrTaskLost) {
		t.Errorf("the first attempt: %v", err)
	}
	answers(s, "in_progress:2", "select status || ':' || attempt from lock.get_task('a')")
	must(t, queue.Settle(ctx, second[0], db.TaskDone))
	answers(s, "done:2", "select status || ':' || attempt from lock.get_task('a')")
}

// TestOutcomeUnknown: whoever asked for a commit and got no answer is told that, and nobody else is.
func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	mail := locks.Queue[letter]{}
	calls := map[string]func(ctx context.Context, pool *pgxpool.Pool) error{
		"Exclusive": func(ctx context.Context, pool *pgxpool.Pool) error {
			return locks.Exclusive(ctx, pool, "k", func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "select lock.create_timeout('k', '1 s')"); return err })
		},
		"DurableMutex": func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := locks.NewDurableMutex(pool, "").Acquire(ctx, "m")
			return err
		},
		"Queue.Create": func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := mail.Create(ctx, pool, "t", letter{}, nil)
			return err
		},
		"WithLease": func(ctx context.Context, pool *pgxpool.Pool) error {
			return locks.WithLease(ctx, pool, "l", time.Minute, func(context.Context, locks.Lease) error { return nil }, nil)
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBlackHole(t, e.url)
			pool := openPool(t, b.address, 1)
			must(t, pool.Ping(ctx))
			b.swallow(false) // answers
			soon, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := call(soon, pool); name != "Exclusive" && !errors.Is(err, locks.ErrOutcomeUnknown) {
				t.Errorf("%v is not unknown", err)
			} else if err == nil {
				t.Error("an answer came")
			}
			b.swallow(true)
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if err := call(ended, pool); err == nil || errors.Is(err, locks.ErrOutcomeUnknown) {
				t.Errorf("nothing was sent, and it is %v", err)
			}
		})
	}
	t.Run("a server that ends the session in its commit", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, `create table late (id int);
			create function late() returns trigger language plpgsql as $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
			create constraint trigger late after insert on late deferrable initially deferred for each row execute function late();
			grant insert on late to locks_app`)
		must(t, err)
		err = locks.Exclusive(ctx, e.pool, "k", func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "insert into late values (1)"); return err })
		if !errors.Is(err, locks.ErrOutcomeUnknown) {
			t.Errorf("%v is not unknown", err)
		}
	})
	t.Run("a server that refuses the commit", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, `create table parent (id int primary key);
			create table child (parent_id int references parent deferrable initially deferred); grant insert on child to locks_app`)
		must(t, err)
		err = locks.Exclusive(ctx, e.pool, "k", func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "insert into child values (1)"); return err })
		if code(err) != "23503" || errors.Is(err, locks.ErrOutcomeUnknown) {
			t.Errorf("%v is unknown", err)
		}
	})
}
