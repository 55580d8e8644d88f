package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/calls"
)

// keyCrowd lets workers take tasks of some keys in batches, and settle them in every way, with takeovers and lost connections, until
// all are done. It returns how often a worker saw more than limit tasks of one key in progress, its own among them.
func keyCrowd(t *testing.T, e *env, tasks, keys int, limit int32) (seen int64) {
	t.Helper()
	s := e.session(t)
	s.exec("select lock.limit_queue('default', $1)", limit)
	s.exec("select lock.create_tasks(array(select 'task ' || n from generate_series(1, $1) n), keys => array(select 'key ' || n % $2 from generate_series(1, $1) n))", tasks, keys)
	var wg sync.WaitGroup
	var over atomic.Int64
	for range 6 {
		wg.Go(func() {
			ids, attempts, results := []string{}, []int64{}, []string{}
			for {
				got, err := calls.New(e.pool).SettleAndCapture(ctx, calls.SettleAndCaptureParams{
					IDs: ids, Attempts: attempts, Results: results, Max: 1 + rand.Int32N(6), QueueID: "default", Statuses: []string{"new", "failed"},
					Shortest: time.Millisecond, Longest: time.Millisecond, MaxTries: 1000,
				})
				if err != nil {
					t.Error(err)
					return
				}
				var worst, left int64
				err = e.admin.QueryRow(ctx, `select coalesce(max(n) filter (where key is not null), 0), coalesce(sum(n), 0) from (
					select key, count(*) filter (where status = 'in_progress') as n from lock.task where status in ('new', 'failed', 'in_progress') group by key) as by_key`).Scan(&worst, &left)
				if err != nil {
					t.Error(err)
					return
				}
				if worst > int64(limit) {
					over.Add(1)
				}
				ids, attempts, results = ids[:0], attempts[:0], results[:0]
				for _, task := range got {
					switch n := rand.IntN(20); {
					case n == 0: // its worker dies
						_, err = e.admin.Exec(ctx, "update lock.task set deadline = clock_timestamp() where id = $1 and status = 'in_progress' and attempt = $2", task.ID, task.Attempt)
					case n == 1:
						_, err = e.admin.Exec(ctx, "select lock.set_status($1, 'new', $2)", task.ID, task.Attempt)
					default:
						ids, attempts = append(ids, task.ID), append(attempts, task.Attempt)
						results = append(results, []string{"failed", "new", "retry", "done", "done", "done", "done"}[min(n-2, 6)])
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
				if len(got) == 0 {
					var open bool
					if err := e.admin.QueryRow(ctx, "select exists (select from lock.task where status <> 'done')").Scan(&open); err != nil || !open {
						if err != nil {
							t.Error(err)
						}
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return over.Load()
}

func TestTaskKeys(t *testing.T) {
	t.Parallel()
	const hogs = "select lock.create_tasks(array(select 'hog ' || n from generate_series(1, $1) n), keys => array_fill('hog'::text, array[$1]))"
	eachEngine(t, func(t *testing.T, e *env) {
		a, b := e.session(t), e.session(t)
		a.exec("select lock.create_tasks('{a1,a2,a3,b1}', keys => '{a,a,a,b}')")
		a.exec("begin")
		answers(a, 2, "select count(distinct key) from lock.capture(9)")
		answers(b, "", captured+"lock.capture(9)") // a has their locks, and never waits
		a.exec("commit")
		answers(b, "", captured+"lock.capture(9)") // they are full
		answers(b, true, "select lock.set_status('a1', 'done', 1)")
		answers(b, "a2:1", captured+"lock.capture(9)")
		a.exec("select lock.limit_queue('default', 2)")
		answers(a, "a3:1", captured+"lock.capture(9)")
		answers(a, "", captured+"lock.capture(9)")
	})
	t.Run("never too many of a key in progress", func(t *testing.T) {
		t.Parallel()
		for _, limit := range []int32{1, 3} {
			e := open(t, advisory)
			if seen := keyCrowd(t, e, 400, 7, limit); seen > 0 {
				t.Errorf("limit %d: more in progress %d times", limit, seen)
			}
		}
	})
	for what, pieces := range map[string][]string{
		"takes no lock":              {"where lock_internal.try_task_key(walk.number)", "where true"},
		"counts before it has it":    {") < per_key\n", ") < 1000000\n"},
		"takes all that one key has": {"then 1 else 0 end", "then 2 else 0 end", "exit when cardinality(numbers) = cardinality(held)", "exit when cardinality(numbers) >= cardinality(held)"},
	} {
		t.Run("the check catches a capture that "+what, func(t *testing.T) {
			t.Parallel()
			for began := time.Now(); ; {
				e := open(t, advisory)
				mutate(t, e, "choose_by_key", pieces...)
				if keyCrowd(t, e, 300, 2, 1) > 0 {
					return
				} else if time.Since(began) > perseverance {
					t.Fatal("it never had too many")
				}
			}
		})
	}
	t.Run("oldest first, one after the other", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec(hogs, 100)
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					got, err := db.New(e.pool).Capture(ctx, db.CaptureParams{Max: 3, Statuses: []string{"new", "failed"}})
					if err != nil || len(got) > 1 {
						t.Error(len(got), err)
						return
					}
					mu.Lock()
					for _, task := range got {
						order = append(order, task.ID)
					}
					n := len(order)
					mu.Unlock()
					for _, task := range got {
						if _, err := db.New(e.pool).SetStatus(ctx, db.SetStatusParams{ID: task.ID, Status: "done", Attempt: &task.Attempt}); err != nil {
							t.Error(err)
							return
						}
					}
					if n >= 100 {
						return
					}
				}
			})
		}
		wg.Wait()
		for n, id := range order {
			if id != fmt.Sprintf("hog %d", n+1) {
				t.Fatalf("the %d. was %s", n+1, id)
			}
		}
	})
	// turns captures one by one, settles each, and returns after how many a thousand tenants of one task have started.
	turns := func(t *testing.T, s *session, most int) int {
		t.Helper()
		s.exec(hogs, 5000)
		s.exec("select lock.create_tasks(array(select 'tenant ' || n from generate_series(1, 1000) n), keys => array(select 'tenant ' || n from generate_series(1, 1000) n))")
		s.exec(`create or replace function pg_temp.turns(most integer) returns integer language plpgsql as $$
			declare got text; started integer := 0;
			begin
				for n in 1 .. most loop
					select id into got from lock.capture(1);
					perform lock.set_status(got, 'done');
					started := started + (got like 'tenant %')::integer;
					if started = 1000 then return n; end if;
				end loop;
				return most + 1;
			end; $$`)
		return get[int](s, "select pg_temp.turns($1)", most)
	}
	t.Run("keys take turns", func(t *testing.T) {
		t.Parallel()
		if n := turns(t, open(t, advisory).session(t), 2002); n > 2002 {
			t.Error("not all of a thousand tenants have started within two rounds")
		}
	})
	t.Run("the check catches a capture that forgets whose turn it is", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "choose_by_key", "if mine then", "if false then")
		if n := turns(t, e.session(t), 2002); n <= 2002 {
			t.Errorf("all have started after %d", n)
		}
	})
	t.Run("a long transaction does not stop the turn", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b := e.session(t), e.session(t)
		a.exec("select lock.create_task('first', key => 'first')")
		a.exec("select lock.capture(1)") // makes the queue's row
		a.exec("select lock.create_task('second', key => 'second')")
		a.exec("begin")
		answers(a, "second:1", captured+"lock.capture(1)")
		b.exec("select lock.create_tasks(array(select 'x' || n from generate_series(1, 300) n), keys => array(select 'key ' || n % 3 from generate_series(1, 300) n))")
		b.exec("create temp table got (key text)")
		for range 90 {
			b.exec("with taken as (select id, key from lock.capture(1)), noted as (insert into got select key from taken) select lock.set_status(id, 'done') from taken")
		}
		answers(b, 3, "select count(distinct key) from got")
		a.exec("commit")
	})
	t.Run("half of the room is for those without a key, and what nobody takes is for the others", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		const got = "select concat_ws(' ', count(*) filter (where key is null), count(*) filter (where key is not null)) from lock.capture($1)"
		s.exec("select lock.create_tasks(array(select 'x' || n from generate_series(1, 1000) n), available_at => clock_timestamp() - interval '1 day')")
		s.exec("select lock.create_tasks(array(select 'k' || n from generate_series(1, 100) n), keys => array(select 'k' || n from generate_series(1, 100) n))")
		answers(s, "5 5", got, 10)
		ones := 0
		for range 60 {
			ones += get[int](s, "select count(*) from lock.capture(1) where key is not null")
		}
		if ones < 10 || ones > 50 {
			t.Errorf("of 60 captures of one task %d took one with a key", ones)
		}
		s.exec(hogs, 1000)
		s.exec("select lock.capture(1000) where false")
		s.exec("select lock.set_status(id, 'done') from lock.list_tasks(max => 2000) where key like 'k%'")
		s.exec("select lock.capture(2)")
		answers(s, "10 0", got, 10) // the hog is full
		s.exec("select lock.set_status(id, 'done') from lock.list_tasks(max => 2000) where key is null")
		s.exec("select lock.set_status(id, 'done') from lock.list_tasks(key => 'hog', status => 'in_progress')")
		s.exec("select lock.limit_queue('default', 100)")
		answers(s, "0 50", got, 50)
	})
	t.Run("one that is not due yet lets others pass, and waits for its key then", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks('{late1,late2}', keys => '{a,a}', available_at => clock_timestamp() + interval '1 hour')")
		s.exec("select lock.create_task('now', key => 'a')")
		answers(s, "now:1", captured+"lock.capture(9)")
		answers(s, "", captured+"lock.settle_and_capture('{now}', '{1}', '{retry}', 9, shortest => '1 hour', longest => '1 hour')")
		taskOwner(t, e, "update lock.task set available_at = clock_timestamp() - interval '1 s' where id like 'late%'")
		answers(s, "late1:1", captured+"lock.capture(9)")
		answers(s, "late2", "select string_agg(id, ' ') from lock.list_tasks(key => 'a')")
		answers(s, true, "select lock.next_task_in() > '1 minute'") // late1's deadline or now's retry: a is full
		// Thousands come due at once, with one behind them that has no key.
		s.exec("select lock.create_tasks(array(select 'many ' || n from generate_series(1, 3000) n), 'q', keys => array_fill('k'::text, array[3000]), available_at => clock_timestamp() + interval '1 hour')")
		taskOwner(t, e, "update lock.task set available_at = available_at - interval '2 hours' where queue_id = 'q'")
		s.exec("select lock.create_task('none', 'q')")
		answers(s, "many 1:1 none:1", "select string_agg(id || ':' || attempt, ' ' order by id) from lock.capture(2, 'q')")
	})
	t.Run("other isolation levels are refused, where a key waits", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		for _, level := range levels[1:] {
			s.exec("select lock.create_task('x', again => true)")
			s.exec("begin isolation level " + level)
			answers(s, 1, "select count(*) from lock.capture(1)")
			s.exec("commit")
			s.exec("select lock.set_status('x', 'done')")
			s.exec("select lock.create_task('k', key => 'k')")
			s.exec("begin isolation level " + level)
			if pg := s.fails("25000", "select lock.capture(1)"); pg.Hint == "" {
				t.Error("no hint")
			}
			s.exec("rollback")
			s.exec("select lock.delete_task('k')")
		}
	})
	t.Run("a key that was full after all is let go", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b := e.session(t), e.session(t)
		mutate(t, e, "open_keys", "and open_keys.per_key > (", "and 1000000 > (") // as if the count had been another when it was made
		a.exec(hogs, 3)
		answers(a, "hog 1:1", captured+"lock.capture(1)")
		a.exec("begin")
		answers(a, "", captured+"lock.capture(1)")
		answers(b, true, "select lock.set_status('hog 1', 'done', 1)")
		answers(b, "hog 2:1", captured+"lock.capture(1)")
		a.exec("commit")
	})
	t.Run("what somebody is changing is passed over", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b := e.session(t), e.session(t)
		a.exec(hogs, 3)
		a.exec("begin")
		answers(a, true, "select lock.delete_task('hog 1')")
		answers(b, "hog 2:1", captured+"lock.capture(1)")
		a.exec("rollback")
	})
	t.Run("a takeover keeps the place, and a death leaves it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks('{a,b}', keys => '{k,k}', retries_left => 2)")
		for attempt := 1; attempt <= 2; attempt++ {
			answers(s, fmt.Sprintf("a:%d", attempt), captured+"lock.capture(9)")
			taskOwner(t, e, "update lock.task set deadline = clock_timestamp() where status = 'in_progress'")
		}
		answers(s, "b:1", captured+"lock.capture(9)")
		answers(s, true, "select lock.retry_task('a', 1)")
		answers(s, "", captured+"lock.capture(9)")
		answers(s, true, "select lock.set_status('b', 'failed', dead => true)")
		answers(s, "a:3", captured+"lock.capture(9)")
		answers(s, 1, "select lock.retry_tasks(retries_left => 1)")
		answers(s, false, "select lock.delete_task('a')")
		answers(s, true, "select lock.set_status('a', 'done', 3)")
		answers(s, "b:2", captured+"lock.capture(9)")
		answers(s, 0, "select count(*) from lock.list_tasks(key => 'k')")
	})
	t.Run("a lowered limit is met as they end", func(t *testing.T) {
		t.Parallel()
		s := open(t, advisory).session(t)
		s.exec("select lock.limit_queue('default', 3)")
		s.exec(hogs, 9)
		answers(s, 3, "select count(*) from lock.capture(9)")
		s.exec("select lock.limit_queue('default', 2)")
		answers(s, "", captured+"lock.settle_and_capture('{hog 1}', '{1}', '{done}', 9)")
		answers(s, "hog 4:1", captured+"lock.settle_and_capture('{hog 2}', '{1}', '{done}', 9)")
		s.exec("select lock.limit_queue('default', 4)")
		answers(s, 2, "select count(*) from lock.capture(9)")
	})
	t.Run("keys of one number share their places", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "key_number", "pg_catalog.hashtextextended(key_number.key,", "0 * pg_catalog.hashtextextended(key_number.key,")
		s := e.session(t)
		s.exec("select lock.create_tasks('{a,b}', keys => '{a,b}')")
		answers(s, "a:1", captured+"lock.capture(9)")
		answers(s, "b:1", captured+"lock.settle_and_capture('{a}', '{1}', '{done}', 9)")
	})
	t.Run("a queue without keys has nothing of it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.create_tasks(array(select n::text from generate_series(1, 1000) n))")
		s.exec("create temp table got as select id, attempt from lock.capture(1000)")
		s.exec("select lock.set_statuses(array_agg(id), array_agg(attempt), 'failed') from got")
		super := e.sessionAs(t, e.super)
		const size = "select pg_relation_size('lock.task_queue_id_key_number_idx') || ' ' || (select count(*) from lock.queue_limit)"
		answers(super, "8192 0", size)
		s.exec("select lock.create_task('k', key => 'k')")
		s.exec("select lock.capture(9)")
		answers(super, "16384 1", size)
	})
	t.Run("shows what waits, and behind which", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec(hogs, 10)
		s.exec("select lock.create_tasks('{x,k}', keys => '{null,k}')")
		s.exec("select lock.create_task('later', key => 'hog', available_at => clock_timestamp() + interval '1 hour')")
		const depth = "select concat_ws(' ', ready, delayed, running, waiting, oldest_ready is null) from "
		for _, from := range []string{"lock.queue_depth", "lock.queue_sizes()"} {
			answers(s, "3 1 0 9 f", depth+from)
		}
		s.exec("select lock.capture(9)")
		for _, from := range []string{"lock.queue_depth", "lock.queue_sizes()"} {
			answers(s, "0 1 3 9 t", depth+from)
		}
		s.exec("select lock.limit_queue('default', 4)")
		for _, from := range []string{"lock.queue_depth", "lock.queue_sizes()"} {
			answers(s, "3 1 3 6 f", depth+from)
		}
		answers(s, "hog 2 hog 3", "select string_agg(id, ' ') from lock.list_tasks(key => 'hog', max => 2)")
		answers(s, "hog 1", "select string_agg(id, ' ') from lock.list_tasks(key => 'hog', status => 'in_progress')")
		answers(s, 10, "select count(*) from lock.list_tasks()")
	})
	t.Run("refuses what is no key", func(t *testing.T) {
		t.Parallel()
		s := open(t, advisory).session(t)
		for sql, code := range map[string]string{
			"select lock.create_task('a', key => '')":                              "22023",
			"select lock.create_task('a', key => repeat('x', 1025))":               "22023",
			"select lock.create_tasks('{a,b}', keys => '{a}')":                     "22023",
			"select lock.create_tasks('{a,b}', keys => array['a', ''])":            "22023",
			"select lock.limit_queue('q', 0)":                                      "22023",
			"select lock.limit_queue('q', null)":                                   "22004",
			"select lock.limit_queue(null, 1)":                                     "22004",
			"select lock.limit_queue('', 1)":                                       "22023",
			"select * from lock.list_tasks(key => '')":                             "22023",
			"begin read only; select lock.limit_queue('q', 2); select 1; rollback": "25006",
		} {
			s.fails(code, sql)
			s.exec("rollback")
		}
		answers(s, 1, "select lock.create_tasks('{a}', keys => '{null}')")
	})
}

