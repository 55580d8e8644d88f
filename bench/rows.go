//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A locker locks a key, holds it for no time, and lets it go.
type locker func(ctx context.Context, key int64, share bool) error

// A lockerEntry makes a locker for so many clients; slow: through a network of a millisecond.
type lockerEntry struct {
	name, lacks string
	open        func(ctx context.Context, l *lab, clients int, slow bool) (locker, func(), error)
}

func (l *lab) lockers() []lockerEntry {
	onPool := func(lock func(ctx context.Context, pool *pgxpool.Pool, key int64, share bool) error) func(context.Context, *lab, int, bool) (locker, func(), error) {
		return func(ctx context.Context, l *lab, clients int, slow bool) (locker, func(), error) {
			url := l.url("locks")
			if slow {
				address := fmt.Sprintf("127.0.0.1:%d", l.server.Port)
				proxy, err := l.delayed(address)
				if err != nil {
					return nil, nil, err
				}
				url = strings.Replace(url, address, proxy, 1)
			}
			pool, err := l.pool(ctx, url, clients)
			if err != nil {
				return nil, nil, err
			}
			return func(ctx context.Context, key int64, share bool) error { return lock(ctx, pool, key, share) }, pool.Close, nil
		}
	}
	onRedis := func(aof bool) func(context.Context, *lab, int, bool) (locker, func(), error) {
		return func(ctx context.Context, l *lab, clients int, slow bool) (_ locker, _ func(), err error) {
			address := l.redis
			if aof {
				address = l.redisAOF
			}
			if slow {
				if address, err = l.delayed(address); err != nil {
					return nil, nil, err
				}
			}
			lock, closing := redsyncLock(address, clients)
			return func(ctx context.Context, key int64, _ bool) error { return lock(ctx, key) }, closing, nil
		}
	}
	advisory := func(share bool) string {
		if share {
			return "select pg_advisory_xact_lock_shared("
		}
		return "select pg_advisory_xact_lock("
	}
	all := []lockerEntry{
		{"locks.Exclusive", "-", onPool(func(ctx context.Context, pool *pgxpool.Pool, key int64, share bool) error {
			if share {
				return shared(ctx, pool, key)
			}
			return exclusive(ctx, pool, key)
		})},
		{"begin and advisory lock as one text, commit", "numbers that other programs may use, too; no names; no retry", onPool(
			func(ctx context.Context, pool *pgxpool.Pool, key int64, share bool) error {
				return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
					if _, err := conn.Conn().PgConn().Exec(ctx, fmt.Sprint("begin; ", advisory(share), key, ")")).ReadAll(); err != nil {
						return err
					}
					_, err := conn.Conn().PgConn().Exec(ctx, "commit").ReadAll()
					return err
				})
			})},
		{"begin, advisory lock, commit", "numbers that other programs may use, too; no names; no retry", onPool(
			func(ctx context.Context, pool *pgxpool.Pool, key int64, share bool) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, advisory(share)+"$1)", key)
					return err
				})
			})},
	}
	if l.redis != "" {
		lacks := "the lock ends by time while its holder still works; what is done under it is not refused later; no fairness; no sharing"
		all = append(all,
			lockerEntry{"redsync, Redis without AOF", lacks + "; a restart of Redis forgets locks", onRedis(false)},
			lockerEntry{"redsync, Redis with AOF every second", lacks + "; a crash of Redis forgets a second of locks", onRedis(true)},
		)
	}
	return all
}

// lockEntries measures those of the lockers whose name contains one of the words.
func (l *lab) lockEntries(slow bool, words []string, measure func(ctx context.Context, column int, open func(clients int) (locker, error)) ([]float64, error)) (entries []entry) {
	for _, e := range l.lockers() {
		if !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(e.name, word) }) {
			continue
		}
		entries = append(entries, entry{name: e.name, lacks: e.lacks, run: func(ctx context.Context, column int) ([]float64, error) {
			var closing func()
			values, err := measure(ctx, column, func(clients int) (lock locker, err error) {
				lock, closing, err = e.open(ctx, l, clients, slow)
				return lock, err
			})
			if closing != nil {
				closing()
			}
			return values, err
		}})
	}
	return entries
}

