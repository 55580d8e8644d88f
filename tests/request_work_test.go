package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/lockstest/server"
)

// requestProcessURL makes this binary a worker process that can be killed; see startRequestProcess.
const requestProcessURL = "LOCKS_TEST_REQUEST_PROCESS"

func init() {
	if url := os.Getenv(requestProcessURL); url != "" {
		pool, err := pgxpool.New(ctx, url)
		if err == nil {
			err = locks.WorkRequests(ctx, pool, "", requestHandle, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Second}})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func startRequestProcess(url string) (*exec.Cmd, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), requestProcessURL+"="+url)
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}

// requestLog is what handlers write, and what the invariants are read from. One request settles at most once (primary key),
// nobody else is at work on the entity (an advisory lock that lives as long as the handler's transaction: see requestAlone).
const requestLog = `create table worked (request_id bigint primary key, entity_id text not null, request_type text not null, step bigint generated always as identity);
	create table violation (what text);
	grant select, insert on worked, violation to locks_app`

func requestHandle(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
	var created bool
	if err := requestAlone(ctx, tx, batch[0].EntityID); err != nil {
		return err
	}
	if rand.N(40) == 0 {
		if _, err := tx.Exec(ctx, "select count(*) from generate_series(1, 3000000)"); err != nil { // Long enough to be caught.
			return err
		}
	}
	err := tx.QueryRow(ctx, "select exists (select from worked where entity_id = $1 and request_type = 'create')", batch[0].EntityID).Scan(&created)
	if err != nil {
		return err
	}
	last := int64(0)
	for _, request := range batch {
		if request.EntityID != batch[0].EntityID || request.RequestID <= last || request.RequestStatus != "in-progress" ||
			request.RequestType == "create" && len(batch) > 1 || request.RequestType == "update" && !created {
			return fmt.Errorf("violation: %d after %d in a batch of %d, created: %v", request.RequestID, last, len(batch), created)
		}
		last = request.RequestID
		if _, err := tx.Exec(ctx, "insert into worked (request_id, entity_id, request_type) values ($1, $2, $3)", request.RequestID, request.EntityID, request.RequestType); err != nil {
			return err
		}
	}
	return nil
}

// requestAlone takes the entity's advisory lock. A transaction that ends gives up its rows a moment before its advisory locks, and
// that moment can be long. So who has the lock is a violation only as long as its transaction is seen running, later than this one's
// capture. Where nobody can be seen to have it (YugabyteDB), a second of that is one.
func requestAlone(ctx context.Context, tx pgx.Tx, entity string) error {
	began := time.Now()
	for seen := began; ; {
		var had, running bool
		var holders int
		// What pg_stat_activity shows stays the same within a transaction unless it is told to look again.
		err := tx.QueryRow(ctx, "select pg_try_advisory_xact_lock(7, hashtext($1)) from pg_stat_clear_snapshot()", entity).Scan(&had)
		if err != nil || had {
			return err
		}
		err = tx.QueryRow(ctx, `with held as materialized (select * from pg_locks where granted)
			select count(distinct entity.pid), coalesce(bool_or(holder.pid is not null), false)
			from held as entity
			left join held as running on running.pid = entity.pid and running.locktype = 'transactionid'
			left join pg_stat_activity as holder on holder.pid = running.pid and holder.backend_xid = running.transactionid
			where entity.locktype = 'advisory' and entity.classid = 7 and entity.objid = hashtext($1)::oid and entity.objsubid = 2
			and entity.database = (select oid from pg_database where datname = current_database())`, entity).Scan(&holders, &running)
		if err != nil {
			return err
		}
		if holders > 0 {
			seen = time.Now()
		}
		if running || time.Since(seen) > time.Second {
			return errors.New("violation: somebody else is at work on " + entity)
		} else if time.Since(began) > patience {
			return errors.New("violation: somebody has ended, and keeps " + entity)
		}
	}
}

// startRequestWork runs workers until the returned function ends them.
func startRequestWork(t *testing.T, pool *pgxpool.Pool, workers int, opts *locks.RequestOptions) (stop func()) {
	t.Helper()
	return startRequestHandlers(t, pool, workers, requestHandle, opts)
}

// quietRequests tell nobody of errors.
var quietRequests = &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{OnError: func(context.Context, error) {}}}

