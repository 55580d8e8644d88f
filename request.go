package locks

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/wake"
)

// A RequestError is what OnError is told of a batch that failed, or that is to be tried again.
type RequestError struct {
	Batch []db.Request // as it was captured
	Err   error        // the handler's, a *PanicError, or why its transaction could not be settled
}

// Error names the first request and its queue.
func (e *RequestError) Error() string {
	return fmt.Sprintf("locks: work on request %d of queue %.60q: %v", e.Batch[0].RequestID, e.Batch[0].QueueID, e.Err)
}

// Unwrap returns Err.
func (e *RequestError) Unwrap() error { return e.Err }

// RequestOptions tune WorkRequests. Nil and the zero value are good.
type RequestOptions struct {
	MaxTries  int // of a request when the handler asks for others with RetryAfter. Default: 10.
	BatchSize int // how many updates a batch has at most. Default: 1000.

	Grace       time.Duration // for the running handler after ctx has ended. Default: 10 s.
	CallTimeout time.Duration // of each call of the loop itself, the commit included. Default: 10 s.
	// Poll is the longest sleep of an idle worker. So late at most it finds what nobody notified it
	// of, such as what a worker left that was cut off. Default: 30 s.
	Poll  time.Duration
	Blind time.Duration // the longest sleep where notifications do not arrive. Default: 1 s.

	// OnError is told of each error of the handler (*RequestError), and of the loop's own trouble,
	// such as a server that cannot be reached. It hears of that at once, and while it lasts after
	// pauses that grow to a minute. Default: slog's default logger.
	OnError func(ctx context.Context, err error)
}

// WorkRequests is a worker of a request queue ("": "default") until ctx ends, and returns ctx's
// error then, wrapped. Any number of workers, in any number of processes, share a queue. Each uses
// one connection of the pool at a time. All those of a process and pool listen on one more.
//
// handle gets a READ COMMITTED transaction and a batch of one entity: its create alone, or its
// oldest BatchSize outstanding updates, oldest first. Nobody else has the entity until the
// transaction ends. The batch's ProcessID is a new one for every capture: a name for what handle
// does outside the database that no other try has. The batch is settled in the same transaction:
//
//   - nil: complete, committed together with what handle did in tx.
//   - an error: what handle did in tx is undone, and all of the batch is settled as error with the
//     error's text as its message. So it is when handle leaves tx in a state that cannot be settled
//     or committed: a deferred constraint, a role without rights, rows left open, a commit or
//     rollback in SQL, a batch that is settled already. tx's own Commit and Rollback return an
//     error and do nothing.
//   - RetryAfter(delay, err): undone, and put back for any worker. When one of the batch has been
//     tried MaxTries times it is an error instead. The requests' Tries say how often they were
//     tried, this time included. Permanent(err) is an error in any case.
//   - a panic: as an error. OnError gets a *PanicError with the stack.
//   - a lost connection, or another error that is IsRetryable: everything is undone, nothing is
//     counted, and the batch is as new. It is found again as soon as the server has let go of it. A
//     context of handle's own that ends during a query closes the connection, too, and handle's
//     error counts then. Prefer statement_timeout for a limit.
//
// Stopping: when ctx ends no other batch is captured. The context that handle gets does not end
// with ctx, and lasts for nine tenths of Grace. What handle returns by then counts, as nil does
// afterwards. An error after that leaves the batch as new, and counts nothing. A handler that uses
// ctx instead fails at once, and that counts.
//
// A worker that finds nothing asks no more questions until it is notified, the next retry of its
// own is due, or Poll has passed. It survives the loss of its connections. A commit whose outcome
// is unknown, because the connection broke or CallTimeout passed, has happened or not: the batch is
// settled, or found again. A login that is refused is told to OnError and tried again. Errors that
// would not go away by themselves, such as missing rights (42501), end the worker.
func WorkRequests(ctx context.Context, pool *pgxpool.Pool, queueID string, handle func(ctx context.Context, tx pgx.Tx, batch []db.Request) error, opts *RequestOptions) error {
	w := &requestWorker{pool: pool, queueID: cmp.Or(queueID, defaultQueue), handle: handle}
	if opts != nil {
		w.RequestOptions = *opts
	}
	w.MaxTries, w.BatchSize = cmp.Or(w.MaxTries, 10), cmp.Or(w.BatchSize, 1000)
	w.Grace, w.CallTimeout = cmp.Or(w.Grace, defaultGrace), cmp.Or(w.CallTimeout, defaultCallTimeout)
	if w.OnError == nil {
		w.OnError = warn
	}
	w.end = newGraceful(ctx, w.Grace)
	defer w.end.end()
	err := wake.Watch(ctx, pool, wake.Requests, w.queueID, wake.Options{
		Poll: w.Poll, Blind: w.Blind, CallTimeout: w.CallTimeout, Due: w.next, OnError: func(err error) { w.OnError(ctx, w.named(err)) },
	}, w.look)
	return w.named(err)
}