// calls measures a call against the bare statements that it is made of, one connection a client, 8 clients, many ids.
func (l *lab) calls(id, title string, forms []string, ours, plain []string, setup map[string][]string) row {
	r := row{ID: id, Title: title, About: fmt.Sprintf("8 clients, %s ids, prepared statements.", grouped(float64(idCount()))), Columns: columns("/s", forms...)}
	for _, side := range []struct {
		database, name, lacks string
		sql                   []string
	}{
		{"locks", "locks", "-", ours},
		{"plain", "the bare statements", "no checks of what is given; and whatever the page of the kind says", plain},
	} {
		r.entries = append(r.entries, entry{
			name: side.name, lacks: side.lacks,
			prepare: func(ctx context.Context) error {
				return l.exec(ctx, side.database, append(setup[side.database], "vacuum analyze", "checkpoint")...)
			},
			run: func(ctx context.Context, column int) ([]float64, error) {
				statements := strings.Split(side.sql[column], "; ")
				return l.each(ctx, l.url(side.database), 8, func(ctx context.Context, conn *pgx.Conn, client int) error {
					// Every client has ids of its own.
					given := []any{fmt.Sprint("id", rand.IntN(idCount()/8)*8+client)}
					for i, sql := range statements {
						if i < len(statements)-1 && strings.Contains(sql, "returning") || strings.Contains(sql, "acquire_lease") {
							var token int64
							if err := conn.QueryRow(ctx, sql, given...).Scan(&token); err != nil {
								return err
							}
							given = append(given, token)
						} else if _, err := conn.Exec(ctx, sql, given...); err != nil {
							return err
						}
					}
					return nil
				})
			},
		})
	}
	return r
}

// idCount is a multiple of 8.
func idCount() int { return max(100, scaled(100_000)/8) * 8 }

// having returns those of the queues that there are and that can do it.
func (l *lab) having(can func(q *queue) bool, ids ...string) (queues []*queue) {
	for _, id := range ids {
		if q := l.queues[id]; q != nil && (can == nil || can(q)) {
			queues = append(queues, q)
		}
	}
	return queues
}

var everyQueue = []string{"locks", "plain", "pgmq delete", "pgmq archive", "river", "graphile"}

