package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks/db"
)

const oneProcess = "'00000000-0000-4000-8000-000000000001'"

func TestQueuePause(t *testing.T) {
	t.Parallel()
	t.Run("a paused queue gives nothing, and takes over nothing", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			e.operates(t)
			s := e.session(t)
			s.exec("select lock.create_tasks('{mine,late}', timeout => '1 hour')")
			answers(s, "mine:1 late:1", captured+"lock.capture(2)")
			taskOwner(t, e, "update lock.task set deadline = clock_timestamp() where id = 'late'")
			s.exec("select lock.create_task('new'), lock.create_task('elsewhere', 'other'), lock.enqueue('update', 'e'), lock.enqueue('update', 'e', queue_id => 'other')")
			s.exec("begin; select lock.capture_request(" + oneProcess + ")")
			other := e.session(t)
			answers(other, true, "select lock.pause_queue('task', 'default', 'the disk is full')")
			answers(other, true, "select lock.pause_queue('request', 'default', 'the disk is full')")
			answers(other, false, "select lock.pause_queue('task', 'default', 'another reason')")
			answers(s, int64(1), "select lock.settle_request("+oneProcess+")") // what is at hand goes on
			s.exec("commit; select lock.enqueue('update', 'later')")
			answers(s, "", captured+"lock.capture(9)")
			answers(s, "", captured+"lock.settle_and_capture('{mine}', '{1}', '{failed}', 9)")
			answers(s, 0, "select count(*) from lock.next_task_in()")
			answers(s, "failed in_progress", "select string_agg(status::text, ' ') from (select (lock.get_task(id)).status from unnest('{mine,late}'::text[]) id) t")
			answers(s, 0, "select count(*) from lock.capture_request("+oneProcess+")")
			answers(s, "elsewhere:1", captured+"lock.capture(9, 'other')")
			s.exec("begin")
			answers(s, 1, "select count(*) from lock.capture_request("+oneProcess+", queue_id => 'other')")
			s.exec("rollback")
			answers(s, true, "select lock.resume_queue('task', 'default')")
			answers(s, false, "select lock.resume_queue('task', 'default')")
			answers(s, "late:2 new:1 mine:2", captured+"lock.capture(9)")
			s.exec("begin")
			answers(s, 0, "select count(*) from lock.capture_request("+oneProcess+")")
			s.exec("rollback; select lock.resume_queue('request', 'default'); begin")
			answers(s, 1, "select count(*) from lock.capture_request("+oneProcess+")")
			s.exec("rollback")
		})
	})
	t.Run("who, when and why is on record", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, owner := e.session(t), e.sessionAs(t, e.owner)
		s.fails("42501", "select lock.pause_queue('task', 'q', 'why')")
		s.fails("42501", "select lock.resume_queue('task', 'q')")
		s.fails("42501", "select * from lock.queue_pause")
		e.operates(t)
		q := db.New(e.pool)
		depth := func() (lines []string) {
			t.Helper()
			all, err := q.QueueDepth(ctx)
			must(t, err)
			for _, d := range all {
				line := fmt.Sprint(d.Kind, " ", d.QueueID)
				if d.PausedSince != nil {
					line += " paused: " + *d.PausedReason
				}
				lines = append(lines, line)
			}
			return lines
		}
		for _, reason := range []string{"first", "second"} {
			for range 2 {
				paused, err := q.PauseQueue(ctx, db.PauseQueueParams{Kind: db.KindTask, QueueID: "q", Reason: reason})
				must(t, err)
				if want := "task q paused: " + reason; strings.Join(depth(), ", ") != want {
					t.Errorf("%v: %q, want %q", paused, depth(), want)
				}
			}
			resumed, err := q.ResumeQueue(ctx, "task", "q")
			if err != nil || !resumed || len(depth()) > 0 {
				t.Errorf("%v, %v, %q", resumed, err, depth())
			}
		}
		answers(owner, "task q locks_app first locks_app t, task q locks_app second locks_app t",
			"select string_agg(concat_ws(' ', kind, queue_id, paused_by, reason, resumed_by, resumed_at > paused_at), ', ' order by pause_id) from lock.queue_pause")
	})
	t.Run("two who pause or resume at once", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.operates(t)
		a, b := e.session(t), e.session(t)
		b.exec("create temp table answer (paused boolean)")
		a.exec("begin; select lock.pause_queue('task', 'q', 'a')")
		p := b.start("insert into answer select lock.pause_queue('task', 'q', 'b')").blocked()
		a.exec("commit")
		p.ends()
		a.exec("begin; select lock.resume_queue('task', 'q')")
		p = b.start("insert into answer select lock.resume_queue('task', 'q')").blocked()
		a.exec("rollback")
		p.ends()
		answers(b, "false true", "select string_agg(paused::text, ' ' order by paused) from answer")
	})
	t.Run("what is denied writes nothing", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.operates(t)
		s := e.session(t)
		s.exec("select lock.pause_queue('task', 'default', 'why'), lock.create_task('a')")
		s.exec("begin")
		answers(s, false, "select lock.pause_queue('task', 'default', 'why')")
		answers(s, false, "select lock.resume_queue('request', 'default')")
		answers(s, "", captured+"lock.capture(1)")
		answers(s, true, "select pg_current_xact_id_if_assigned() is null")
		s.exec("commit")
	})
	t.Run("a transaction that looked before the pause goes on", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.operates(t)
		a, b := e.session(t), e.session(t)
		a.exec("select lock.create_task('a')")
		b.exec("begin isolation level repeatable read; select 1")
		a.exec("select lock.pause_queue('task', 'default', 'why')")
		answers(b, "a:1", captured+"lock.capture(1)")
		b.exec("commit")
	})
	t.Run("bad input", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.operates(t)
		s := e.session(t)
		long := strings.Repeat("x", 10<<20)
		for _, bad := range []struct {
			code, sql string
			args      []any
		}{
			{"22004", "select lock.pause_queue(null, 'q', 'why')", nil},
			{"22023", "select lock.pause_queue('lease', 'q', 'why')", nil},
			{"22023", "select lock.pause_queue($1, 'q', 'why')", []any{long}},
			{"22004", "select lock.pause_queue('task', null, 'why')", nil},
			{"22023", "select lock.pause_queue('task', '', 'why')", nil},
			{"22023", "select lock.pause_queue('task', $1, 'why')", []any{long}},
			{"22004", "select lock.pause_queue('task', 'q', null)", nil},
			{"22023", "select lock.pause_queue('task', 'q', ' ')", nil},
			{"22023", "select lock.pause_queue('task', 'q', $1)", []any{long}},
			{"22004", "select lock.resume_queue(null, 'q')", nil},
			{"22023", "select lock.resume_queue('lease', 'q')", nil},
			{"22004", "select lock.resume_queue('task', null)", nil},
			{"22023", "select lock.resume_queue('task', '')", nil},
			{"22004", "select lock.await_task(queue_id => null)", nil},
			{"22023", "select lock.await_task(worker => '')", nil},
			{"22023", "select lock.await_task(worker => $1)", []any{long}},
			{"22004", "select lock.await_task(poll => null)", nil},
			{"22023", "select lock.await_task(poll => '0')", nil},
			{"22023", "select lock.await_task(poll => '1 month')", nil},
			{"22004", "select lock.await_task(max => null)", nil},
			{"22023", "select lock.await_task(max => -1)", nil},
			{"22004", "select lock.await_task(null)", nil},
			{"22023", "select lock.await_task('{a}', '{1}', '{odd}')", nil},
			{"22023", "select lock.await_task(statuses => '{in_progress}')", nil},
			{"22004", "select lock.await_request(null)", nil},
			{"22023", "select lock.await_request(gen_random_uuid(), worker => '')", nil},
			{"22023", "select lock.await_request(gen_random_uuid(), poll => '-1 s')", nil},
			{"22004", "select lock.await_request(gen_random_uuid(), queue_id => null)", nil},
			{"22004", "select lock.list_tasks(null)", nil},
			{"22004", "select lock.list_tasks(status => null)", nil},
			{"22023", "select lock.list_tasks(max => 0)", nil},
			{"22P02", "select lock.list_tasks(status => 'odd')", nil},
		} {
			pg := s.fails(bad.code, bad.sql, bad.args...)
			if bad.code != "22P02" && pg.Hint == "" {
				t.Errorf("%s: no hint", bad.sql)
			}
		}
		answers(e.sessionAs(t, e.super), 0, "select (select count(*) from lock.queue_pause) + (select count(*) from lock.idle_worker)")
		s.exec("begin isolation level repeatable read")
		s.fails("25000", "select lock.await_request(gen_random_uuid())")
	})
}

