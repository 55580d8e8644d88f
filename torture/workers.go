//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// workerKind runs locks.WorkRequests with handlers that misbehave: they end their context in a query, keep their transaction, end
// their goroutine or the transaction, and let their entity get one update after the other. So does Settled.
var workerKind = &kind{name: "worker", weight: 1, round: workerRound, check: checkWorkers, final: finalWorkers}

func oddQueueOf(window int) string { return "odd " + queueOf(window) }

const workerRuns = 200 * time.Millisecond

// A workerRun is one call of WorkRequests. Handler and hooks take turns, so nothing of it is locked.
type workerRun struct {
	*session
	pool    *pgxpool.Pool
	window  int
	called  int64             // when no capture had begun that is not over
	handled map[int64]pending // "+batch" of those who said that all was well, by number
	asked   map[int64]pending // "+odd" of those who did not
	told    map[int64]bool    // of which Settled was told
	gone    map[int64][]int64 // batches that were told and whose transaction is gone, by their first request
	taken   map[int64][]int64 // what handlers had that took it away, by number
	kept    pgx.Tx            // of a handler that has returned
	trouble bool              // the loop has met some: who was told what is in doubt
}

func workerRound(s *session) error {
	window := windowOf(s.start, now())
	if s.dice.IntN(4) > 0 {
		id, window := s.slot("x", 3)
		return s.enqueueOdd(id, window)
	}
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return err
	}
	if config.ConnConfig, err = configFor(s.url, "torture_app", s.database); err != nil {
		return err
	}
	config.ConnConfig.DialFunc = locks.Dial
	config.ConnConfig.ConnectTimeout = 3 * time.Second
	config.MaxConns = 1 // the loop's, until Settled is called
	pool, err := pgxpool.NewWithConfig(s.ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	r := &workerRun{
		session: s, pool: pool, window: window, called: now(), handled: map[int64]pending{}, asked: map[int64]pending{},
		told: map[int64]bool{}, gone: map[int64][]int64{}, taken: map[int64][]int64{},
	}
	p := s.call(window, "worker", "run", "-")
	ctx, cancel := context.WithTimeout(context.Background(), workerRuns)
	defer cancel()
	err = locks.WorkRequests(ctx, pool, oddQueueOf(window), r.handle, &locks.RequestOptions{
		MaxTries: 1 << 30, Settled: r.settled,
		WorkerOptions: locks.WorkerOptions{
			Grace: 2 * time.Second, CallTimeout: 2 * time.Second,
			OnError: func(context.Context, error) { r.trouble = true },
		},
	})
	r.trouble = r.trouble || !errors.Is(err, context.DeadlineExceeded)
	if len(r.handled)+len(r.asked) > 0 {
		s.answer(p, yes)
	} else {
		s.answer(p, no)
	}
	s.die("a worker has ended")
	for number, noted := range r.handled {
		found, err := s.until(func() outcome {
			return s.truth("select exists (select from torture.work where window_number = $1 and process = $2)", window, number)
		})
		if err != nil {
			return err
		}
		s.answer(noted, found)
	}
	for number, asked := range r.asked {
		switch {
		case r.told[number]:
			s.answer(asked, yes)
		case !r.trouble:
			s.answer(asked, no)
		}
	}
	return nil
}

func (s *session) enqueueOdd(id string, window int) error {
	if !s.once("entity "+id, "insert into torture.entity (id) values ($1) on conflict do nothing", id) {
		return nil
	}
	var request int64
	p := s.call(window, "worker", "enqueue", id)
	result, _ := s.ask([]any{&request}, "select lock.enqueue('update', $1, jsonb_build_object('call', $2::bigint), $3)", id, p.number, oddQueueOf(window))
	if result == unknown {
		found, err := s.until(func() outcome {
			found, _ := s.ask([]any{&request}, "select request_id from lock.request_history($1, $2, 100000) where (payload ->> 'call')::bigint = $3", id, oddQueueOf(window), p.number)
			return found
		})
		if err != nil {
			return err
		}
		if found == yes {
			result = yes
		}
	}
	s.answer(p, result, request)
	return nil
}

// An oddError has the number of the call that failed.
type oddError struct {
	number int64
	err    error
}

func (e *oddError) Error() string {
	return "odd " + strconv.FormatInt(e.number, 10) + ": " + e.err.Error()
}
func (e *oddError) Unwrap() error { return e.err }

var errOdd = errors.New("it misbehaves")