func (l *lab) rows(growthSizes []int) []row {
	someKey := func() int64 { return rand.Int64N(1 << 40) }
	keys := func(r row, clients []int, slow bool, words ...string) row {
		r.entries = l.lockEntries(slow, words, func(ctx context.Context, column int, open func(int) (locker, error)) ([]float64, error) {
			lock, err := open(clients[column])
			if err != nil {
				return nil, err
			}
			return perSecond(drive(ctx, clients[column], func(ctx context.Context, _ int) error { return lock(ctx, someKey(), false) }))
		})
		return r
	}
	of := func(r row, queues []*queue, run func(ctx context.Context, q *queue, column int) ([]float64, error)) row {
		for _, q := range queues {
			r.entries = append(r.entries, q.entry(func(ctx context.Context, column int) ([]float64, error) { return run(ctx, q, column) }))
		}
		return r
	}
	steps := func(ids ...string) []*queue { return l.having(func(q *queue) bool { return q.step != nil }, ids...) }
	seconds := duration.Seconds()
	ids := fmt.Sprintf("from generate_series(0, %d) n", idCount()-1)

	rows := []row{
		keys(row{ID: "exclusive", Title: "Exclusive locks, distinct keys", About: "Lock, do nothing, let go.", Columns: columns("/s", "1 client", "8 clients", "32 clients")},
			[]int{1, 8, 32}, false, "locks", "one text", "redsync"),
		{ID: "fairness", Title: "One key, 8 clients", whole: true, About: "How often the slowest client got the key for each time that the fastest did.",
			Columns: []column{{Name: "slowest to fastest", Unit: "ratio"}, {Name: "grants", Unit: "/s"}},
			entries: l.lockEntries(false, []string{"locks", "one text", "without AOF"}, func(ctx context.Context, _ int, open func(int) (locker, error)) ([]float64, error) {
				lock, err := open(8)
				if err != nil {
					return nil, err
				}
				done, took, err := drive(ctx, 8, func(ctx context.Context, _ int) error { return lock(ctx, 1, false) })
				sum, err := perSecond(done, took, err)
				return []float64{slices.Min(done) / max(1, slices.Max(done)), sum[0]}, err
			})},
		{ID: "mixed", Title: "Shared and exclusive mixed", About: "64 clients on 10 keys; every tenth lock is exclusive.", Columns: columns("/s", "64 clients"),
			entries: l.lockEntries(false, []string{"locks", "one text"}, func(ctx context.Context, _ int, open func(int) (locker, error)) ([]float64, error) {
				lock, err := open(64)
				if err != nil {
					return nil, err
				}
				return perSecond(drive(ctx, 64, func(ctx context.Context, _ int) error { return lock(ctx, rand.Int64N(10), rand.IntN(10) > 0) }))
			})},
		keys(row{ID: "network", Title: "Exclusive locks, a network of 1 ms", About: "Every answer of the server takes a millisecond more.", Columns: columns("/s", "1 client", "8 clients")},
			[]int{1, 8}, true, "locks", "advisory", "without AOF"),

		l.calls("mutex", "Mutex", []string{"acquire and release", "denied"},
			[]string{"select lock.acquire_mutex($1); select lock.release_mutex($1)", "select lock.acquire_mutex('held ' || $1::text)"},
			[]string{"update flag set acquired = true where id = $1 and not acquired; update flag set acquired = false where id = $1 and acquired", "select acquired from flag where id = 'held ' || $1::text"},
			map[string][]string{
				"locks": {"insert into lock.mutex (task_id) select 'id' || n " + ids,
					"insert into lock.mutex (task_id, acquired, owner, acquired_at) select 'held id' || n, true, 'somebody', now() " + ids},
				"plain": {"create table flag (id text primary key, acquired boolean not null) with (fillfactor = 80)",
					"insert into flag select 'id' || n, false " + ids, "insert into flag select 'held id' || n, true " + ids},
			}),
		l.calls("throttle", "Throttle", []string{"granted", "denied"},
			[]string{"select lock.lock_throttled_resource($1, 'bench')", "select lock.lock_throttled_resource('held ' || $1::text, 'bench')"},
			[]string{`update throttled set ts = statement_timestamp(), details = 'bench' where id = (
				select id from throttled where id = $1 and ts + timeout < statement_timestamp() for update skip locked)`, "select ts from throttled where id = 'held ' || $1::text"},
			map[string][]string{
				"locks": {"insert into lock.throttled_resource (resource_id, throttle_interval) select 'id' || n, '1 microsecond' " + ids,
					"insert into lock.throttled_resource (resource_id, throttle_interval, last_locked, last_locker_details) select 'held id' || n, '1 year', now(), 'bench' " + ids},
				"plain": {`create table throttled (id text primary key, timeout interval not null constraint positive_delays_only check (timeout > '00:00:00'),
					ts timestamptz not null default '-infinity', details text not null default '' constraint empty_rules check (
						(ts = '-infinity' and details = '') or (ts != '-infinity' and length(trim(details)) > 0))) with (fillfactor = 80)`,
					"insert into throttled (id, timeout) select 'id' || n, '1 microsecond' " + ids, "insert into throttled select 'held id' || n, '1 year', now(), 'bench' " + ids},
			}),
		l.limits(ids),
		l.calls("lease", "Lease", []string{"acquire and release", "assert_lease"},
			[]string{"select token from lock.acquire_lease($1, 'bench', '15 seconds'); select lock.release_lease($1, $2)", "select lock.assert_lease('held ' || $1::text, 1)"},
			[]string{"update lease set token = token + 1, expires_at = now() where name = $1 returning token; update lease set expires_at = null where name = $1 and token = $2",
				"select expires_at from lease where name = 'held ' || $1::text for share"},
			map[string][]string{
				"locks": {"insert into lock.lease_name (name, token, granted_at) select 'id' || n, 0, now() " + ids,
					"insert into lock.lease_name (name, token, granted_at) select 'held id' || n, 1, now() " + ids,
					"insert into lock.lease select 'held id' || n, 1, 'bench', now(), now(), now() + interval '1 day' " + ids},
				"plain": {"create table lease (name text primary key, token bigint not null, expires_at timestamptz)",
					"insert into lease select 'id' || n, 0, now() " + ids, "insert into lease select 'held id' || n, 1, now() " + ids},
			}),

		of(row{ID: "capture", Title: "Tasks captured and settled", About: "No-op tasks, 8 connections.", Columns: columns("/s", "one by one", "batches of 10", "batches of 100")},
			steps("locks", "endless", "plain", "pgmq delete", "pgmq archive", "pgmq two calls"),
			func(ctx context.Context, q *queue, column int) ([]float64, error) {
				size := []int{1, 10, 100}[column]
				if err := l.refill(ctx, q, int([]float64{8_000, 40_000, 100_000}[column]*seconds)); err != nil {
					return nil, err
				}
				done, err := l.drain(ctx, q, l.url(q.database), 8, size, *duration)
				return []float64{between(done, 0, 1)}, err
			}),
		of(row{ID: "work", Title: "Tasks by everybody's own workers", About: "A backlog of no-op tasks, with everybody's own batches.", Columns: columns("/s", "settled")},
			l.having(nil, "locks", "river", "graphile"),
			func(ctx context.Context, q *queue, _ int) ([]float64, error) {
				n := int(50_000 * seconds)
				if err := l.refill(ctx, q, n); err != nil {
					return nil, err
				}
				return l.workOff(ctx, q, n)
			}),
		of(row{ID: "network-task", Title: "Tasks, a network of 1 ms", About: "Every answer of the server takes a millisecond more; 8 connections.", Columns: columns("/s", "one by one", "batches of 10")},
			steps("locks", "plain", "pgmq delete", "pgmq two calls"),
			func(ctx context.Context, q *queue, column int) ([]float64, error) {
				if err := l.refill(ctx, q, int([]float64{5_000, 40_000}[column]*seconds)); err != nil {
					return nil, err
				}
				address := fmt.Sprintf("127.0.0.1:%d", l.server.Port)
				proxy, err := l.delayed(address)
				if err != nil {
					return nil, err
				}
				done, err := l.drain(ctx, q, strings.Replace(l.url(q.database), address, proxy, 1), 8, []int{1, 10}[column], *duration)
				return []float64{between(done, 0, 1)}, err
			}),
		of(row{ID: "wal", Title: "WAL a task", About: "In batches of 10, or everybody's own. No full pages are in it.", rounds: 3, whole: true,
			Columns: []column{{"captured and settled", "B", true}, {"created, too", "B", true}}},
			l.having(nil, slices.Insert(slices.Clone(everyQueue), 1, "endless")...),
			func(ctx context.Context, q *queue, _ int) ([]float64, error) {
				n := max(2000, int(7_000*seconds))
				if err := l.refill(ctx, q, 0); err != nil {
					return nil, err
				}
				const at = "select (pg_current_wal_insert_lsn() - '0/0')::float8"
				before, err := get[float64](ctx, l, "postgres", at)
				if err != nil {
					return nil, err
				}
				// Nothing but the tasks: no vacuum, and no checkpoint, after which full pages would be written.
				conn, err := pgx.Connect(ctx, l.url(q.database))
				if err != nil {
					return nil, err
				}
				_, err = conn.Exec(ctx, q.fill, n)
				conn.Close(ctx)
				if err != nil {
					return nil, err
				}
				created, err := get[float64](ctx, l, "postgres", at)
				if err != nil {
					return nil, err
				}
				if q.step != nil {
					var done []settled
					const clients = 8 // Each settles a task before its clock starts.
					if done, err = l.drain(ctx, q, l.url(q.database), clients, 10, time.Minute); err == nil && count(done) != n-clients {
						err = fmt.Errorf("%d of %d tasks were settled", clients+count(done), n)
					}
				} else {
					_, err = l.workOff(ctx, q, n)
				}
				if err != nil {
					return nil, err
				}
				after, err := get[float64](ctx, l, "postgres", at)
				return []float64{(after - created) / float64(n), (after - before) / float64(n)}, err
			}),
		of(row{ID: "create", Title: "Tasks created, workers busy", About: "32 clients create one task at a time; two workers have their hands full.", Columns: columns("/s", "32 clients")},
			l.having(nil, "locks", "quiet", "plain", "pgmq delete", "river"),
			func(ctx context.Context, q *queue, _ int) ([]float64, error) { return l.produce(ctx, q, 32) }),
		of(row{ID: "start", Title: "From creation to start", About: "One idle worker. The median, beyond what the creation itself takes.", whole: true,
			Columns: []column{{"to the start", "ms", true}, {"the creation itself", "ms", true}}},
			l.having(nil, "locks", "notify", "pgmq delete", "river", "graphile"),
			func(ctx context.Context, q *queue, _ int) ([]float64, error) { return l.toStart(ctx, q) }),
		of(row{ID: "snapshot", Title: "A backlog under an old snapshot", About: fmt.Sprintf("%s tasks in batches of 10, or as many as a minute suffices for, while a transaction keeps a snapshot from before.", grouped(float64(scaled(200_000)))),
			whole: true, rounds: 1, Columns: []column{{Name: "first tenth", Unit: "/s"}, {Name: "last tenth", Unit: "/s"}, {Name: "last to first", Unit: "ratio"}}},
			steps("locks", "plain", "pgmq archive"),
			func(ctx context.Context, q *queue, _ int) ([]float64, error) {
				if err := l.refill(ctx, q, scaled(200_000)); err != nil {
					return nil, err
				}
				release, err := l.holdSnapshot(ctx, q.database)
				if err != nil {
					return nil, err
				}
				defer release()
				done, err := l.drain(ctx, q, l.url(q.database), 8, 10, time.Minute)
				if err != nil {
					return nil, err
				}
				first, last := between(done, 0, 0.1), between(done, 0.9, 1)
				return []float64{first, last, last / first}, nil
			}),
		l.requestRow(),
		l.delayedRow(),
		of(row{ID: "idle", Title: "100 idle workers", About: "While there is nothing to do. Who polls within one statement needs few transactions, and processor time all the same.", whole: true, rounds: 1,
			Columns: []column{{"transactions", "/s", true}, {"the server's processor time", "ms/s", true}}},
			l.having(nil, "locks", "plain", "river", "graphile", "pgmq delete"),
			func(ctx context.Context, q *queue, _ int) ([]float64, error) { return l.idle(ctx, q, 100) }),
	}

	grown := row{ID: "growth", Title: "Growth", About: "Batches of 10 beside so many finished tasks.", whole: true, rounds: 1, Columns: columns("/s", "none finished")}
	for _, size := range growthSizes {
		grown.Columns = append(grown.Columns, columns("/s", grouped(float64(size))+" finished")...)
	}
	rows = append(rows, of(grown, l.having(func(q *queue) bool { return q.step != nil }, "locks", "plain", "pgmq archive"),
		func(ctx context.Context, q *queue, _ int) ([]float64, error) { return l.grow(ctx, q, growthSizes) }))

	loaded := []column{{Name: "started", Unit: "/s"}, {"p99 to the start", "ms", true}, {"tables in the end", "MB", true}}
	all := l.having(func(q *queue) bool { return q.work != nil }, "locks", "notify", "pgmq archive", "river", "graphile")
	lasts := 20 * *duration
	if *duration >= time.Second {
		lasts *= 5
	}
	rows = append(rows, of(row{ID: "held", Title: "A held snapshot", whole: true, rounds: 1, Columns: loaded,
		About: fmt.Sprintf("%d tasks a second for %s, autovacuum on, under a snapshot from before. The last fifth counts.", *rate, lasts)},
		all, func(ctx context.Context, q *queue, _ int) ([]float64, error) {
			release, err := l.holdSnapshot(ctx, q.database)
			if err != nil {
				return nil, err
			}
			defer release()
			return l.load(ctx, q, lasts, *rate)
		}))
	if *steady > 0 {
		each := max(1, *rate/10)
		rows = append(rows, of(row{ID: "steady", Title: "Steady load", whole: true, together: true, rounds: 1, Columns: loaded,
			About: fmt.Sprintf("%d tasks a second for each of them, all at the same time, for %s, autovacuum on. The last fifth counts. Who keeps finished tasks has larger tables.", each, *steady)},
			all, func(ctx context.Context, q *queue, _ int) ([]float64, error) { return l.load(ctx, q, *steady, each) }))
	}
	return rows
}