func TestQueueDepth(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	e.operates(t)
	s := e.session(t)
	s.exec("select lock.create_tasks('{ready 1,ready 2}', 'q'), lock.create_task('an hour away', 'q', available_at => clock_timestamp() + interval '1 hour')")
	s.exec("select lock.create_task('dead', 'q'), lock.create_task('done', 'q', status => 'done'), lock.create_task('done', 'only done', status => 'done')")
	taskOwner(t, e, "update lock.task set retries_left = 0 where id = 'dead'")
	s.exec("select lock.create_task('runs', 'runs', timeout => '1 hour'), lock.create_task('for ever', 'runs', timeout => null), lock.create_task('overdue', 'runs', timeout => '1 hour')")
	s.exec("select lock.capture(3, 'runs')")
	taskOwner(t, e, "update lock.task set deadline = clock_timestamp() where id = 'overdue'")
	for _, entity := range []string{"fails", "waits", "new"} {
		s.exec("select lock.enqueue('update', $1, queue_id => 'r')", entity)
	}
	s.exec("begin; select lock.capture_request(" + oneProcess + ", queue_id => 'r'); select lock.settle_request(" + oneProcess + ", 'error', 'why'); commit")
	s.exec("begin; select lock.capture_request(" + oneProcess + ", queue_id => 'r'); select lock.settle_request(" + oneProcess + ", 'retry', delay => '1 hour'); commit")
	s.exec("select lock.pause_queue('request', 'nothing yet', 'why')")
	rows := get[string](s, `select string_agg(concat_ws(' ', kind, queue_id, ready, delayed, coalesce(running::text, '-'), coalesce(overdue::text, '-'), dead,
		oldest_ready is not null, paused_reason), E'\n' order by kind, queue_id) from lock.queue_depth`)
	want := strings.Join([]string{
		"request nothing yet 0 0 - - 0 f why",
		"request r 1 1 - - 1 t",
		"task q 2 1 0 0 1 t",
		"task runs 0 0 2 1 0 f",
	}, "\n")
	if rows != want {
		t.Errorf("got\n%s\nwant\n%s", rows, want)
	}
	answers(s, true, "select oldest_ready = (select available_at from lock.get_task('ready 1', 'q')) from lock.queue_depth where queue_id = 'q'")
	taskOwner(t, e, "update lock.request set settled_at = settled_at - interval '25 hours' where settled_at is not null")
	answers(s, int64(0), "select dead from lock.queue_depth where queue_id = 'r'")
}