func startRequestHandlers(t *testing.T, pool *pgxpool.Pool, workers int, handle func(context.Context, pgx.Tx, []db.Request) error, opts *locks.RequestOptions) (stop func()) {
	t.Helper()
	inner, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			if err := locks.WorkRequests(inner, pool, "", handle, opts); !errors.Is(err, context.Canceled) {
				t.Errorf("WorkRequests: %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// requestProduce enqueues creates, each followed by updates, and rolls some back.
func requestProduce(pool *pgxpool.Pool, name string, entities int) error {
	began := time.Now()
	for n := range entities {
		entity := fmt.Sprintf("%s %d", name, n)
		for m := range 1 + rand.N(6) {
			kind := db.RequestUpdate
			if m == 0 {
				kind = db.RequestCreate
			}
			for {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					q := db.New(tx)
					_, err := q.Enqueue(ctx, db.EnqueueParams{RequestType: kind, EntityID: entity, QueueID: "default"})
					if err == nil && m > 0 && rand.N(3) == 0 {
						_, err = q.Enqueue(ctx, db.EnqueueParams{RequestType: kind, EntityID: fmt.Sprintf("%s %d", name, rand.N(n+1)), QueueID: "default"})
					}
					if err == nil && rand.N(5) == 0 {
						return errors.New("roll back")
					}
					return err
				})
				if err == nil || m > 0 && err.Error() == "roll back" || code(err) == "23505" {
					break
				}
				if time.Since(began) > perseverance {
					return fmt.Errorf("producing: %w", err)
				}
			}
		}
	}
	return nil
}

// requestOutstanding waits until at most so many requests are outstanding, for as long as workers settle some.
func requestOutstanding(admin *pgxpool.Pool, atMost int) (left int, ok bool) {
	settled := -1
	for {
		var now int
		more := func() bool {
			err := admin.QueryRow(ctx, "select count(*) filter (where settled_at is null), count(settled_at) from lock.request").Scan(&left, &now)
			return err == nil && (left <= atMost || now > settled)
		}
		if !holdsWithin(perseverance, more) {
			return left, false
		} else if left <= atMost {
			return left, true
		}
		settled = now
	}
}

// requestVerdict waits until everything is settled, and says what went wrong.
func requestVerdict(t *testing.T, admin *pgxpool.Pool) string {
	t.Helper()
	var verdict string
	if left, ok := requestOutstanding(admin, 0); !ok {
		t.Fatalf("%d are outstanding, and none is settled within %v", left, perseverance)
	}
	must(t, admin.QueryRow(ctx, `select concat_ws('; ',
		(select string_agg(distinct message, ', ') from lock.request where request_status <> 'complete'),
		(select count(*) || ' settled, not worked on' from lock.request where not exists (select from worked where worked.request_id = request.request_id) having count(*) > 0),
		(select count(*) || ' worked on, not settled' from worked where not exists (select from lock.request where worked.request_id = request.request_id) having count(*) > 0),
		(select count(*) || ' tried twice' from lock.request where tries <> 1 having count(*) > 0))`).Scan(&verdict))
	return verdict
}

// requestKillProcess starts a worker process and kills it in a transaction, while work goes on; false: that was over before.
func requestKillProcess(e *env, over func() bool) (killed bool, err error) {
	const victim = "locks_request_victim"
	cmd, err := startRequestProcess(e.url + "&application_name=" + victim)
	if err != nil {
		return false, err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var before, now int
	var open bool
	if err := e.admin.QueryRow(ctx, "select count(*) from worked").Scan(&before); err != nil {
		return false, err
	}
	atWork := holdsWithin(perseverance, func() bool {
		err = e.admin.QueryRow(ctx, `select (select count(*) from worked), exists (select from pg_stat_activity
			where datname = current_database() and application_name = $1 and xact_start is not null)`, victim).Scan(&now, &open)
		return err != nil || open && now > before+10 || over()
	})
	if err != nil || over() {
		return false, err
	} else if !atWork {
		return false, errors.New("a worker process does nothing")
	}
	return true, cmd.Process.Kill()
}

// holdsWithin polls until condition holds, and says whether it did in time. Unlike eventually it may be called in any goroutine.
func holdsWithin(bound time.Duration, condition func() bool) bool {
	deadline := time.After(bound)
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline:
			return condition()
		}
	}
	return true
}

func TestRequestWorkUnderFire(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		_, err := e.admin.Exec(ctx, requestLog)
		must(t, err)
		startRequestWork(t, e.pool, 4, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Second}})
		var producers, killers sync.WaitGroup
		var over atomic.Bool
		var backends, processes atomic.Int64
		for n := range 4 {
			producers.Go(func() {
				began := time.Now()
				for m := 0; m == 0 || (backends.Load() == 0 || processes.Load() == 0) && time.Since(began) < perseverance && !t.Failed(); m++ {
					if err := requestProduce(e.pool, fmt.Sprintf("sheet %d.%d", n, m), 60); err != nil {
						t.Error(err)
					}
					// Produced much faster than it is settled: no more until there is nearly nothing left to be killed at.
					if _, ok := requestOutstanding(e.admin, 100); !ok {
						return
					}
				}
			})
		}
		killers.Go(func() { // backends die, though not so fast that nothing is done between two deaths
			for worked := 0; !over.Load(); {
				var killed, now int
				more := func() bool {
					err := e.admin.QueryRow(ctx, "select count(*) from worked").Scan(&now)
					return err != nil || now > worked+20 || over.Load()
				}
				if !holdsWithin(perseverance, more) {
					t.Errorf("only %d were worked on after %d", now, worked)
					return
				}
				err := e.admin.QueryRow(ctx, `select count(*) filter (where pg_terminate_backend(pid)) from (select pid from pg_stat_activity
					where usename = 'locks_app' and datname = current_database() and query like '%worked%' order by random() limit 1) as victim`).Scan(&killed)
				if err != nil {
					t.Error(err)
					return
				}
				if worked = now; killed > 0 {
					backends.Add(1)
				}
			}
		})
		killers.Go(func() { // processes die
			for !over.Load() {
				killed, err := requestKillProcess(e, over.Load)
				if err != nil {
					t.Error(err)
					return
				}
				if killed {
					processes.Add(1)
				}
			}
		})
		producers.Wait()
		over.Store(true)
		killers.Wait()
		if backends.Load() == 0 || processes.Load() == 0 {
			t.Errorf("%d back ends and %d processes were killed at work, and it should be some of each", backends.Load(), processes.Load())
		}
		if verdict := requestVerdict(t, e.admin); verdict != "" {
			t.Error(verdict)
		}
	})
}