// holdSnapshot opens a transaction that keeps the present from being cleaned up.
func (l *lab) holdSnapshot(ctx context.Context, database string) (release func(), err error) {
	conn, err := pgx.Connect(ctx, l.url(database))
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{"begin isolation level repeatable read", "select 1"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, errors.Join(err, conn.Close(ctx))
		}
	}
	return func() { conn.Close(context.WithoutCancel(ctx)) }, nil
}

// grow is tasks a second beside no finished ones, and beside ever more of them.
func (l *lab) grow(ctx context.Context, q *queue, sizes []int) (rates []float64, err error) {
	if err := l.refill(ctx, q, 0); err != nil {
		return nil, err
	}
	have := 0
	for _, size := range append([]int{0}, sizes...) {
		if err := l.add(ctx, q, q.finished, max(0, size-have)); err != nil {
			return nil, err
		}
		have = max(have, size)
		var values []float64
		for range min(*rounds, 3) {
			if err := l.add(ctx, q, q.fill, int(40_000*duration.Seconds())); err != nil {
				return nil, err
			}
			done, err := l.drain(ctx, q, l.url(q.database), 8, 10, time.Minute)
			if err != nil {
				return nil, err
			}
			values = append(values, between(done, 0, 1))
		}
		rate, _ := median(values)
		rates = append(rates, rate)
	}
	return rates, l.exec(ctx, q.database, q.empty)
}