type requestWorker struct {
	RequestOptions
	pool    *pgxpool.Pool
	queueID string
	handle  func(ctx context.Context, tx pgx.Tx, batch []db.Request) error
	end     *graceful

	line   int64         // the first request of this turn's last batch; 0: a new turn
	began  time.Time     // when this turn began
	lasted time.Duration // what the last search from the queue's beginning took
	behind bool          // this turn goes on behind what failed
	worked bool          // this turn settled something: others may have skipped what is free now
	due    []time.Time   // when batches come up again that were put back here
	lost   []time.Time   // when to look for what a failed transaction left

	refused map[try]error // why the transaction of a batch could not be committed, by its last request
}

func (w *requestWorker) named(err error) error {
	return fmt.Errorf("locks: work on request queue %.60q: %w", w.queueID, err)
}

// A try of a request is over when it is settled or put back.
type try struct {
	request int64
	tries   int32
}

// look takes one batch. When there is none after the line, it starts again from the beginning,
// unless this turn settled nothing.
func (w *requestWorker) look(ctx context.Context) (found bool, err error) {
	for {
		found, err = w.step(ctx)
		if err != nil {
			// What failed is new again: go on behind it, however long the pause is now, and come
			// back.
			w.worked, w.behind = true, true
			w.comeBack()
			return false, err
		}
		if found {
			return true, nil
		}
		again := w.worked
		w.line, w.worked = 0, false
		if !again {
			return false, nil
		}
	}
}

// comeBack makes the worker look again, and again: the server may notice a lost connection late,
// and nobody tells when it lets go of the batch.
func (w *requestWorker) comeBack() {
	w.lost = w.lost[:0]
	for pause := 100 * time.Millisecond; pause <= time.Minute; pause *= 2 {
		w.lost = append(w.lost, time.Now().Add(pause))
	}
}

// next says after how long there is something to look for that nobody notifies of; 0: never. What
// is past counts until a turn has begun after it.
func (w *requestWorker) next(context.Context) (due time.Duration, err error) {
	for _, at := range slices.Concat(w.due, w.lost) {
		if wait := max(time.Until(at), time.Millisecond); due == 0 || wait < due {
			due = wait
		}
	}
	return due, nil
}

// A capture is a transaction with a batch.
type capture struct {
	conn    *pgxpool.Conn
	tx      pgx.Tx
	process pgtype.UUID
	batch   []db.Request
	before  int64 // the line before it
}

// last is this try of the batch.
func (c *capture) last() try {
	request := c.batch[len(c.batch)-1]
	return try{request.RequestID, request.Tries}
}

// step captures, handles and settles one batch in one transaction, in two round trips beside the
// handler's own.
func (w *requestWorker) step(ctx context.Context) (found bool, err error) {
	c, err := w.capture(ctx)
	if err != nil {
		return false, err
	}
	defer w.leave(c)
	if len(c.batch) == 0 {
		return false, nil
	}
	outcome, refused := w.refused[c.last()]
	if !refused {
		outcome, err = w.run(c)
	}
	delay := time.Duration(0)
	if err == nil {
		delay, err = w.settle(c, outcome)
	}
	return w.report(ctx, c, outcome, delay, refused, err)
}