func TestRequestCheckers(t *testing.T) {
	t.Parallel()
	t.Run("catch two at work on one entity", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, requestLog)
		must(t, err)
		batch := []db.Request{{RequestID: 1, EntityID: "e", RequestType: db.RequestCreate, RequestStatus: "in-progress"}}
		first, err := e.pool.Begin(ctx)
		must(t, err)
		defer first.Rollback(ctx)
		must(t, requestHandle(ctx, first, batch))
		second, err := e.pool.Begin(ctx)
		must(t, err)
		defer second.Rollback(ctx)
		if err := requestHandle(ctx, second, batch); err == nil || !strings.HasPrefix(err.Error(), "violation") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("wait for one that has ended and not yet let go of the entity", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "its pg_locks does not show who has the lock")
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, requestLog)
		must(t, err)
		ended := e.session(t)
		ended.exec("select pg_advisory_lock(7, hashtext('e'))")
		tx, err := e.pool.Begin(ctx)
		must(t, err)
		defer tx.Rollback(ctx)
		pid := tx.Conn().PgConn().PID()
		done := make(chan error, 1)
		go func() {
			done <- requestHandle(ctx, tx, []db.Request{{RequestID: 1, EntityID: "e", RequestType: db.RequestCreate, RequestStatus: "in-progress"}})
		}()
		eventually(t, "it looks who has the lock", func() (looks bool) {
			must(t, e.admin.QueryRow(ctx, "select query like '%pg_locks%' from pg_stat_activity where pid = $1", pid).Scan(&looks))
			return looks
		})
		ended.exec("select pg_advisory_unlock(7, hashtext('e'))")
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(patience):
			t.Fatal("it waits on")
		}
	})
	for _, among := range []bool{false, true} {
		t.Run(fmt.Sprint("catch an update before its create, together with it: ", among), func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			_, err := e.admin.Exec(ctx, requestLog)
			must(t, err)
			mutate(t, e, "capture_request", "and request.request_type = 'create'", "and (request.request_type = 'update' or "+fmt.Sprint(among)+")")
			s := e.session(t)
			s.exec("begin")
			s.exec("select lock.enqueue('create', 'e')")
			s.exec("select lock.enqueue('update', 'e')")
			s.exec("commit")
			startRequestWork(t, e.pool, 1, quietRequests)
			eventually(t, "a violation", func() bool {
				var n int
				must(t, e.admin.QueryRow(ctx, "select count(*) from lock.request where message like 'violation%'").Scan(&n))
				return n > 0
			})
		})
	}
}

func TestRequestWorkServerCrash(t *testing.T) {
	t.Parallel()
	if target.own == nil {
		t.Skip("needs a server of its own to crash")
	}
	s, err := server.Start(ctx, server.Options{Durable: true})
	must(t, err)
	t.Cleanup(func() { s.Stop() })
	url := s.URL("postgres", "postgres")
	must(t, migrate(url, 0))
	pool := openPool(t, url, 20)
	setup := func(sql string) {
		_, err := pool.Exec(ctx, sql)
		must(t, err)
	}
	setup("create role locks_app")
	setup(requestLog)
	setup("select lock.enqueue('create', n::text) from generate_series(1, 200) n")
	setup("select lock.enqueue('update', n::text) from generate_series(1, 200) n")
	startRequestWork(t, pool, 4, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Second}})
	for n := 1; n <= 2; n++ {
		some := func() bool {
			var settled int
			return pool.QueryRow(ctx, "select count(*) from lock.request where settled_at is not null").Scan(&settled) == nil && settled > 100*n
		}
		if !holdsWithin(perseverance, some) {
			t.Fatal("the workers settle too little")
		}
		must(t, s.Kill())
		must(t, s.Restart(ctx))
	}
	if verdict := requestVerdict(t, pool); verdict != "" {
		t.Error(verdict)
	}
}

// TestRequestWorkRoundTrips counts what a batch costs beside the handler's own: begin travels with the capture, commit with what settles.
// On YugabyteDB each of the six statements is a message of its own.
func TestRequestWorkRoundTrips(t *testing.T) {
	t.Parallel()
	eachServer(t, requestRoundTrips)
}

func requestRoundTrips(t *testing.T, e *env, yugabyte bool) {
	want := int64(8)
	if yugabyte {
		want = 24
	}
	for _, mode := range []string{"cache_statement", "cache_describe", "exec", "simple_protocol"} {
		config, err := pgxpool.ParseConfig(e.url + "&default_query_exec_mode=" + mode)
		must(t, err)
		config.MaxConns = 1
		config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &turnConn{Conn: conn, turns: &atomic.Int64{}}, err
		}
		pool, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		_, err = e.admin.Exec(ctx, "select lock.enqueue('update', $1 || n) from generate_series(1, 10) n", mode)
		must(t, err)
		var turns []int64
		inner, cancel := context.WithCancel(ctx)
		err = locks.WorkRequests(inner, pool, "default", func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			turns = append(turns, tx.Conn().PgConn().Conn().(*turnConn).turns.Load())
			if len(turns) == 10 {
				cancel()
			}
			if len(turns) > 5 {
				_, err := tx.Exec(ctx, "select 1", pgx.QueryExecModeSimpleProtocol)
				return err
			}
			return nil
		}, nil)
		pool.Close()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", mode, err)
		}
		if of4, of4more := turns[5]-turns[1], turns[9]-turns[5]; of4 != want || of4more != want+4 {
			t.Errorf("%s: %d round trips for 4 batches, want %d; %d with a query of the handler's, want %d", mode, of4, want, of4more, want+4)
		}
	}
}

