package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"net/url"

	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/internal/wake"
	"github.com/seed4787c507/locks/lockstest/server"
)

// wakeTable is work for the loops of these tests: lock_internal.wake is not granted to anybody, so the owner produces.
const wakeTable = `create table job (id bigint generated always as identity primary key, queue_id text not null);
	grant select, delete on job to locks_app;
	create function produce(queue text) returns void language sql as $$
		insert into job (queue_id) values (queue);
		select lock_internal.wake('lock_task', queue);
	$$;
	create function wake_first() returns trigger language plpgsql as $$ begin perform lock_internal.wake('lock_task', new.queue_id); return new; end $$;
	create table incoming (queue_id text);
	create trigger wake_first before insert on incoming for each row execute function wake_first();
	create function wake_job() returns trigger language plpgsql as $$ begin insert into job (queue_id) values (new.queue_id); return null; end $$;
	create trigger wake_job after insert on incoming for each row execute function wake_job();
	create function produce_within(queue text) returns void language plpgsql as $$
	begin
		begin
			perform produce(queue);
		exception when others then
			raise;
		end;
	end $$`

// wakeProducers are the ways in which one job is made: by a call, in a subtransaction, and by triggers, the first of which wakes before
// anything is written.
var wakeProducers = []string{"select produce($1)", "select produce_within($1)", "insert into incoming values ($1)"}

// What everybody writes first: a producer that looks who idles before its transaction has an id, and a worker that does not ask
// whose transactions are open.
const (
	wakeLooksFirst = `create or replace function lock_internal.wake(channel text, queue_id text) returns void
		language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
		begin
			if exists (select from lock.idle_worker where idle_worker.channel = wake.channel
				and idle_worker.queue_id = wake.queue_id and idle_worker.until > clock_timestamp())
			then
				perform pg_notify(wake.channel, wake.queue_id);
			end if;
		end $$;
		create or replace function produce(queue text) returns void language sql as $$
			select lock_internal.wake('lock_task', queue);
			select pg_sleep(0.02); -- wide enough for a worker to go idle in it
			insert into job (queue_id) values (queue);
		$$`
	wakeAsksNobody = `create or replace function lock.open_transactions(among bigint[] default null) returns setof bigint language sql as 'select 0::bigint where false';
		create or replace function produce(queue text) returns void language sql as $$
			insert into job (queue_id) values (queue);
			select lock_internal.wake('lock_task', queue);
			select pg_sleep(0.02);
		$$`
)

// A queryLog is a tracer that keeps what the connections of a pool, and the listener beside it, were asked.
type queryLog struct {
	mu        sync.Mutex
	queries   []*loggedQuery // in the order of their starts
	listeners []uint32       // the back ends that listened, which a pool's connections never do
}

type loggedQuery struct {
	sql   string
	args  []any
	ended bool
	rows  int64
}

// openLogged is openPool with a log.
func openLogged(t *testing.T, url string, size int32) (*pgxpool.Pool, *queryLog) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.MaxConns = size
	log := &queryLog{}
	config.ConnConfig.Tracer = log
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool, log
}

type loggedKey struct{}

func (l *queryLog) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	query := &loggedQuery{sql: data.SQL, args: data.Args}
	l.queries = append(l.queries, query)
	if pid := conn.PgConn().PID(); strings.HasPrefix(data.SQL, "listen ") && !slices.Contains(l.listeners, pid) {
		l.listeners = append(l.listeners, pid)
	}
	return context.WithValue(ctx, loggedKey{}, query)
}

func (l *queryLog) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	l.mu.Lock()
	defer l.mu.Unlock()
	query := ctx.Value(loggedKey{}).(*loggedQuery)
	query.ended, query.rows = true, data.CommandTag.RowsAffected()
}

// What is sent in a batch is logged when it is answered.
func (l *queryLog) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (l *queryLog) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queries = append(l.queries, &loggedQuery{sql: data.SQL, ended: true, rows: data.CommandTag.RowsAffected()})
}

func (l *queryLog) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (l *queryLog) count() int { return len(l.since(0)) }

// since is what was asked after the first n queries.
func (l *queryLog) since(n int) (asked []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, query := range l.queries[n:] {
		asked = append(asked, query.sql)
	}
	return asked
}

// lookedLast says whether a worker is listed, has found no transaction it has to wait for, and has looked for work after that, with
// nothing found and nothing left to ask: the worker sleeps. A look ends with queries that contain these texts.
func (l *queryLog) lookedLast(look ...string) bool {
	waits, looked := l.looked(look)
	return looked && !waits
}

// lookedListed is lookedLast for a worker that may have to wait for somebody's open transaction, and asks about it.
func (l *queryLog) lookedListed(look ...string) bool {
	_, looked := l.looked(look)
	return looked
}