func TestListTasks(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("select lock.create_tasks('{b,a,c}', 'q', timeout => null, available_at => '2020-01-01'), lock.create_task('dead', 'q', available_at => '2019-01-01')")
	taskOwner(t, e, "update lock.task set retries_left = 0 where id = 'dead'")
	const ids = "select coalesce(string_agg(id, ' '), '') from "
	answers(s, "dead b a c", ids+"lock.list_tasks('q')")
	answers(s, "dead b", ids+"lock.list_tasks('q', 'new', 2)")
	answers(s, "", ids+"lock.list_tasks('q', 'failed')")
	s.exec("select lock.capture(2, 'q'), lock.create_task('soon', 'q', timeout => '1 hour', available_at => '2018-01-01')")
	s.exec("select lock.capture(1, 'q')")
	answers(s, "soon", ids+"lock.list_tasks('q', 'in_progress', 1)")
	answers(s, "soon a", ids+"lock.list_tasks('q', 'in_progress', 2)") // the others have no timeout
	answers(s, "soon a b", ids+"lock.list_tasks('q', 'in_progress')")
	tasks, err := db.New(e.pool).ListTasks(ctx, db.ListTasksParams{QueueID: "q", Status: db.TaskNew, Max: 10})
	if err != nil || len(tasks) != 2 || tasks[0].ID != "dead" {
		t.Errorf("%v, %v", tasks, err)
	}
	// Bounded, whatever lies there.
	taskOwner(t, e, "insert into lock.task (id, status, retries_left, deadline) select 'x' || n || s || coalesce(r, 9), s::lock.task_status, r, clock_timestamp() "+
		"from generate_series(1, 10000) n, unnest('{new,failed,done,in_progress}'::text[]) s, unnest('{null,0}'::integer[]) r; analyze lock.task")
	super := e.sessionAs(t, e.super)
	for _, status := range []string{"new", "in_progress", "done", "failed"} {
		if n := buffers(super, "select * from lock.list_tasks(status => '"+status+"', max => 10)"); n > 100 {
			t.Errorf("%s: %d buffers", status, n)
		}
	}
}