// requestRow has nobody else in it: no neighbour keeps an entity's requests in order and apart.
func (l *lab) requestRow() row {
	r := row{ID: "request", Title: "Requests settled", About: "No-op requests, by locks' own workers. No neighbour keeps an entity's requests in order."}
	for _, each := range []string{"one an entity", "50 an entity"} {
		for _, number := range []string{"1 worker", "4 workers", "16 workers"} {
			r.Columns = append(r.Columns, column{Name: number + ", " + each, Unit: "/s"})
		}
	}
	r.entries = []entry{{name: "locks", lacks: "-", run: func(ctx context.Context, column int) ([]float64, error) {
		number, each, n := []int{1, 4, 16}[column%3], 1, 6_000
		if column >= 3 {
			each, n = 50, 60_000
		}
		if err := l.fillRequests(ctx, int(float64(n)*duration.Seconds()), each, 0); err != nil {
			return nil, err
		}
		return l.settleRequests(ctx, number)
	}}}
	return r
}

func (l *lab) delayedRow() row {
	later := scaled(100_000)
	return row{ID: "delayed", Title: "Requests behind delayed entities", About: "4 workers; what is in front is put back until tomorrow, each of an entity of its own.",
		Columns: columns("/s", "none delayed", grouped(float64(later))+" delayed"),
		entries: []entry{{name: "locks", lacks: "-", run: func(ctx context.Context, column int) ([]float64, error) {
			if err := l.fillRequests(ctx, int(6_000*duration.Seconds()), 1, []int{0, later}[column]); err != nil {
				return nil, err
			}
			return l.settleRequests(ctx, 4)
		}}}}
}