// capture begins a transaction and captures.
func (w *requestWorker) capture(ctx context.Context) (c *capture, err error) {
	acquiring, cancel := context.WithTimeout(ctx, w.CallTimeout)
	defer cancel()
	c = &capture{process: newProcess()}
	if c.conn, err = wake.Acquire(acquiring, w.pool); err != nil {
		return nil, err
	}
	// A turn ends by itself when nothing is found behind the line. Under steady load it ends once a
	// second, so that what was put back, or was committed late, gets its turn; less often when a
	// search from the beginning takes long.
	began := time.Now()
	if began.Sub(w.began) >= max(time.Second, 20*w.lasted) && !w.behind {
		w.line = 0
	}
	w.behind = false
	first := w.line == 0
	if first {
		past := func(at time.Time) bool { return !at.After(began) }
		w.due, w.lost = slices.DeleteFunc(w.due, past), slices.DeleteFunc(w.lost, past)
	}
	calling, cancel := w.end.call(w.CallTimeout) // From here on the end of ctx must not interrupt.
	defer cancel()
	opening := &pipeline{Conn: c.conn.Conn(), begins: true, then: "savepoint locks_handler"}
	c.batch, err = db.New(opening).CaptureRequest(calling, db.CaptureRequestParams{
		ProcessID: c.process, After: w.line, QueueID: w.queueID, Max: int32(min(w.BatchSize, math.MaxInt32)),
	})
	err = cmp.Or(err, opening.results.Close())
	if first {
		w.began, w.lasted = began, time.Since(began)
	}
	c.tx, c.before = opening.results.Tx(), w.line
	if err != nil {
		w.leave(c)
		return nil, err
	}
	if len(c.batch) > 0 {
		w.line = c.batch[0].RequestID
	}
	return c, nil
}

// leave ends a transaction that is not committed, and gives the connection back.
func (w *requestWorker) leave(c *capture) {
	defer wake.Release(w.pool, c.conn)
	if c.conn.Conn().PgConn().TxStatus() != 'I' { // a commit in a pipeline is none of tx's
		calling, cancel := w.end.call(w.CallTimeout)
		defer cancel()
		c.tx.Rollback(calling)
	}
}

// run calls the handler. Its outcome is what to settle; err means that nothing can be settled in
// the transaction.
func (w *requestWorker) run(c *capture) (outcome, err error) {
	protect(func() error { return sound(w.handle(w.end.handlers, givenTx{c.tx}, slices.Clone(c.batch))) }, func(err error) { outcome = err })
	conn := c.tx.Conn()
	again, _, never := wishes(outcome)
	switch {
	case outcome != nil && w.end.handlers.Err() != nil:
		return outcome, errStopped
	case conn.IsClosed() && (errors.Is(outcome, context.DeadlineExceeded) || errors.Is(outcome, context.Canceled)):
		return outcome, errCut // by a limit of the handler's own, and it would be so again
	case conn.IsClosed():
		return nil, fmt.Errorf("connection lost while handling request %d: %v", c.batch[0].RequestID, outcome)
	case conn.PgConn().IsBusy(): // Only closing the connection ends a query whose rows nobody has.
		return cmp.Or(outcome, errors.New("the handler left a query open: it must close its rows")), errCut
	case outcome != nil && !again && !never && IsRetryable(outcome):
		return nil, outcome
	}
	switch conn.PgConn().TxStatus() {
	case 'I':
		if outcome != nil {
			outcome = fmt.Errorf("%w: %w", errEnded, outcome)
		}
		return outcome, errEnded
	case 'E':
		if outcome == nil {
			outcome = errors.New("a statement failed, and the handler did not return its error: return it, or use a savepoint (tx.Begin)")
		}
	}
	if outcome != nil {
		calling, cancel := w.end.call(w.CallTimeout)
		defer cancel()
		_, err = c.tx.Exec(calling, "rollback to savepoint locks_handler")
	}
	return outcome, err
}