func TestCheckForgottenTasks(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	const found = "select coalesce(string_agg(severity || ': ' || finding, ', '), '') from lock.check() where subject = 'tasks'"
	s.exec("select lock.create_tasks('{a,b,c}', timeout => null), lock.create_task('bounded', timeout => '2 days')")
	s.exec("select lock.capture(4)")
	answers(s, "", found)
	taskOwner(t, e, "update lock.task set changed_at = changed_at - interval '61 minutes' where id <> 'c'")
	answers(s, "warning: tasks in progress for over an hour without a timeout: 2, such as default: a", found)
}

// awaited is what a call of await_task or await_request said: what was given, or how long to sleep.
func awaited(s *session, call string) (ids string, sleep time.Duration) {
	s.t.Helper()
	var seconds float64
	err := s.conn.QueryRow(ctx, "select coalesce(string_agg(id, ' '), ''), max(sleep) from "+call, pgx.QueryExecModeSimpleProtocol).Scan(&ids, &seconds)
	if code(err) == "23503" { // requests, which nobody settled
		return "requests", 0
	} else if err != nil {
		s.t.Fatalf("%s: %v", call, err)
	}
	return ids, time.Duration(seconds * float64(time.Second))
}

// An awaitKind is one of the two functions, and how to give it work.
type awaitKind struct {
	kind, call, produce string
}

var awaitKinds = []awaitKind{
	{"task", "lock.await_task(poll => '1 hour')", "select lock.create_task(gen_random_uuid()::text)"},
	{"request", "lock.await_request(gen_random_uuid(), poll => '1 hour') as t (request_id, id)", "select lock.enqueue('update', gen_random_uuid()::text)"},
}

// awaitAlone keeps the transactions of other tests, in other databases, from making the workers of this one look again.
func awaitAlone(t *testing.T, e *env) *env {
	t.Helper()
	mutate(t, e, "begin_look", "pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= line.horizon", `not exists (
		select from pg_locks join pg_stat_activity on pg_stat_activity.pid = pg_locks.pid
		where pg_locks.locktype = 'transactionid' and pg_locks.mode = 'ExclusiveLock' and pg_stat_activity.datname = current_database()
		  and pg_locks.transactionid::text::bigint < line.horizon)`)
	return e
}