// TestRequestWorkBusyEntity: the requests of an entity that somebody else has stand in front, and a worker does not walk over them again
// and again.
func TestRequestWorkBusyEntity(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "it does not count what is read of an index")
	e := open(t, advisory)
	const busy, others = 20000, 500
	w, super := newRequestWorker(t, e), e.sessionAs(t, e.super)
	fill := func(entity string, n int) {
		super.exec("insert into lock.request (request_type, entity_id, created_at) select 'update', "+entity+", now() from generate_series(1, $1::integer) n", n)
	}
	fill("'busy'", 1)
	w.takes("default", 1)
	fill("'busy'", busy)
	fill("n::text", others)
	pool := openPool(t, e.url, 1)
	stop := startRequestHandlers(t, pool, 1, func(context.Context, pgx.Tx, []db.Request) error { return nil }, nil)
	eventually(t, "the others are settled", func() bool {
		return get[int64](super, "select count(*) from lock.request where settled_at is not null") == others
	})
	stop()
	pool.Close() // a back end that ends reports what it counted
	eventually(t, "few walks", func() bool {
		read := get[int64](super, "select idx_tup_read from pg_stat_clear_snapshot(), pg_stat_user_indexes where indexrelname = 'request_fresh'")
		return read > busy && read < 10*busy
	})
}

// requestRole is a role with no rights, of one test.
func requestRole(e *env) string { return "request_" + e.pool.Config().ConnConfig.Database }

func TestRequestWorkOutcomes(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	_, err := e.admin.Exec(ctx, `create table effect (entity_id text);
		create table parent (id int primary key);
		create table child (parent_id int references parent deferrable initially deferred);
		grant insert, select on effect, child to locks_app`)
	must(t, err)
	s := e.session(t)
	committing := `commit error 1 the closure ended the transaction itself: commit: ERROR: insert or update on table "request_batch" violates foreign key constraint "settle_request_before_commit" (SQLSTATE 23503)`
	if target.yugabyte { // it has no such key, and such a commit is one
		committing = "commit in-progress 1 -"
	}
	for _, entity := range []string{"good", "bad", "panic", "lost", "deferred", "sql", "nul", "twice", "hopeless",
		"rollback", "commit", "role", "savepoint", "settled", "undone", "ended", "habit", "rows", "forgotten rows", "deadline", "conflict", "joined"} {
		s.exec("select lock.enqueue('update', $1)", entity)
	}
	e.sessionAs(t, e.super).exec("select pg_advisory_lock(8, 8)")
	s.exec("begin")
	for n := range 3 {
		s.exec("select lock.enqueue('update', 'among', to_jsonb($1::integer))", n)
	}
	s.exec("commit")
	_, err = e.admin.Exec(ctx, "create role "+requestRole(e)+"; grant "+requestRole(e)+" to locks_app")
	must(t, err)
	t.Cleanup(func() {
		if _, err := e.admin.Exec(ctx, "drop role "+requestRole(e)); err != nil {
			t.Error(err)
		}
	})
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	var lost, conflicts, stacks atomic.Int32
	done := make(chan error, 1)
	go func() {
		done <- locks.WorkRequests(inner, e.pool, "default", func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			entity := batch[0].EntityID
			if _, err := tx.Exec(ctx, "insert into effect values ($1)", entity); err != nil {
				return err
			}
			switch entity {
			case "bad":
				return errors.New("no such sheet")
			case "panic":
				panic("out of ink")
			case "lost":
				if lost.Add(1) == 1 {
					_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
					return err
				}
			case "deferred":
				_, err := tx.Exec(ctx, "insert into child values (1)")
				return err
			case "sql":
				tx.Exec(ctx, "select 1/0") // Its error is forgotten, and the transaction cannot go on.
			case "nul":
				return errors.New("a\x00b\xff")
			case "twice":
				if batch[0].Tries < 3 {
					return locks.RetryAfter(time.Millisecond, errors.New("not yet"))
				}
			case "hopeless":
				return fmt.Errorf("wrapped: %w", locks.RetryAfter(time.Millisecond, errors.New("never")))
			case "rollback":
				_, err := tx.Exec(ctx, "rollback")
				return err
			case "commit":
				_, err := tx.Exec(ctx, "commit") // Refused, since nothing is settled yet.
				return fmt.Errorf("commit: %w", err)
			case "role": // Whoever settles then may not.
				_, err := tx.Exec(ctx, "set local role "+requestRole(e))
				return err
			case "savepoint":
				_, err := tx.Exec(ctx, "rollback; begin")
				return err
			case "settled":
				_, err := tx.Exec(ctx, "select lock.settle_request($1)", batch[0].ProcessID)
				return err
			case "undone": // The transaction is not the handler's to end.
				return tx.Rollback(ctx)
			case "ended":
				if err := tx.Commit(ctx); err == nil {
					return nil
				}
				return errors.New("not ended")
			case "habit": // What many write after every Begin.
				defer tx.Rollback(ctx)
				return locks.RetryAfter(time.Hour, nil)
			case "rows", "forgotten rows":
				rows, err := tx.Query(ctx, "select generate_series(1, 100000)")
				if err != nil || !rows.Next() || entity == "forgotten rows" {
					return err
				}
				return errors.New("bad row")
			case "deadline":
				short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
				defer cancel()
				tx.Exec(short, "select pg_advisory_lock(8, 8)")
				if !tx.Conn().IsClosed() {
					return errors.New("the connection lives")
				}
				return short.Err()
			case "conflict":
				if conflicts.Add(1) < 3 {
					_, err := tx.Exec(ctx, "do $$ begin raise sqlstate '40001'; end $$")
					return err
				}
			case "joined": // Who joins a batch shares its last try.
				if len(batch) == 1 {
					if _, err := e.pool.Exec(ctx, "select lock.enqueue('update', 'joined')"); err != nil {
						return err
					}
				}
				return locks.RetryAfter(time.Millisecond, fmt.Errorf("%d of them", len(batch)))
			case "among": // One of three cannot be done, and they are one piece of work.
				if len(batch) != 3 {
					return fmt.Errorf("a batch of %d", len(batch))
				}
				return fmt.Errorf("request %s is poison", batch[1].Payload)
			}
			return nil
		}, &locks.RequestOptions{MaxTries: 4, Settled: func(_ context.Context, result locks.RequestResult) {
			var panicked *locks.PanicError
			if result.Batch[0].EntityID == "panic" && errors.As(result.Err, &panicked) && panicked.Value == "out of ink" &&
				strings.Contains(string(panicked.Stack), "request_work_test.go") {
				stacks.Add(1)
			}
		}})
	}()
	super := e.sessionAs(t, e.super)
	eventually(t, "everything is settled", func() bool {
		select {
		case err := <-done:
			t.Fatalf("WorkRequests: %v", err)
		default:
		}
		return get[int64](super, "select count(*) from lock.request where settled_at is null and not (entity_id = 'commit' and request_status = 'in-progress' and lock_internal.is_yugabyte())") == 0
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("WorkRequests: %v", err)
	}
	want := strings.Join([]string{"good complete 1 -", "bad error 1 no such sheet", "panic error 1 panic: out of ink", "lost complete 1 -",
		`deferred error 1 ERROR: insert or update on table "child" violates foreign key constraint "child_parent_id_fkey" (SQLSTATE 23503)`,
		"sql error 1 a statement failed, and the handler did not return its error: return it, or use a savepoint (tx.Begin)",
		"nul error 1 ab\uFFFD", "twice complete 3 -", "hopeless error 4 wrapped: retry in 1ms: never",
		"rollback error 1 the closure ended the transaction itself",
		committing,
		"role error 1 ERROR: permission denied for function settle_request (SQLSTATE 42501)",
		"savepoint error 1 the handler took the batch away from its transaction: leave settling, deleting, begin and commit to the worker", "settled error 1 the handler took the batch away from its transaction: leave settling, deleting, begin and commit to the worker",
		"undone error 1 this transaction is not ended by the closure: return nil to commit, or an error to roll back",
		"ended error 1 not ended", "habit complete 1 -", "rows error 1 bad row",
		"forgotten rows error 1 the handler left a query open: it must close its rows",
		"deadline error 1 context deadline exceeded", "conflict complete 1 -",
		"joined error 4 retry in 1ms: 2 of them",
		"among error 1 request 1 is poison", "among error 1 request 1 is poison", "among error 1 request 1 is poison",
		"joined error 3 retry in 1ms: 2 of them"}, "\n")
	got := requestRows(super, "select entity_id, request_status::text, tries, coalesce(case when request_status = 'error' then message end, '-') from lock.request order by request_id")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if n := stacks.Load(); n != 1 {
		t.Errorf("%d times a stack of the panic", n)
	}
	if target.yugabyte { // as docs/yugabytedb.md says
		answers(super, 1, "select lock.settle_request(process_id, 'new') from lock.request where request_status = 'in-progress'")
		answers(super, "new", "select request_status::text from lock.request where entity_id = 'commit'")
	}
	answers(super, "conflict good habit lost twice", "select string_agg(entity_id, ' ' order by entity_id) from effect where entity_id <> 'commit' or not lock_internal.is_yugabyte()")
}