// Whoever leaves a place in a key notifies idle workers, unless it fills the place itself.
func TestTaskKeysWake(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "YugabyteDB always notifies")
	for name, c := range map[string]struct {
		before, leaves string
		wants          bool
	}{
		"set_status done":                           {"", "select lock.set_status('a1', 'done', 1)", true},
		"set_status dead":                           {"", "select lock.set_status('a1', 'failed', dead => true)", true},
		"set_statuses":                              {"", "select lock.set_statuses('{a1}', '{1}', 'done')", true},
		"settled and nothing captured":              {"", "select lock.settle_and_capture('{a1}', '{1}', '{done}', 0)", true},
		"settled and filled":                        {"", "select lock.settle_and_capture('{a1}', '{1}', '{done}', 1)", false},
		"settled for another's task":                {"select lock.create_task('b1', key => 'b', available_at => now() - interval '1 day'); select lock.set_status('a2', 'done')", "select lock.settle_and_capture('{a1}', '{1}', '{done}', 1)", true},
		"settled under a lowered limit":             {"select lock.limit_queue('default', 2); select lock.capture(1); select lock.limit_queue('default', 1)", "select lock.settle_and_capture('{a1}', '{1}', '{done}', 1)", true},
		"settled in a paused queue":                 {"set role locks_owner; select lock.pause_queue('task', 'default', 'why')", "select lock.settle_and_capture('{a1}', '{1}', '{done}', 1)", true},
		"dead of its timeout":                       {"set role locks_owner; update lock.task set retries_left = 0, deadline = now() where id = 'a1'; delete from lock.task where id like 'a_' and id <> 'a1'", "select lock.capture(1)", true},
		"no key":                                    {"select lock.create_task('x'); select lock.capture(1)", "select lock.set_status('x', 'done', 1)", false},
		"a limit":                                   {"", "select lock.limit_queue('default', 2)", true},
		"a batch that is full while the key is not": {"select lock.limit_queue('default', 3)", "select lock.capture(1)", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			s, worker := e.sessionAs(t, e.super), e.session(t)
			s.exec("select lock.create_tasks('{a1,a2,a3}', keys => '{a,a,a}')")
			answers(s, "a1:1", captured+"lock.capture(1)")
			if c.before != "" {
				s.exec(c.before)
			}
			worker.exec("listen lock_task")
			worker.exec("select lock.start_idling('lock_task', 'default', 'w', '1 minute')")
			s.exec(c.leaves)
			s.exec("select pg_notify('lock_task', 'mark')")
			woken := false
			waiting, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			for {
				note, err := worker.conn.WaitForNotification(waiting)
				must(t, err)
				if note.Payload == "mark" {
					break
				}
				woken = true
			}
			if woken != c.wants {
				t.Errorf("woken: %t", woken)
			}
		})
	}
}