// settle settles the batch by its outcome and commits. With a delay the batch is put back.
func (w *requestWorker) settle(c *capture, outcome error) (delay time.Duration, err error) {
	expects := int64(len(c.batch))
	params := db.SettleRequestParams{ProcessID: c.process, Status: "complete", Expects: &expects}
	if outcome != nil {
		text := message(outcome)
		params.Status, params.Message = "error", &text
	}
	if again, delay, _ := wishes(outcome); again && !w.exhausted(c.batch) {
		params.Status, params.Delay = "new", delay
	}
	calling, cancel := w.end.call(w.CallTimeout)
	defer cancel()
	closing := &pipeline{Conn: c.conn.Conn(), then: "commit"}
	_, err = db.New(closing).SettleRequest(calling, params)
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "55000" { // not what it expects
		err = errUnsettled
	}
	return params.Delay, cmp.Or(err, closing.results.Close())
}

// report tells of the outcome, and keeps in mind what has to be looked for again. err is why the
// transaction was not committed.
func (w *requestWorker) report(ctx context.Context, c *capture, outcome error, delay time.Duration, refused bool, err error) (found bool, _ error) {
	switch {
	case err == nil:
		delete(w.refused, c.last())
	case errors.Is(err, errStopped):
	case !refused && (errors.Is(err, errEnded) || errors.Is(err, errUnsettled) || !wake.Transient(err)):
		// The handler's doing, such as a deferred constraint of its tables: the same batch is
		// settled as error in the next transaction.
		if w.refused == nil || len(w.refused) >= 1000 { // Others settle some of them.
			w.refused = map[try]error{}
		}
		w.refused[c.last()] = cmp.Or(outcome, err)
		w.line = c.before
		if errors.Is(err, errCut) {
			w.comeBack()
		}
		return true, nil
	default:
		return false, err
	}
	if delay > 0 {
		w.due = append(w.due, time.Now().Add(delay))
	} else {
		w.worked = true
	}
	if outcome != nil {
		w.OnError(ctx, &RequestError{c.batch, outcome})
	}
	return true, nil
}

// errStopped is for a handler that failed after its time was up.
var errStopped = errors.New("the worker is stopped")

// errUnsettled is for a handler that settles or deletes requests of its batch, or begins another
// transaction.
var errUnsettled = errors.New("the handler took the batch away from its transaction: leave settling, deleting, begin and commit to the worker")

// errCut is for a handler whose connection cannot be used any more.
var errCut = fmt.Errorf("%w with its connection", errEnded)

// A pipeline is a connection that sends what stands around a query together with it, in the
// connection's query exec mode.
type pipeline struct {
	*pgx.Conn
	begins  bool   // a transaction, before the query
	then    string // is sent after the query
	results pgx.BatchResults
}

func (p *pipeline) send(ctx context.Context, sql string, args []any) {
	batch := &pgx.Batch{}
	if p.begins {
		batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	}
	batch.Queue(sql, args...)
	batch.Queue(p.then)
	p.results = p.Conn.SendBatch(ctx, batch)
	if p.begins {
		p.results.Exec()
	}
}

func (p *pipeline) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.send(ctx, sql, args)
	return p.results.Query()
}

func (p *pipeline) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	p.send(ctx, sql, args)
	return p.results.QueryRow()
}

func (w *requestWorker) exhausted(batch []db.Request) bool {
	for _, request := range batch {
		if int(request.Tries) >= w.MaxTries {
			return true
		}
	}
	return false
}

// newProcess makes a random UUID (version 4).
func newProcess() pgtype.UUID {
	id := pgtype.UUID{Valid: true}
	rand.Read(id.Bytes[:])
	id.Bytes[6] = id.Bytes[6]&0x0f | 0x40
	id.Bytes[8] = id.Bytes[8]&0x3f | 0x80
	return id
}