// settleRequests is requests settled a second, from when every worker has its first batch, until all are or the duration has passed.
func (l *lab) settleRequests(ctx context.Context, number int) ([]float64, error) {
	total, err := get[int64](ctx, l, "locks", "select count(*) from lock.request where available_at is null")
	if err != nil {
		return nil, err
	}
	pool, err := l.pool(ctx, l.url("locks"), number+1) // One listens.
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	working, stop := context.WithTimeout(ctx, time.Minute+*duration)
	defer stop()
	var here, begun, handled, last atomic.Int64
	var began time.Time
	everybody := make(chan struct{})
	err = requests(working, pool, number, func(n int) {
		begun.Add(int64(n))
		if here.Add(1) == int64(number) {
			began = time.Now()
			time.AfterFunc(*duration, stop)
			close(everybody)
		}
		select {
		case <-everybody:
		case <-working.Done():
		}
	}, func(n int) {
		last.Store(int64(time.Since(began)))
		if handled.Add(int64(n))+begun.Load() >= total {
			stop()
		}
	})
	if working.Err() == nil || handled.Load() == 0 {
		return nil, fmt.Errorf("requests: %d of %d settled: %w", handled.Load(), total, err)
	}
	return []float64{float64(handled.Load()) / time.Duration(last.Load()).Seconds()}, nil
}