func TestRequestWorkLife(t *testing.T) {
	t.Parallel()
	idle := func(t *testing.T, e *env, n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " workers idle"), func() bool {
			var idle int
			must(t, e.admin.QueryRow(ctx, "select count(*) from lock.idle_worker where channel = 'lock_request' and until > clock_timestamp()").Scan(&idle))
			return idle == n
		})
	}
	t.Run("an idle worker asks nothing, and is woken by an enqueue and by a plain insert", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, requestLog)
		must(t, err)
		pool, queries := openLogged(t, e.url, 1)
		startRequestHandlers(t, pool, 1, requestHandle, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour}})
		s := e.sessionAs(t, e.super)
		for n, sql := range []string{
			"select lock.enqueue('create', 'e')",
			"insert into lock.request (request_type, entity_id) values ('update', 'e')",
		} {
			look := []string{"CaptureRequest", "savepoint", "rollback"}
			if n > 0 { // After a find it looks behind that, and then from the beginning.
				look = slices.Concat(look, []string{"begin"}, look)
			}
			within(t, perseverance, "the worker is calm, and the transactions of other tests are over", func() bool { return queries.lookedLast(look...) })
			idle(t, e, 1)
			calm := queries.count()
			for range 100 {
				s.exec("select lock.enqueue('update', 'e', queue_id => 'another')")
			}
			if asked := queries.since(calm); len(asked) > 0 {
				t.Errorf("queries while idle: %q", asked)
			}
			s.exec(sql)
			eventually(t, "it is settled", func() bool { return get[int64](s, "select count(*) from worked") == int64(n+1) })
		}
	})
	t.Run("a retry that falls due during the next look is not forgotten", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		var tries atomic.Int64
		startRequestHandlers(t, e.pool, 1, func(context.Context, pgx.Tx, []db.Request) error {
			if tries.Add(1) < 3 {
				return locks.RetryAfter(time.Microsecond, errors.New("at once"))
			}
			return nil
		}, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour, OnError: func(context.Context, error) {}}})
		idle(t, e, 1)
		e.session(t).exec("select lock.enqueue('create', 'e')")
		eventually(t, "it was tried three times", func() bool { return tries.Load() == 3 })
	})
	t.Run("what is put back, or committed late, gets its turn under a load that never ends", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		late := e.session(t)
		late.exec("begin; select lock.enqueue('update', 'late')")
		e.session(t).exec("select lock.enqueue('update', 'put back'), lock.enqueue('update', 'load 1'), lock.enqueue('update', 'load 2')")
		running, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		seen := map[string]int{}
		err := locks.WorkRequests(running, e.pool, "default", func(_ context.Context, tx pgx.Tx, batch []db.Request) error {
			seen[batch[0].EntityID]++
			switch {
			case seen["put back"] >= 2 && seen["late"] == 1:
				cancel()
			case batch[0].EntityID == "put back":
				return locks.RetryAfter(time.Millisecond, errors.New("later"))
			case seen["load"] == 0: // the first of the load
				seen["load"]++
				late.exec("commit")
			}
			// Every batch leaves one more behind the line.
			_, err := tx.Exec(ctx, "select lock.enqueue('update', 'load ' || gen_random_uuid())")
			return err
		}, quietRequests)
		if seen["put back"] < 2 || seen["late"] != 1 {
			t.Errorf("%d tries of what was put back, %d of what came late, among %d: %v", seen["put back"], seen["late"], len(seen), err)
		}
	})
	t.Run("a pool with a handler of notifications", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		config, err := pgxpool.ParseConfig(e.url)
		must(t, err)
		config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
		pool, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		t.Cleanup(pool.Close)
		handled := make(chan struct{})
		startRequestHandlers(t, pool, 1, func(context.Context, pgx.Tx, []db.Request) error { close(handled); return nil }, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour}})
		idle(t, e, 1) // it listens, and was notified by itself
		e.session(t).exec("select lock.enqueue('update', 'e')")
		select {
		case <-handled:
		case <-time.After(patience):
			t.Error("it was not woken")
		}
	})
	// A connection ends while the server is busy for it, and does not see that nobody wants the answer any more. pgx asks it to cancel that.
	const busy = "do $$ begin loop begin perform pg_advisory_lock(9, 9); exit; exception when query_canceled then null; end; end loop; end $$"
	for _, cut := range []struct {
		name, settled string
		handle        func(ctx context.Context, tx pgx.Tx, isBusy func() bool) error
	}{
		{"a lost connection", "complete 2", func(_ context.Context, tx pgx.Tx, isBusy func() bool) error {
			query, err := (&pgproto3.Query{String: busy}).Encode(nil)
			if err != nil {
				return err
			}
			connection := tx.Conn().PgConn().Conn()
			_, err = connection.Write(query)
			holdsWithin(patience, isBusy) // A connection that ends before may take the query along.
			return errors.Join(err, connection.Close())
		}},
		{"a handler's deadline", "error 1", func(ctx context.Context, tx pgx.Tx, _ func() bool) error {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(short, busy)
			return err
		}},
	} {
		t.Run("comes back for what "+cut.name+" held, however late the server notices", func(t *testing.T) {
			t.Parallel()
			onlyPostgreSQL(t, "its waits cannot be seen at once")
			e := open(t, advisory)
			s := e.session(t)
			s.exec("select pg_advisory_lock(9, 9)")
			s.exec("select lock.enqueue('update', 'e')")
			super := e.sessionAs(t, e.super)
			var calls atomic.Int32
			pool, queries := openLogged(t, e.url, 2)
			isBusy := func() (is bool) {
				const waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')"
				return e.admin.QueryRow(ctx, waits).Scan(&is) == nil && is
			}
			startRequestHandlers(t, pool, 1, func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
				if calls.Add(1) > 1 {
					return nil
				}
				return cut.handle(ctx, tx, isBusy)
			}, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour, OnError: func(context.Context, error) {}}})
			eventually(t, "the server is busy with what was lost", isBusy)
			idle(t, e, 1)
			eventually(t, "it has looked once more", func() bool { return queries.lookedListed("CaptureRequest", "savepoint", "rollback") })
			s.exec("select pg_advisory_unlock(9, 9)")
			var status string
			eventually(t, "it is settled", func() bool {
				status = get[string](super, "select request_status::text from lock.request")
				return status != "new"
			})
			if got := fmt.Sprint(status, " ", calls.Load()); got != cut.settled {
				t.Errorf("settled as %s, want %s", got, cut.settled)
			}
		})
	}
	t.Run("finishes the batch when its context ends, and starts no other", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		s.exec("select lock.enqueue('update', 'e')")
		s.exec("select lock.enqueue('update', 'f')")
		inner, cancel := context.WithCancel(ctx)
		err := locks.WorkRequests(inner, e.pool, "default", func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			cancel()
			_, err := tx.Exec(ctx, "select 1")
			return err
		}, nil)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("WorkRequests: %v", err)
		}
		answers(e.sessionAs(t, e.super), "complete new", "select string_agg(request_status::text, ' ' order by request_id) from lock.request")
	})
	// settled runs a worker until nothing is outstanding, and says how it was settled.
	settled := func(t *testing.T, e *env, handle func(context.Context, pgx.Tx, []db.Request) error, opts *locks.RequestOptions) string {
		t.Helper()
		opts.Poll = time.Hour
		startRequestHandlers(t, e.pool, 1, handle, opts)
		s := e.sessionAs(t, e.super)
		eventually(t, "all is settled", func() bool { return get[int64](s, "select count(*) from lock.request where settled_at is null") == 0 })
		return requestRows(s, "select entity_id, request_status::text, tries, coalesce(message, '-') from lock.request order by request_id")
	}
	t.Run("what a handler says of a conflict counts", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.enqueue('update', 'never'), lock.enqueue('update', 'later')")
		got := settled(t, e, func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
			conflict := &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "no"}
			if batch[0].EntityID == "never" {
				return locks.Permanent(conflict)
			}
			return locks.RetryAfter(time.Millisecond, conflict)
		}, &locks.RequestOptions{MaxTries: 2, WorkerOptions: locks.WorkerOptions{OnError: quietRequests.OnError}})
		if want := "never error 1 ERROR: no (SQLSTATE 40001)\nlater error 2 retry in 1ms: ERROR: no (SQLSTATE 40001)"; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("a handler may do with its batch what it likes", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.enqueue('update', 'e')")
		told := make(chan locks.RequestResult, 100)
		got := settled(t, e, func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			clear(batch)
			_, err := tx.Exec(ctx, "rollback")
			return err
		}, &locks.RequestOptions{Settled: func(_ context.Context, result locks.RequestResult) { told <- result }})
		if want := "e error 1 the closure ended the transaction itself"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if result := <-told; result.Batch[0].EntityID != "e" || result.Outcome != locks.OutcomeDead {
			t.Errorf("told of %+v", result)
		}
	})
	t.Run("an error that panics when it is looked at", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.enqueue('update', 'e')")
		got := settled(t, e, func(context.Context, pgx.Tx, []db.Request) error { return (*blankError)(nil) }, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{OnError: quietRequests.OnError}})
		if want := "e error 1 panic: runtime error: invalid memory address or nil pointer dereference"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
	t.Run("a pause as long as can be", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).exec("select lock.enqueue('update', 'e')")
		startRequestHandlers(t, e.pool, 1, func(context.Context, pgx.Tx, []db.Request) error {
			return locks.RetryAfter(math.MaxInt64, errors.New("never again"))
		}, quietRequests)
		s := e.sessionAs(t, e.super)
		eventually(t, "it is put back", func() bool {
			return get[bool](s, "select coalesce(available_at > clock_timestamp() + interval '99 years', false) from lock.request")
		})
	})
	t.Run("cuts the batch off when the grace period is over, and counts nothing", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		s.exec("create table effect (n int); grant insert on effect to locks_app")
		s.exec("select lock.enqueue('update', 'e')")
		inner, cancel := context.WithCancel(ctx)
		err := locks.WorkRequests(inner, e.pool, "", func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			if _, err := tx.Exec(ctx, "insert into effect values (1)"); err != nil {
				return err
			}
			cancel()
			_, err := tx.Exec(ctx, "select pg_sleep(1000)")
			return locks.Permanent(err)
		}, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Grace: time.Millisecond, OnError: func(context.Context, error) {}}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("WorkRequests: %v", err)
		}
		answers(s, "new 0 0", "select concat_ws(' ', request_status, tries, (select count(*) from effect)) from lock.request")
	})
	t.Run("finds before the next poll what a worker held that was cut off", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, requestLog)
		must(t, err)
		startRequestHandlers(t, e.pool, 1, requestHandle, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour}})
		idle(t, e, 1)
		s, other := e.sessionAs(t, e.super), e.sessionAs(t, e.super)
		open := get[[]int64](s, "select array(select lock.open_transactions())")
		within(t, perseverance, "nobody's transaction may have missed it", func() bool {
			return get[int64](s, "select count(*) from lock.open_transactions($1)", open) == 0
		})
		other.exec("begin")
		other.exec("select lock_internal.try_entity('default', 'e')") // as one that captures, and begins after the worker has gone to sleep
		s.exec("select lock.enqueue('create', 'e')")
		if holdsWithin(500*time.Millisecond, func() bool { return get[int64](s, "select count(*) from worked") > 0 }) {
			t.Error("two have it")
		}
		s.exec("select pg_terminate_backend($1)", other.pid)
		eventually(t, "it is settled", func() bool { return get[int64](s, "select count(*) from worked") == 1 })
	})
	t.Run("finds it soon when it was notified just before a poll, too", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, requestLog)
		must(t, err)
		const poll = 8 * time.Second
		startRequestHandlers(t, e.pool, 1, requestHandle, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: poll}})
		idle(t, e, 1)
		s, other := e.sessionAs(t, e.super), e.sessionAs(t, e.super)
		listed := func() time.Time { // by lock.start_idling
			return get[time.Time](s, "select max(until) from lock.idle_worker")
		}
		first := listed()
		within(t, perseverance, "the poll is near", func() bool {
			return get[bool](s, "select $1::timestamptz - clock_timestamp() < $2::interval", first, poll+time.Second+500*time.Millisecond)
		})
		other.exec("begin")
		other.exec("select lock_internal.try_entity('default', 'e')")
		s.exec("select lock.enqueue('create', 'e')")
		within(t, perseverance, "it is listed anew", func() bool { return listed().After(first) })
		began := time.Now()
		if holdsWithin(300*time.Millisecond, func() bool { return get[int64](s, "select count(*) from worked") > 0 }) { // nor by the look behind the list
			t.Error("two have it")
		}
		s.exec("select pg_terminate_backend($1)", other.pid)
		within(t, perseverance, "it is settled", func() bool { return get[int64](s, "select count(*) from worked") == 1 })
		if late := time.Since(began); late > poll-2*time.Second {
			t.Errorf("settled after %v", late)
		}
	})
	t.Run("is not held up by what is never answered", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.url)
		s := e.sessionAs(t, e.super)
		s.exec("select lock.enqueue('update', 'e')")
		var calls atomic.Int64
		hung := make(chan struct{})
		stop := startRequestHandlers(t, openPool(t, b.address, 4), 1, func(ctx context.Context, tx pgx.Tx, _ []db.Request) error {
			switch calls.Add(1) {
			case 1: // Nobody hears how it is settled, and the server, who sees a connection that is idle, keeps the entity.
				b.swallow(false)
				go holdsWithin(patience, func() bool {
					_, err := e.admin.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'locks_app' and datname = current_database() and state = 'idle in transaction' and state_change < clock_timestamp() - interval '2 s'")
					return err != nil
				})
			case 3:
				b.swallow(true)
				close(hung)
				_, err := tx.Exec(ctx, "select 1")
				return err
			}
			return nil
		}, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{CallTimeout: time.Second, Grace: time.Second, Poll: time.Second, OnError: func(context.Context, error) {}}})
		eventually(t, "it is settled", func() bool {
			return get[int64](s, "select count(*) from lock.request where request_status = 'complete'") == 1
		})
		s.exec("select lock.enqueue('update', 'e')")
		select {
		case <-hung:
		case <-time.After(patience):
			t.Fatal("it does not go on")
		}
		stop()
	})
	t.Run("leaves no goroutine and no connection behind, however it ends", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, requestLog)
		must(t, err)
		pool := openPool(t, e.url, 2)
		goroutines := func() int {
			var profile strings.Builder
			must(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
			return strings.Count(profile.String(), `"test":"`+t.Name()+`"`)
		}
		connections := func() (n int) {
			must(t, e.admin.QueryRow(ctx, "select count(*) from pg_stat_activity where datname = current_database() and usename = 'locks_app'").Scan(&n))
			return n
		}
		work := func(handle func(ctx context.Context, tx pgx.Tx, batch []db.Request) error, until func(cancel func())) {
			t.Helper()
			inner, cancel := context.WithCancel(ctx)
			defer cancel()
			var wg sync.WaitGroup
			pprof.Do(inner, pprof.Labels("test", t.Name()), func(inner context.Context) {
				for range 3 {
					wg.Go(func() { locks.WorkRequests(inner, pool, "", handle, quietRequests) })
				}
			})
			until(func() {
				// Not at any moment: a back end that the handler ended is not yet followed by another.
				eventually(t, "the measure sees them at work", func() bool { return goroutines() >= 2 && connections() >= 2 })
				cancel()
			})
			wg.Wait()
			eventually(t, "the goroutines are gone", func() bool { return goroutines() == 0 })
			if n := pool.Stat().AcquiredConns(); n != 0 {
				t.Errorf("%d connections of the pool are still in use", n)
			}
			eventually(t, "only the pool's connections are left", func() bool { return connections() == int(pool.Stat().TotalConns()) })
			idle(t, e, 0)
		}
		work(requestHandle, func(cancel func()) { idle(t, e, 3); cancel() })
		_, err = e.admin.Exec(ctx, "select lock.enqueue('create', n::text) from generate_series(1, 1000) n")
		must(t, err)
		var killed sync.Map
		work(func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			if _, again := killed.LoadOrStore(batch[0].RequestID, true); !again && batch[0].RequestID%3 == 0 {
				tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			}
			return requestHandle(ctx, tx, batch)
		}, func(cancel func()) {
			eventually(t, "some are settled", func() bool {
				var n int
				must(t, e.admin.QueryRow(ctx, "select count(*) from worked").Scan(&n))
				return n > 50
			})
			cancel()
		})
		_, err = e.admin.Exec(ctx, "revoke execute on function lock.capture_request(uuid, bigint, text, integer) from locks_app")
		must(t, err)
		work(requestHandle, func(func()) {}) // They end by themselves.
	})
	t.Run("works without prepared statements, as behind a pooler", func(t *testing.T) {
		t.Parallel()
		for _, mode := range []string{"exec", "simple_protocol", "cache_describe"} {
			e := open(t, advisory)
			_, err := e.admin.Exec(ctx, requestLog)
			must(t, err)
			pool := openPool(t, e.url+"&default_query_exec_mode="+mode, 4)
			startRequestWork(t, pool, 1, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Second, OnError: func(_ context.Context, err error) { t.Errorf("%s: %v", mode, err) }}})
			q := db.New(pool)
			_, err = q.Enqueue(ctx, db.EnqueueParams{RequestType: db.RequestCreate, EntityID: "e", QueueID: "default", Payload: json.RawMessage(`{"a": 1}`)})
			must(t, err)
			if verdict := requestVerdict(t, e.admin); verdict != "" {
				t.Errorf("%s: %s", mode, verdict)
			}
			history, err := q.RequestHistory(ctx, db.RequestHistoryParams{EntityID: "e", QueueID: "default", Max: 10})
			must(t, err)
			if len(history) != 1 || string(history[0].Payload) != `{"a": 1}` || history[0].SettledAt == nil {
				t.Errorf("%s: %+v", mode, history)
			}
		}
	})
	t.Run("ends though others use up the pool", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool := openPool(t, e.url, 1)
		stop := startRequestWork(t, pool, 1, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Hour, OnError: func(_ context.Context, err error) { t.Error(err) }}})
		idle(t, e, 1)
		only, err := pool.Acquire(ctx)
		must(t, err)
		t.Cleanup(only.Release)
		stop()
	})
	t.Run("ends with an error that will not go away", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		owner := e.sessionAs(t, e.owner)
		owner.exec("revoke execute on function lock.capture_request(uuid, bigint, text, integer) from locks_app")
		wantCode(t, locks.WorkRequests(ctx, e.pool, "", requestHandle, nil), "42501", "Work without rights")
		wantCode(t, locks.WorkRequests(ctx, openPool(t, e.owner, 4), strings.Repeat("q", 1025), requestHandle, nil), "22023", "WorkRequests on a queue id that is too long")
	})
}