func (l *queryLog) looked(look []string) (waits, looked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var after []*loggedQuery // the last time that the worker listed itself
	listed := false
	for _, query := range l.queries {
		if !query.ended {
			return false, false
		}
		switch {
		case strings.HasPrefix(query.sql, "-- name: StartIdling "):
			after, listed = nil, true
		case strings.HasPrefix(query.sql, "-- name: StopIdling "):
			listed = false
		case strings.HasPrefix(query.sql, "-- name: OpenTransactions "):
			if waits = query.rows > 0; !waits {
				after = nil // it looks after that
			}
		default:
			after = append(after, query)
		}
	}
	for i, text := range look {
		at := len(after) - len(look) + i
		if at < 0 || !strings.Contains(after[at].sql, text) {
			return waits, false
		}
	}
	return waits, listed && after[len(after)-len(look)].rows == 0
}

// listening counts the back ends of the log's listeners that are there, and returns one.
func (l *queryLog) listening(t *testing.T, e *env) (n int, pid uint32) {
	t.Helper()
	l.mu.Lock()
	pids := slices.Clone(l.listeners)
	l.mu.Unlock()
	must(t, e.admin.QueryRow(ctx, "select count(*), coalesce(max(pid), 0) from pg_stat_activity where datname = current_database() and pid = any ($1::bigint[])", pids).Scan(&n, &pid))
	return n, pid
}

func wakeEnv(t *testing.T) (*env, *pgxpool.Pool) {
	t.Helper()
	e := open(t, advisory)
	owner := openPool(t, e.owner, 16)
	_, err := owner.Exec(ctx, wakeTable)
	must(t, err)
	return e, owner
}

// wakeAlone is wakeEnv on a server that no other test has, where there is one: a worker that lists itself waits for all transactions
// of the server that were open then, whosever they are.
func wakeAlone(t *testing.T) (*env, *pgxpool.Pool) {
	t.Helper()
	if target.own == nil {
		return wakeEnv(t)
	}
	s, err := server.Start(ctx, server.Options{})
	must(t, err)
	t.Cleanup(func() { s.Stop() })
	e := &env{url: s.URL("locks_app", "postgres"), owner: s.URL("postgres", "postgres")}
	must(t, migrate(e.owner, 0))
	e.admin = openPool(t, e.owner, 2)
	owner := openPool(t, e.owner, 4)
	for _, sql := range []string{"create role locks_app login", "select lock.grant_to('locks_app')", wakeTable} {
		_, err := owner.Exec(ctx, sql)
		must(t, err)
	}
	return e, owner
}

// wakeWorker runs a loop that takes jobs of a queue until the returned function ends it.
func wakeWorker(t *testing.T, pool *pgxpool.Pool, queue string, opts wake.Options, took func(n int64)) (stop func()) {
	t.Helper()
	inner, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		steady := false
		ended <- wake.Watch(inner, pool, wake.Tasks, queue, opts, func(ctx context.Context) (bool, error) {
			if steady {
				steady = false
				return true, nil
			}
			tag, err := pool.Exec(ctx, "delete from job where queue_id = $1", queue)
			found := err == nil && tag.RowsAffected() > 0
			if found {
				took(tag.RowsAffected())
				steady = rand.N(2) == 0 // Then it leaves the list, and has to list itself again.
			}
			return found, err
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Watch: %v", err)
			}
		case <-time.After(patience):
			t.Error("Watch does not end with its context")
		}
	})
	t.Cleanup(stop)
	return stop
}

// wakeIdlers counts the workers that producers of a queue would notify.
func wakeIdlers(t *testing.T, e *env, queue string) (n int) {
	t.Helper()
	must(t, e.admin.QueryRow(ctx, "select count(*) from lock.idle_worker where queue_id = $1 and until > clock_timestamp()", queue).Scan(&n))
	return n
}

// wakeSleepsOn says whether one and the same job waits for some seconds while the queue's worker is listed as idle all the time: the
// worker was not woken. One that was, and is late, gets on while this asks.
func wakeSleepsOn(t *testing.T, e *env, queue string) bool {
	var job int64
	gone := func() bool {
		var oldest int64
		err := e.admin.QueryRow(ctx, `select coalesce(min(id), 0) from job where queue_id = $1
			and exists (select from lock.idle_worker where queue_id = $1 and until > clock_timestamp())`, queue).Scan(&oldest)
		if err != nil {
			t.Error(err)
			return true
		}
		if job == 0 {
			job = oldest
		}
		return oldest == 0 || oldest != job
	}
	return !holdsWithin(3*time.Second, gone)
}