// handle does a batch's work in one of two cases, and misbehaves otherwise.
func (r *workerRun) handle(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
	called := r.called
	defer func() { r.called = now() }()
	entity, ids := batch[0].EntityID, make([]int64, len(batch))
	for i, request := range batch {
		ids[i] = request.RequestID
	}
	if before := r.gone[ids[0]]; before != nil {
		r.answer(r.callAt(called, r.window, "worker", "+again", entity, ids...), yes, before...)
	}
	if r.kept != nil {
		_, err := r.kept.Exec(ctx, "select 1")
		if !errors.Is(err, pgx.ErrTxClosed) {
			r.answer(r.callAt(called, r.window, "worker", "+kept", entity, ids...), yes)
		}
	}
	r.kept = tx
	if r.connected() == nil && r.dice.IntN(2) == 0 { // One more is there when this batch is settled.
		r.enqueueOdd(entity, r.window)
	}
	if r.dice.IntN(2) == 0 {
		var place int64
		if err := tx.QueryRow(ctx, "select n from torture.entity where id = $1", entity).Scan(&place); err != nil {
			return err
		}
		time.Sleep(r.linger)
		noted := r.callAt(called, r.window, "worker", "+batch", entity, append([]int64{place}, ids...)...)
		r.handled[noted.number] = noted
		if _, err := tx.Exec(ctx, "update torture.entity set n = $2 where id = $1", entity, place+1); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into torture.work (window_number, entity, request, place, process) select $1, $2, request, $4, $5 from unnest($3::bigint[]) as request",
			r.window, entity, ids, place, noted.number)
		return err
	}
	noted := r.callAt(called, r.window, "worker", "+odd", entity, ids...)
	r.asked[noted.number] = noted
	odd := &oddError{noted.number, errOdd}
	switch r.dice.IntN(8) {
	case 0: // Its connection is closed by its own limit.
		r.taken[noted.number] = ids
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		tx.Exec(short, "select pg_sleep(0.5)")
		if odd.err = short.Err(); odd.err == nil {
			odd.err = errOdd
		}
	case 1:
		r.taken[noted.number] = ids
		tx.Exec(ctx, "rollback")
	case 2:
		r.taken[noted.number] = ids
		tx.Query(ctx, "select generate_series(1, 100000)")
	case 3:
		panic(odd.Error())
	case 4: // Its error has no number, so nobody asks whether it was told.
		delete(r.asked, noted.number)
		runtime.Goexit()
	case 5: // It settles by itself, and says that all is well.
		delete(r.asked, noted.number)
		_, err := tx.Exec(ctx, "select lock.settle_request($1)", batch[0].ProcessID)
		return err
	case 6:
		return locks.RetryAfter(time.Millisecond, odd)
	}
	return odd
}

// settled notes of whom it is told, and then misbehaves, too.
func (r *workerRun) settled(_ context.Context, result locks.RequestResult) {
	if result.Err == nil {
		return
	}
	var odd *oddError
	var panicked *locks.PanicError
	number := int64(0)
	if errors.As(result.Err, &odd) {
		number = odd.number
	} else if errors.As(result.Err, &panicked) {
		fmt.Sscanf(fmt.Sprint(panicked.Value), "odd %d:", &number)
	}
	if r.told[number] && number > 0 {
		r.answer(r.callAt(r.called, r.window, "worker", "+twice", result.Batch[0].EntityID), yes)
	}
	r.told[number] = true
	if ids := r.taken[number]; ids != nil {
		r.gone[ids[0]] = ids
	}
	if r.pool.Stat().AcquiredConns() > 0 {
		r.answer(r.callAt(r.called, r.window, "worker", "+starved", result.Batch[0].EntityID), yes)
	}
	switch r.dice.IntN(4) {
	case 0:
		time.Sleep(20 * time.Millisecond)
	case 1:
		panic("settled")
	case 2:
		runtime.Goexit()
	}
}

// checkWorkers is checkRequests, and looks for what handlers have seen that must not be.
func checkWorkers(c *checker, id string, ops []*op) {
	checkRequests(c, id, ops)
	for _, o := range ops {
		switch {
		case o.name == "+again":
			c.violate("worker", id, "a refused batch was handled again", o)
		case o.name == "+kept":
			c.violate("worker", id, "a transaction lives on that its handler kept", o)
		case o.name == "+starved":
			c.violate("worker", id, "Settled was called while the loop had its connection", o)
		case o.name == "+twice":
			c.violate("worker", id, "Settled was told twice of a batch", o)
		case o.name == "+odd" && o.outcome == no:
			c.violate("worker", id, "a batch failed, and nobody was told", o)
		}
	}
}

// finalWorkers: each request is settled, and was worked on when it is complete, and not when it is an error.
func finalWorkers(ctx context.Context, conn *pgx.Conn, c *checker, window int, ops []*op) error {
	rows, err := conn.Query(ctx, `select request.request_id, request.request_status::text, (select count(*) from torture.work where work.request = request.request_id)
		from lock.request where queue_id = $1`, oddQueueOf(window))
	if err != nil {
		return err
	}
	type end struct {
		status string
		times  int
	}
	ends := map[int64]end{}
	var request int64
	var e end
	if _, err := pgx.ForEachRow(rows, []any{&request, &e.status, &e.times}, func() error { ends[request] = e; return nil }); err != nil {
		return err
	}
	for _, o := range ops {
		if o.name != "enqueue" || o.outcome != yes {
			continue
		}
		switch e := ends[o.out[0]]; {
		case e.status == "":
			c.lose("worker", o.id, "it was enqueued and is gone", o)
		case e.status != "complete" && e.status != "error":
			c.lose("worker", o.id, "it ended as "+e.status, o)
		case e.status == "complete" && e.times == 0:
			c.lose("worker", o.id, "it is complete, and nobody did it", o)
		case e.status == "error" && e.times > 0:
			c.violate("worker", o.id, "it is an error, and what was done is there", o)
		case e.times > 1:
			c.violate("worker", o.id, "it was done more than once", o)
		}
	}
	return nil
}