// Workers that nobody polls for find every task of a key, though all but one of its tasks wait whenever they look.
func TestTaskWorkKeys(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	const keys, each = 8, 12
	s.exec("select lock.create_tasks('{held 1,held 2}', keys => '{held,held}')")
	answers(s, "held 1:1", captured+"lock.capture(1)")
	var mu sync.Mutex
	running, done := map[string]int{}, 0
	opts := &locks.TaskOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour}, Concurrency: 3, ShortestPause: time.Millisecond, LongestPause: 2 * time.Millisecond}
	for range 3 {
		pool := openPool(t, e.url, 4)
		taskLoopEach(t, pool, opts, func(_ context.Context, task db.Task) error {
			mu.Lock()
			running[*task.Key]++
			if running[*task.Key] > 1 {
				t.Errorf("%s: %d at once", *task.Key, running[*task.Key])
			}
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			running[*task.Key]--
			if task.Attempt == 1 && task.ID[len(task.ID)-1] == '5' {
				return errors.New("once more")
			}
			done++
			return nil
		})
	}
	for n := range each {
		s.exec("select lock.create_tasks(array(select $1 || k from generate_series(1, $2) k), keys => array(select 'key ' || k from generate_series(1, $2) k))", fmt.Sprintf("%d of ", n), keys)
	}
	eventually(t, "all are done", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return done == keys*each
	})
	eventually(t, "the workers sleep", func() bool {
		return wakeIdlers(t, e, "default") == 3 && get[bool](s, "select max(query_start) < clock_timestamp() - interval '500 ms' from pg_stat_activity "+
			"where datname = current_database() and usename = current_user and pid <> pg_backend_pid()")
	})
	answers(s, true, "select lock.set_status('held 1', 'done', 1)")
	eventually(t, "all are settled", func() bool {
		var open bool
		must(t, e.admin.QueryRow(ctx, "select exists (select from lock.task where status <> 'done')").Scan(&open))
		return !open
	})
}