// wakeBystander writes in transactions of some milliseconds that make no work, until the returned function ends it.
func wakeBystander(t *testing.T, owner *pgxpool.Pool) (stop func()) {
	inner, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for inner.Err() == nil {
			err := pgx.BeginFunc(inner, owner, func(tx pgx.Tx) error {
				if _, err := tx.Exec(inner, "select pg_current_xact_id()"); err != nil {
					return err
				}
				return wake.Sleep(inner, rand.N(20*time.Millisecond))
			})
			if err != nil && inner.Err() == nil {
				t.Error(err)
				return
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// wakeRounds lets workers go idle and producers commit at the same time, beside transactions of others, and counts the commits that nobody woke up for: jobs that
// wait for late after their commit, and on (see wakeSleepsOn), or that nobody takes for as long as patience in any case.
func wakeRounds(t *testing.T, e *env, owner *pgxpool.Pool, rounds int, late time.Duration) (lost int64) {
	t.Helper()
	const queues = 8
	// A worker goes idle within some round trips; producers are to come at any moment of that, and to commit at any moment.
	began := time.Now()
	for range 10 {
		must(t, owner.Ping(ctx))
	}
	span := min(5*time.Millisecond, max(time.Millisecond, time.Since(began))) // A stall is no reason to spin for long.
	dwell := func() {
		for began, pause := time.Now(), rand.N(span); time.Since(began) < pause; {
		}
	}
	defer wakeBystander(t, owner)()
	var wg sync.WaitGroup
	var losses atomic.Int64
	for n := range queues {
		wg.Go(func() {
			queue := fmt.Sprintf("queue %d", n)
			taken := make(chan int64, 100)
			// Without the hour the poll would find what is lost, and without the short linger the worker would hardly ever sleep.
			stop := wakeWorker(t, e.pool, queue, wake.Options{Poll: time.Hour, Linger: time.Nanosecond}, func(n int64) { taken <- n })
			defer stop()
			idles := func() (idles bool) {
				err := e.admin.QueryRow(ctx, "select exists (select from lock.idle_worker where queue_id = $1 and until > clock_timestamp())", queue).Scan(&idles)
				return err == nil && idles
			}
			if !holdsWithin(patience, idles) {
				t.Errorf("%s: the worker does not idle", queue)
				return
			}
			for range rounds / queues {
				if losses.Load() > 0 {
					return
				}
				dwell()
				made := int64(1)
				err := pgx.BeginFunc(ctx, owner, func(tx pgx.Tx) error {
					if rand.N(4) == 0 {
						// What is rolled back takes its lock and its notification along.
						err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
							_, err := inner.Exec(ctx, wakeProducers[rand.N(len(wakeProducers))], queue)
							return errors.Join(err, errors.New("roll back"))
						})
						if !strings.Contains(err.Error(), "roll back") {
							return err
						}
					}
					_, err := tx.Exec(ctx, wakeProducers[rand.N(len(wakeProducers))], queue)
					if err == nil && rand.N(4) == 0 {
						made++
						_, err = tx.Exec(ctx, wakeProducers[rand.N(len(wakeProducers))], queue)
					}
					dwell()
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
				committed, deadline := time.Now(), time.After(late)
				for made > 0 {
					select {
					case n := <-taken:
						made -= n
					case <-deadline:
						if time.Since(committed) > patience || wakeSleepsOn(t, e, queue) {
							losses.Add(1)
							return
						}
						deadline = time.After(late)
					}
				}
			}
		})
	}
	wg.Wait()
	return losses.Load()
}

func TestWakeRounds(t *testing.T) {
	t.Parallel()
	t.Run("no wake-up is lost", func(t *testing.T) {
		t.Parallel()
		e, owner := wakeEnv(t)
		if lost := wakeRounds(t, e, owner, rounds(t, 2500), patience); lost != 0 {
			t.Fatalf("%d workers slept on", lost)
		}
	})
	for name, broken := range map[string]string{"a producer that looks before it has its id": wakeLooksFirst, "a worker that asks for no transaction": wakeAsksNobody} {
		t.Run("the checker catches "+name, func(t *testing.T) {
			t.Parallel()
			e, owner := wakeEnv(t)
			_, err := owner.Exec(ctx, broken)
			must(t, err)
			if lost := wakeRounds(t, e, owner, 40000, time.Second); lost == 0 {
				t.Fatal("no wake-up was lost")
			}
		})
	}
}

// notified says whether the listener has heard of anything that was committed.
func notified(t *testing.T, listener *session) bool {
	t.Helper()
	// What was committed before this notification has arrived before it.
	listener.exec("select pg_notify('lock_task', 'mark')")
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found := false
	for {
		note, err := listener.conn.WaitForNotification(waiting)
		must(t, err)
		if note.Payload == "mark" {
			return found
		}
		found = true
	}
}

func TestWakeProtocol(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (e *env, producer, worker *session) {
		e, _ = wakeEnv(t)
		producer, worker = e.sessionAs(t, e.owner), e.session(t)
		worker.exec("listen lock_task")
		return e, producer, worker
	}
	const idle = "select lock.start_idling('lock_task', 'q', 'w', '1 minute')"
	const allAreTold = "producers always notify there, and nobody asks for ids of transactions"
	// idOf is the id of a session's transaction, where it has one.
	idOf := func(s *session) int64 {
		t.Helper()
		return get[int64](s, "select pg_current_xact_id_if_assigned()::text::bigint")
	}
	const open = "select $1 in (select lock.open_transactions())"
	const still = "select $1 in (select lock.open_transactions(array[$1::bigint]))"

	t.Run("notifies only while somebody idles", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		_, producer, worker := start(t)
		producer.exec("select produce('q')")
		if notified(t, worker) {
			t.Error("notified with no idle worker")
		}
		worker.exec(idle)
		producer.exec("select produce('another')")
		if notified(t, worker) {
			t.Error("notified for another queue")
		}
		producer.exec("select produce('q')")
		if !notified(t, worker) {
			t.Error("not notified")
		}
		answers(worker, true, "select lock.stop_idling('lock_task', 'q', 'w')")
		answers(worker, false, "select lock.stop_idling('lock_task', 'q', 'w')")
		producer.exec("select produce('q')")
		if notified(t, worker) {
			t.Error("notified after stop_idling")
		}
	})
	t.Run("forgets a worker that died", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		e, producer, worker := start(t)
		worker.exec(idle)
		_, err := e.admin.Exec(ctx, "update lock.idle_worker set until = clock_timestamp()")
		must(t, err)
		producer.exec("select produce('q')")
		if notified(t, worker) {
			t.Error("notified for an expired line")
		}
		_, err = e.admin.Exec(ctx, "update lock.idle_worker set until = until - interval '2 hours'")
		must(t, err)
		for range 2 {
			worker.exec("select lock.start_idling('lock_task', 'another queue', 'other', '1 minute')")
		}
		answers(e.sessionAs(t, e.super), "other", "select string_agg(worker, ' ') from lock.idle_worker")
	})
	t.Run("lines of others, and dead ones, cost a worker nothing", func(t *testing.T) {
		t.Parallel()
		e, _, worker := start(t)
		admin(t, e, "analyze lock.idle_worker") // while it is small
		worker.exec(idle)
		for range 6 {
			worker.exec(idle)
		}
		others := func(until string) {
			admin(t, e, `insert into lock.idle_worker (channel, queue_id, worker, until)
				select 'lock_task', 'other', 'w' || n, clock_timestamp() + interval '`+until+`' from generate_series(1, 20000) n`)
		}
		others("1 hour")
		if n := buffers(worker, idle); n > 60 {
			t.Errorf("%d buffers", n)
		}
		others("-1 day")
		if n := buffers(worker, idle); n > 2000 { // a hundred lines are deleted
			t.Errorf("%d buffers when there is much to forget", n)
		}
		answers(e.sessionAs(t, e.super), true, "select count(*) between 19000 and 20000 from lock.idle_worker where until < now()")
	})
	t.Run("shows the worker every transaction that may have missed it", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		_, producer, worker := start(t)
		producer.exec("begin")
		producer.exec("select produce('q')")
		worker.exec(idle)
		id := idOf(producer)
		answers(worker, true, open, id)
		answers(worker, true, still, id)
		producer.exec("commit")
		answers(worker, false, still, id)
		answers(worker, false, open, id)
	})
	t.Run("shows a transaction whose id is younger than every one that is over", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		e, producer, worker := start(t)
		ended := "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
		for range 100 {
			worker.exec("begin")
			worker.exec(idle)
			line := idOf(worker)
			producer.exec("begin")
			producer.exec("select produce('q')")
			id := idOf(producer)
			worker.exec("commit")
			newest := get[int64](worker, ended)
			seen := get[bool](worker, open, id)
			producer.exec("commit")
			if notified(t, worker) {
				t.Fatal("it sees what is not committed")
			}
			if !seen {
				t.Fatalf("transaction %d is not shown to the worker whose line is from %d", id, line)
			}
			if newest <= id {
				return
			}
			_, err := e.admin.Exec(ctx, "delete from lock.idle_worker")
			must(t, err)
		}
		t.Skip("others were always faster")
	})
	t.Run("shows a subtransaction's work as its transaction's", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		_, producer, worker := start(t)
		producer.exec("begin")
		producer.exec("savepoint s")
		producer.exec("select produce('q')")
		producer.exec("release savepoint s")
		worker.exec(idle)
		id := idOf(producer)
		answers(worker, true, open, id)
		producer.exec("commit")
		answers(worker, false, still, id)
	})
	t.Run("a rollback to a savepoint takes note and notification back", func(t *testing.T) {
		t.Parallel()
		_, producer, worker := start(t)
		worker.exec(idle)
		producer.exec("begin")
		producer.exec("savepoint s")
		producer.exec("select produce('q')")
		producer.exec("rollback to savepoint s")
		producer.exec("select produce('q')")
		producer.exec("commit")
		if !notified(t, worker) {
			t.Error("not notified")
		}
		producer.exec("begin")
		producer.exec("select produce('q')")
		producer.exec("commit")
		if !notified(t, worker) {
			t.Error("not notified")
		}
	})
	t.Run("a producer has its id before it looks, whatever it does first", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		_, producer, worker := start(t)
		producer.exec("begin")
		producer.exec("select lock_internal.wake('lock_task', 'q')")
		worker.exec(idle)
		answers(worker, true, open, idOf(producer))
		producer.exec("commit")
	})
	for _, broken := range []bool{false, true} {
		name := "create_task looks after it has waited for its id"
		if broken {
			name = "the checker catches a create_task that looks before"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if broken {
				onlyPostgreSQL(t, allAreTold)
			}
			e, _, worker := start(t)
			first, second := e.session(t), e.session(t)
			if broken {
				const look = "perform pg_notify('lock_task', create_task.queue_id)\n    from lock_internal.must_notify('lock_task', create_task.queue_id);"
				mutate(t, e, "create_task", look, "", "    insert into lock.task", "    "+look+"\n    insert into lock.task")
			}
			first.exec("begin; select lock.create_task('a', 'q')")
			creating := second.start("select lock.create_task('a', 'q')").blocked()
			worker.exec(idle)
			first.exec("rollback")
			creating.ends()
			if notified(t, worker) == broken {
				t.Errorf("notified: %v", !broken)
			}
		})
	}
	t.Run("no setting of a session keeps a wake-up back", func(t *testing.T) {
		t.Parallel()
		_, producer, worker := start(t)
		worker.exec(idle)
		producer.exec("set lock.woken = 'lock_task q'")
		producer.exec("set array_nulls = off; set enable_indexscan = off; set plan_cache_mode = force_custom_plan; set time zone 'Pacific/Apia'; set datestyle = 'SQL, DMY'")
		producer.exec("select produce('q')")
		if !notified(t, worker) {
			t.Error("not notified")
		}
	})
	t.Run("no note can be left for a transaction to come", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		_, producer, worker := start(t)
		worker.exec(idle)
		hits := 0
		eventually(t, "an id to come is guessed right", func() bool {
			producer.exec("begin")
			producer.exec("select produce('q')")
			id := idOf(producer)
			note := get[string](producer, "select current_setting('lock.woken')")
			producer.exec("commit")
			forged := strings.Replace(note, fmt.Sprint(id), fmt.Sprint(id+2), 1) // one is used up by what follows
			if forged == note || !strings.HasSuffix(note, " lock_task q") {
				t.Fatalf("the note of transaction %d is %q", id, note)
			}
			producer.exec("select set_config('lock.woken', $1, false)", forged)
			notified(t, worker)
			producer.exec("begin")
			producer.exec("select produce('q')")
			if idOf(producer) == id+2 {
				hits++
			}
			producer.exec("commit")
			if !notified(t, worker) {
				t.Fatal("not notified")
			}
			return hits > 0
		})
	})
	t.Run("one look a transaction and queue", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, allAreTold)
		_, producer, _ := start(t)
		producer.exec("begin")
		looks := func() int64 {
			return get[int64](producer, "select sum(pg_stat_get_xact_numscans(i.indexrelid))::bigint from pg_index i where i.indrelid = 'lock.idle_worker'::regclass")
		}
		for range 5 {
			producer.exec("select lock_internal.wake('lock_task', 'q')")
		}
		if n := looks(); n != 1 {
			t.Errorf("%d looks", n)
		}
		producer.exec("commit")
	})
	t.Run("advisory locks of a stranger delay nobody", func(t *testing.T) {
		t.Parallel()
		e, producer, worker := start(t)
		stranger := e.session(t)
		stranger.exec("select pg_advisory_lock(2002873189, n) from generate_series(0, 1023) n")
		producer.exec("set lock_timeout = '1 s'")
		producer.exec("select produce('q')")
		worker.exec(idle)
		producer.exec("select produce('q')")
		if !notified(t, worker) {
			t.Error("not notified")
		}
	})
	t.Run("old lines are no work for producers, whatever an old snapshot keeps", func(t *testing.T) {
		t.Parallel()
		e, producer, _ := start(t)
		holder := e.session(t)
		holder.exec("begin isolation level repeatable read")
		holder.exec("select")
		answers(holder, false, "select lock.stop_idling('lock_task', 'q', 'w')")
		_, err := e.admin.Exec(ctx, `do $$ begin
			for n in 1..10000 loop
				perform lock.start_idling('lock_task', 'q', 'w' || n, '1 microsecond');
				commit;
			end loop;
		end $$`)
		must(t, err)
		_, err = e.admin.Exec(ctx, "delete from lock.idle_worker")
		must(t, err)
		for _, sql := range []string{
			"select lock_internal.wake('lock_task', 'q')", "select lock_internal.wake('lock_task', 'another')",
			"select lock.start_idling('lock_task', 'q', 'w', '1 microsecond')", "select lock.stop_idling('lock_task', 'q', 'w')",
		} {
			if n := buffers(producer, sql); n > 30 {
				t.Errorf("%s touches %d buffers", sql, n)
			}
		}
		holder.exec("commit")
	})
	t.Run("an old snapshot notifies always", func(t *testing.T) {
		t.Parallel()
		for _, level := range []string{"repeatable read", "serializable"} {
			_, producer, worker := start(t)
			producer.exec("begin isolation level " + level)
			producer.exec("select")
			answers(producer, 0, "select count(*) from job")
			worker.exec(idle)
			producer.exec("select produce('q')")
			producer.exec("commit")
			if !notified(t, worker) {
				t.Errorf("%s: not notified", level)
			}
		}
	})
	t.Run("refuses bad input", func(t *testing.T) {
		t.Parallel()
		_, _, worker := start(t)
		for sql, code := range map[string]string{
			"select lock.start_idling(null, 'q', 'w', '1 minute')":                      "22004",
			"select lock.start_idling('lock_task', null, 'w', '1 minute')":              "22004",
			"select lock.start_idling('lock_task', '', 'w', '1 minute')":                "22023",
			"select lock.start_idling('lock_task', 'q', null, '1 minute')":              "22004",
			"select lock.start_idling('lock_task', 'q', repeat('w', 1025), '1 minute')": "22023",
			"select lock.start_idling('lock_task', 'q', 'w', null)":                     "22004",
			"select lock.start_idling('lock_task', 'q', 'w', '0')":                      "22023",
			"select lock.stop_idling('lock_task', 'q', null)":                           "22004",
			"select lock_internal.wake('lock_task', 'q')":                               "42501",
			"select * from lock.idle_worker":                                            "42501",
		} {
			worker.fails(code, sql)
		}
	})
}