func TestQueueAwait(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "producers always notify there")
	// idle lists the worker, and lets it look until it would sleep.
	idle := func(t *testing.T, s *session, k awaitKind) {
		t.Helper()
		eventually(t, "it sleeps", func() bool {
			ids, sleep := awaited(s, k.call)
			return ids == "" && sleep > time.Minute
		})
	}
	// oversleeps is the checker: it says whether work that is ready stays where it is while the worker sleeps for long, and is not told.
	oversleeps := func(t *testing.T, s *session, k awaitKind) bool {
		t.Helper()
		until, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for {
			ids, sleep := awaited(s, k.call)
			if ids != "" {
				return false
			}
			if sleep < time.Minute {
				if until.Err() != nil {
					t.Fatal("it never sleeps, and never finds anything")
				}
				continue
			}
			// What was notified before is here with the answer.
			told, cancel := context.WithTimeout(ctx, time.Millisecond)
			_, err := s.conn.WaitForNotification(told)
			cancel()
			return err != nil
		}
	}
	for _, k := range awaitKinds {
		t.Run(k.kind, func(t *testing.T) {
			t.Parallel()
			t.Run("looks again at once, sleeps for long, and is notified", func(t *testing.T) {
				t.Parallel()
				eachEngine(t, func(t *testing.T, e *env) {
					awaitAlone(t, e)
					s, p := e.session(t), e.session(t)
					s.exec("listen lock_" + k.kind)
					if ids, sleep := awaited(s, k.call); ids != "" || sleep != 0 {
						t.Errorf("first: %q, %v", ids, sleep)
					}
					idle(t, s, k)
					p.exec(k.produce)
					note, err := s.conn.WaitForNotification(ctx)
					if err != nil || note.Payload != "default" {
						t.Errorf("%v, %v", note, err)
					}
				})
			})
			t.Run("does not sleep over who was open when it was listed", func(t *testing.T) {
				t.Parallel()
				for _, blind := range []bool{false, true} {
					e := open(t, advisory)
					if blind { // a worker that takes everybody for gone
						mutate(t, e, "begin_look", "pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= line.horizon", "true")
					}
					s, p := e.session(t), e.session(t)
					s.exec("listen lock_" + k.kind)
					p.exec("begin")
					p.exec(k.produce) // it looks, and nobody idles
					if ids, sleep := awaited(s, k.call); ids != "" || sleep != 0 {
						t.Errorf("first: %q, %v", ids, sleep)
					}
					for n := range 3 {
						ids, sleep := awaited(s, k.call)
						if ids != "" || (sleep > time.Second) != blind {
							t.Errorf("call %d, blind %v: %q, %v", n, blind, ids, sleep)
						}
					}
					p.exec("commit")
					if blind {
						told, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
						_, err := s.conn.WaitForNotification(told)
						cancel()
						if err == nil {
							t.Error("it was told, although nobody idled when the producer looked")
						}
						continue
					}
					if oversleeps(t, s, k) {
						t.Error("it sleeps over a producer that was open when it was listed")
					}
				}
			})
			t.Run("does not sleep over who got an id before its line was committed", func(t *testing.T) {
				t.Parallel()
				// The producer stands between its look at the list and its commit, while the worker lists itself and looks.
				for _, broken := range []bool{false, true} {
					e := open(t, advisory)
					if broken { // a horizon from the transaction that makes the line
						mutate(t, e, "begin_look", "line.horizon := pg_current_xact_id()::text::bigint", "line.horizon := line.listed_by")
						awaitAlone(t, e)
					}
					w, p := e.session(t), e.session(t)
					w.exec("listen lock_" + k.kind)
					w.exec("begin")
					if ids, sleep := awaited(w, k.call); ids != "" || sleep != 0 {
						t.Errorf("first: %q, %v", ids, sleep)
					}
					p.exec("begin")
					p.exec(k.produce) // its id is younger than the line's transaction, which has not committed
					w.exec("commit")
					if broken {
						idle(t, w, k)
						p.exec("commit")
						continue
					}
					for range 3 {
						if ids, sleep := awaited(w, k.call); ids != "" || sleep > time.Second {
							t.Errorf("%q, and it sleeps for %v", ids, sleep)
						}
					}
					p.exec("commit")
					if oversleeps(t, w, k) {
						t.Error("it sleeps over a producer that was open when it was listed")
					}
				}
			})
			t.Run("a clock that was set back keeps it from no sleep", func(t *testing.T) {
				t.Parallel()
				e := awaitAlone(t, open(t, advisory))
				s, older := e.session(t), e.session(t)
				older.exec("begin")
				older.exec("select pg_current_xact_id()")
				awaited(s, k.call)
				_, err := e.admin.Exec(ctx, "update lock.idle_worker set since = since + interval '1 hour', until = until + interval '1 hour'")
				must(t, err)
				for range 3 {
					if ids, sleep := awaited(s, k.call); ids != "" || sleep != time.Second {
						t.Errorf("%q, and it sleeps for %v", ids, sleep)
					}
				}
			})
			t.Run("is woken by resume_queue, however it meets the look", func(t *testing.T) {
				t.Parallel()
				for _, silent := range []bool{false, true} {
					e := awaitAlone(t, open(t, advisory))
					e.operates(t)
					s, p := e.session(t), e.session(t)
					if silent { // a resumption that tells nobody
						mutate(t, e, "resume_queue", "perform lock_internal.wake(", "perform concat(")
					}
					s.exec("listen lock_" + k.kind)
					p.exec("select lock.pause_queue($1, 'default', 'why')", k.kind)
					p.exec(k.produce)
					idle(t, s, k)
					p.exec("select lock.resume_queue($1, 'default')", k.kind)
					// The answer is not asked for again: only a notification can wake it.
					told, cancel := context.WithTimeout(ctx, map[bool]time.Duration{false: patience, true: 50 * time.Millisecond}[silent])
					_, err := s.conn.WaitForNotification(told)
					cancel()
					if (err != nil) != silent {
						t.Errorf("silent %v: %v", silent, err)
					}
				}
				e := awaitAlone(t, open(t, advisory))
				e.operates(t)
				s, p := e.session(t), e.session(t)
				s.exec("listen lock_" + k.kind)
				p.exec("select lock.pause_queue($1, 'default', 'why')", k.kind)
				p.exec(k.produce)
				p.exec("begin; select lock.resume_queue('" + k.kind + "', 'default')") // nobody idles yet
				awaited(s, k.call)
				if _, sleep := awaited(s, k.call); sleep > time.Second {
					t.Errorf("it sleeps for %v over an open resumption", sleep)
				}
				p.exec("commit")
				if oversleeps(t, s, k) {
					t.Error("it sleeps over a resumption")
				}
			})
			t.Run("is told of what is made while the queue is paused", func(t *testing.T) {
				t.Parallel()
				e := awaitAlone(t, open(t, advisory))
				e.operates(t)
				s, p, r := e.session(t), e.session(t), e.session(t)
				s.exec("listen lock_" + k.kind)
				r.exec("select lock.pause_queue($1, 'default', 'why')", k.kind)
				idle(t, s, k)
				p.exec("begin")
				p.exec(k.produce) // while it is paused
				r.exec("select lock.resume_queue($1, 'default')", k.kind)
				_, err := s.conn.WaitForNotification(ctx)
				must(t, err)
				idle(t, s, k) // the producer is still open
				p.exec("commit")
				told, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				if _, err := s.conn.WaitForNotification(told); err != nil {
					t.Errorf("a producer that looked while the queue was paused told nobody: %v", err)
				}
			})
			t.Run("a line that has run out is made again", func(t *testing.T) {
				t.Parallel()
				e := awaitAlone(t, open(t, advisory))
				s := e.session(t)
				idle(t, s, k)
				taskOwner(t, e, "update lock.idle_worker set until = clock_timestamp()")
				if ids, sleep := awaited(s, k.call); ids != "" || sleep != 0 {
					t.Errorf("%q, %v", ids, sleep)
				}
				idle(t, s, k)
				taskOwner(t, e, "update lock.idle_worker set until = clock_timestamp() + interval '1 minute' where until > clock_timestamp()")
				idle(t, s, k)
				answers(e.sessionAs(t, e.super), 1, "select count(*) from lock.idle_worker where until > clock_timestamp() + interval '1 hour'")
			})
			t.Run("does not sleep over who looked before its line was made longer", func(t *testing.T) {
				t.Parallel()
				e := awaitAlone(t, open(t, advisory))
				w, p := e.session(t), e.session(t)
				w.exec("listen lock_" + k.kind)
				idle(t, w, k)
				taskOwner(t, e, "update lock.idle_worker set until = clock_timestamp() + interval '1 hour'")
				mutate(t, e, "must_notify", "statement_timestamp()", "statement_timestamp() + interval '90 minutes'")
				w.exec("begin")
				ids, sleep := awaited(w, k.call)
				p.exec(k.produce) // The line as it is committed counts no more: so late is it.
				w.exec("commit")
				if ids != "" || sleep > time.Minute || oversleeps(t, w, k) {
					t.Errorf("%q, and it sleeps for %v", ids, sleep)
				}
			})
			t.Run("calls in one transaction are refused", func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				s := e.session(t)
				s.exec("begin; select from " + k.call)
				s.fails("25001", "select from "+k.call)
				s.exec("rollback")
			})
			t.Run("idle calls write nothing", func(t *testing.T) {
				t.Parallel()
				s := awaitAlone(t, open(t, advisory)).session(t)
				idle(t, s, k)
				s.exec("begin")
				awaited(s, k.call)
				answers(s, true, "select pg_current_xact_id_if_assigned() is null")
				s.exec("commit")
			})
		})
	}
	t.Run("is told when tasks fall due, and comes back for those that are held", func(t *testing.T) {
		t.Parallel()
		e := awaitAlone(t, open(t, advisory))
		s, p := e.session(t), e.session(t)
		k := awaitKinds[0]
		p.exec("select lock.create_task('later', available_at => clock_timestamp() + interval '40 minutes')")
		eventually(t, "it sleeps until then", func() bool {
			_, sleep := awaited(s, k.call)
			return sleep > 39*time.Minute && sleep <= 40*time.Minute
		})
		p.exec("select lock.create_task('now')")
		p.exec("begin; select lock.capture(1)")
		for range 3 {
			if ids, sleep := awaited(s, k.call); ids != "" || sleep > time.Second {
				t.Errorf("held by another: %q, %v", ids, sleep)
			}
		}
		p.exec("rollback")
		if ids, _ := awaited(s, k.call); ids != "now" {
			t.Errorf("got %q", ids)
		}
		if _, sleep := awaited(s, "lock.await_task('{now}', '{1}', '{done}')"); sleep == 0 || sleep > 20*time.Millisecond {
			t.Errorf("after work it sleeps for %v", sleep)
		}
		answers(s, "done", "select status::text from lock.get_task('now')")
		answers(e.sessionAs(t, e.super), 0, "select count(*) from lock.idle_worker")
		for _, polls := range []string{"lock.await_task(statuses => '{done,failed}')", "lock.await_task(poll => '1 second')"} {
			eventually(t, polls, func() bool {
				_, sleep := awaited(s, polls)
				return sleep == time.Second
			})
		}
		s.exec("select lock.await_task(max => 0)")
		answers(e.sessionAs(t, e.super), 0, "select count(*) from lock.idle_worker")
	})
	t.Run("is told when requests fall due", func(t *testing.T) {
		t.Parallel()
		e := awaitAlone(t, open(t, advisory))
		s := e.session(t)
		k := awaitKinds[1]
		s.exec("select lock.enqueue('update', 'e'), lock.enqueue('update', 'f')")
		s.exec("begin; select lock.await_request(" + oneProcess + "); select lock.settle_request(" + oneProcess + ", 'retry', delay => '40 minutes'); commit; begin")
		answers(s, "f", "select entity_id from lock.await_request("+oneProcess+", 1)")
		s.exec("select lock.settle_request(" + oneProcess + "); commit")
		if _, sleep := awaited(s, "lock.await_request("+oneProcess+", 2) as t (request_id, id)"); sleep == 0 || sleep > 20*time.Millisecond {
			t.Errorf("after work it sleeps for %v", sleep)
		}
		eventually(t, "it sleeps until then", func() bool {
			_, sleep := awaited(s, k.call)
			return sleep > 39*time.Minute && sleep <= 40*time.Minute
		})
	})
	t.Run("on YugabyteDB, where everybody is told, nobody is listed", func(t *testing.T) {
		t.Parallel()
		e := open(t, row)
		mutate(t, e, "is_yugabyte", "version() like '%-YB-%'", "true")
		s := e.session(t)
		if ids, sleep := awaited(s, awaitKinds[0].call); ids != "" || sleep != time.Hour {
			t.Errorf("%q, %v", ids, sleep)
		}
		s.exec("select lock.create_task('a')")
		if ids, _ := awaited(s, awaitKinds[0].call); ids != "a" {
			t.Errorf("got %q", ids)
		}
		answers(e.sessionAs(t, e.super), 0, "select count(*) from lock.idle_worker")
	})
	t.Run("not settled before the commit", func(t *testing.T) {
		t.Parallel()
		s := open(t, advisory).session(t)
		s.exec("select lock.enqueue('update', 'e')")
		s.fails("23503", "select lock.await_request(gen_random_uuid())")
	})
}