func TestWakeWatch(t *testing.T) {
	t.Parallel()
	hour := wake.Options{Poll: time.Hour}

	t.Run("idles without a query", func(t *testing.T) {
		t.Parallel()
		e, owner := wakeAlone(t)
		var took atomic.Int64
		pool, queries := openLogged(t, e.url, 4)
		wakeWorker(t, pool, "q", hour, func(n int64) { took.Add(n) })
		within(t, perseverance, "the last look is over", func() bool { return queries.lookedLast("delete from job") })
		if n := wakeIdlers(t, e, "q"); n != 1 {
			t.Errorf("%d workers are listed", n)
		}
		calm := queries.count()
		var after int64
		const count = "select count(*) from pg_stat_activity where datname = current_database() and usename = 'locks_app' and query_start > $1"
		var now time.Time
		must(t, e.admin.QueryRow(ctx, "select clock_timestamp()").Scan(&now))
		eventually(t, "a second has passed", func() (passed bool) {
			must(t, e.admin.QueryRow(ctx, "select clock_timestamp() > $1::timestamptz + interval '1 second'", now).Scan(&passed))
			return passed
		})
		must(t, e.admin.QueryRow(ctx, count, now).Scan(&after))
		if after != 0 {
			t.Errorf("%d connections of the idle worker ran a query", after)
		}
		if asked := queries.since(calm); len(asked) > 0 {
			t.Errorf("queries while idle: %q", asked)
		}
		_, err := owner.Exec(ctx, "select produce('q')")
		must(t, err)
		eventually(t, "the job is taken", func() bool { return took.Load() == 1 })
	})
	t.Run("survives the loss of its listening connection", func(t *testing.T) {
		t.Parallel()
		e, owner := wakeEnv(t)
		var took atomic.Int64
		pool, queries := openLogged(t, e.url, 4)
		wakeWorker(t, pool, "q", hour, func(n int64) { took.Add(n) })
		var before, pid uint32
		for n := range int64(3) {
			// The one that was killed may still be there for a moment.
			eventually(t, "there is a listener, and another than before", func() bool {
				var listeners int
				listeners, pid = queries.listening(t, e)
				return listeners == 1 && pid != before
			})
			eventually(t, "the worker idles", func() bool { return wakeIdlers(t, e, "q") == 1 })
			before = pid
			_, err := e.admin.Exec(ctx, "truncate lock.idle_worker")
			must(t, err)
			_, err = e.admin.Exec(ctx, "select pg_terminate_backend($1)", pid)
			must(t, err)
			_, err = owner.Exec(ctx, "select produce('q')")
			must(t, err)
			eventually(t, "the job is taken", func() bool { return took.Load() == n+1 })
		}
		eventually(t, "there is another listener", func() bool {
			n, pid := queries.listening(t, e)
			return n == 1 && pid != before
		})
	})
	t.Run("polls where notifications do not arrive", func(t *testing.T) {
		t.Parallel()
		e, owner := wakeEnv(t)
		var took atomic.Int64
		wakeWorker(t, wakeDeaf(t, e), "q", wake.Options{Poll: time.Hour, Blind: 5 * time.Millisecond}, func(n int64) { took.Add(n) })
		for n := range int64(5) {
			_, err := owner.Exec(ctx, "select produce('q')")
			must(t, err)
			eventually(t, "the job is taken", func() bool { return took.Load() == n+1 })
		}
		if n := wakeIdlers(t, e, "q"); n != 0 {
			t.Errorf("a worker that hears nothing is listed")
		}
	})
	t.Run("polls behind a pooler that swallows notifications", func(t *testing.T) {
		t.Parallel()
		e, owner := wakeEnv(t)
		pool := wakePooler(t, e)
		var took atomic.Int64
		wakeWorker(t, pool, "q", wake.Options{Poll: time.Hour, Blind: 5 * time.Millisecond}, func(n int64) { took.Add(n) })
		for n := range int64(5) {
			_, err := owner.Exec(ctx, "select produce('q')")
			must(t, err)
			eventually(t, "the job is taken", func() bool { return took.Load() == n+1 })
		}
		if n := wakeIdlers(t, e, "q"); n != 0 {
			t.Errorf("a worker that hears nothing is listed")
		}
	})
	t.Run("shares one listener, and ends it with the last loop", func(t *testing.T) {
		t.Parallel()
		e, _ := wakeEnv(t)
		pool, queries := openLogged(t, e.url, 8)
		var stops []func()
		for n := range 5 {
			stops = append(stops, wakeWorker(t, pool, fmt.Sprint("q", n), hour, func(int64) {}))
			eventually(t, "the worker idles", func() bool { return wakeIdlers(t, e, fmt.Sprint("q", n)) == 1 })
		}
		listeners := func() int { n, _ := queries.listening(t, e); return n }
		eventually(t, "there is one listener", func() bool { return listeners() == 1 })
		for _, stop := range stops {
			stop()
		}
		eventually(t, "the listener has gone", func() bool { return listeners() == 0 })
		for n := range 5 {
			if wakeIdlers(t, e, fmt.Sprint("q", n)) != 0 {
				t.Error("an ended worker is still listed")
			}
		}
	})
	t.Run("waits for an open producer without disturbing it", func(t *testing.T) {
		t.Parallel()
		e, _ := wakeEnv(t)
		producer := e.sessionAs(t, e.owner)
		producer.exec("begin")
		producer.exec("select produce('q')")
		var took atomic.Int64
		wakeWorker(t, e.pool, "q", hour, func(n int64) { took.Add(n) })
		eventually(t, "the worker idles", func() bool { return wakeIdlers(t, e, "q") == 1 })
		other := e.sessionAs(t, e.owner)
		other.exec("select produce('q')")
		eventually(t, "the second producer's job is taken", func() bool { return took.Load() == 1 })
		producer.exec("commit")
		eventually(t, "the first producer's job is taken", func() bool { return took.Load() == 2 })
	})
	t.Run("waits for a producer that is prepared, and asks seldom", func(t *testing.T) {
		t.Parallel()
		e, owner := wakeEnv(t)
		producer := e.sessionAs(t, e.owner)
		producer.exec("begin")
		producer.exec("select produce('q')")
		gid := fmt.Sprintf("locks_wake_%d", time.Now().UnixNano())
		if _, err := producer.conn.Exec(ctx, "prepare transaction '"+gid+"'"); slices.Contains([]string{"55000", "0A000"}, code(err)) {
			t.Skip("the server has no prepared transactions, or none that notify")
		} else {
			must(t, err)
		}
		t.Cleanup(func() { owner.Exec(ctx, "rollback prepared '"+gid+"'") })
		var took atomic.Int64
		pool, queries := openLogged(t, e.url, 4)
		wakeWorker(t, pool, "q", hour, func(n int64) { took.Add(n) })
		asks := func(from int) (n int) {
			for _, sql := range queries.since(from) {
				if strings.HasPrefix(sql, "-- name: OpenTransactions ") {
					n++
				}
			}
			return n
		}
		// By then the pauses are as long as they get: a second.
		eventually(t, "it has asked for some seconds", func() bool { return asks(0) > 12 })
		from, began := queries.count(), time.Now()
		eventually(t, "it asks again", func() bool { return asks(from) > 2 })
		if since := time.Since(began); since < time.Second {
			t.Errorf("three questions in %v", since)
		}
		_, err := owner.Exec(ctx, "commit prepared '"+gid+"'")
		must(t, err)
		eventually(t, "the job is taken", func() bool { return took.Load() == 1 })
	})
	for name, second := range map[string]error{"finds work twice": nil, "has no room for more work": wake.ErrBusy} {
		t.Run("is off the list when it "+name, func(t *testing.T) {
			t.Parallel()
			e, owner := wakeEnv(t)
			inner, cancel := context.WithCancel(ctx)
			t.Cleanup(cancel)
			ended := make(chan error, 1)
			found := 0
			var stays, leaves bool
			go func() {
				ended <- wake.Watch(inner, e.pool, wake.Tasks, "q", hour, func(ctx context.Context) (bool, error) {
					switch found {
					case 0:
						tag, err := e.pool.Exec(ctx, "delete from job where queue_id = 'q'")
						if err != nil || tag.RowsAffected() == 0 {
							return false, err
						}
					case 1:
						stays = wakeIdlers(t, e, "q") == 1
						found++
						return second == nil, second
					case 2:
						leaves = holdsWithin(patience, func() bool { return wakeIdlers(t, e, "q") == 0 })
						cancel()
					}
					found++
					return true, nil
				})
			}()
			eventually(t, "the worker idles", func() bool { return wakeIdlers(t, e, "q") == 1 })
			_, err := owner.Exec(ctx, "select produce('q')")
			must(t, err)
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Watch: %v", err)
				}
			case <-time.After(2 * patience):
				t.Fatal("it was not woken")
			}
			if !stays {
				t.Error("single work takes the worker off the list")
			}
			if !leaves {
				t.Error("the busy worker stays on the list")
			}
		})
	}
	// listed is in how many of 200 looks a worker is listed that finds work whenever it looks twice.
	listed := func(t *testing.T, opts wake.Options) (listed int) {
		e, owner := wakeEnv(t)
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		looks := 0
		err := wake.Watch(inner, e.pool, wake.Tasks, "q", opts, func(ctx context.Context) (bool, error) {
			if looks++; looks > 200 {
				cancel()
				return false, ctx.Err()
			}
			listed += wakeIdlers(t, e, "q")
			tag, err := e.pool.Exec(ctx, "delete from job where queue_id = 'q'")
			if err == nil && tag.RowsAffected() == 0 {
				_, err = owner.Exec(ctx, "select produce('q')")
			}
			return err == nil && tag.RowsAffected() > 0, err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
		return listed
	}
	t.Run("steady work lists nobody, so that producers do not notify", func(t *testing.T) {
		t.Parallel()
		if n := listed(t, wake.Options{Poll: time.Hour, Linger: 10 * time.Second}); n > 10 {
			t.Errorf("it is listed in %d looks", n)
		}
	})
	t.Run("single work keeps it on the list, so that it takes few calls", func(t *testing.T) {
		t.Parallel()
		if n := listed(t, wake.Options{Poll: time.Hour, Linger: time.Nanosecond}); n < 190 {
			t.Errorf("it is listed in only %d looks", n)
		}
	})
	t.Run("ends with an error that no pause mends", func(t *testing.T) {
		t.Parallel()
		e, _ := wakeEnv(t)
		ctx, cancel := context.WithTimeout(ctx, patience)
		t.Cleanup(cancel)
		err := wake.Watch(ctx, e.pool, wake.Tasks, "q", hour, func(ctx context.Context) (bool, error) {
			_, err := e.pool.Exec(ctx, "select * from lock.idle_worker")
			return false, err
		})
		wantCode(t, err, "42501", "Watch")
		calls := 0
		err = wake.Watch(ctx, e.pool, wake.Tasks, "q", hour, func(ctx context.Context) (bool, error) {
			if calls++; calls < 4 {
				_, err := e.pool.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
				return false, err
			}
			_, err := e.pool.Exec(ctx, "select 1 / 0")
			return false, err
		})
		wantCode(t, err, "22012", "Watch")
		if calls != 4 {
			t.Errorf("%d calls", calls)
		}
		pool := openPool(t, e.url, 2)
		err = wake.Watch(ctx, pool, wake.Tasks, "q", hour, func(ctx context.Context) (bool, error) {
			pool.Close()
			return false, pool.Ping(ctx)
		})
		if err == nil || !strings.Contains(err.Error(), "closed pool") {
			t.Errorf("the pool was closed: %v", err)
		}
	})
}

// wakeDeaf is a pool beside which no listener fits.
func wakeDeaf(t *testing.T, e *env) *pgxpool.Pool {
	t.Helper()
	role := fmt.Sprintf("locks_deaf_%d", time.Now().UnixNano())
	_, err := e.admin.Exec(ctx, "create role "+role+" login in role locks_app connection limit 1")
	must(t, err)
	u, err := url.Parse(e.url)
	must(t, err)
	u.User = url.User(role)
	pool := openPool(t, u.String(), 1)
	must(t, pool.Ping(ctx))
	t.Cleanup(func() {
		pool.Close()
		eventually(t, "the role's connections have ended", func() bool {
			_, err := e.admin.Exec(ctx, "drop role "+role)
			return err == nil
		})
	})
	return pool
}

// A worker whose look takes longer than it may linger on the list would otherwise be taken off it by each look that follows.
func TestWakeSlowLook(t *testing.T) {
	t.Parallel()
	e, owner := wakeEnv(t)
	var looks atomic.Int64
	inner, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- wake.Watch(inner, e.pool, wake.Tasks, "slow", wake.Options{Poll: time.Hour, Linger: time.Nanosecond}, func(ctx context.Context) (bool, error) {
			looks.Add(1)
			for range 100 { // what it lingers is over long before these are
				if _, err := e.pool.Exec(ctx, "select"); err != nil {
					return false, err
				}
			}
			tag, err := e.pool.Exec(ctx, "delete from job where queue_id = 'slow'")
			return err == nil && tag.RowsAffected() > 0, err
		})
	}()
	last, since := looks.Load(), time.Now()
	calm := func() bool {
		if now := looks.Load(); now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > time.Second
	}
	eventually(t, "it sleeps", calm)
	_, err := owner.Exec(ctx, "select produce('slow')")
	must(t, err)
	eventually(t, "it was woken", func() bool {
		var left int
		must(t, owner.QueryRow(ctx, "select count(*) from job").Scan(&left))
		return left == 0
	})
	eventually(t, "it sleeps again", calm)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: %v", err)
	}
}

// wakePooler is a pool through a pgbouncer that shares connections between transactions.
func wakePooler(t *testing.T, e *env) *pgxpool.Pool {
	t.Helper()
	address := startPgbouncer(t, e.url)
	pool := openPool(t, address, 10)
	eventually(t, "pgbouncer answers", func() bool { return pool.Ping(ctx) == nil })
	return pool
}
