package locks

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/wake"
)

// RequestOptions tune WorkRequests. Nil and the zero value are good.
type RequestOptions struct {
	WorkerOptions
	// Concurrency is how many batches are in work at once, of different entities. Each uses a
	// connection of the pool. Default: 1.
	Concurrency int
	MaxTries    int // of a request when the handler asks for others with RetryAfter. Default: 10.
	BatchSize   int // how many updates a batch has at most. Default: 1000.

	// Settled is told what became of each batch, once, after it was settled. It is told of a batch
	// that cannot be settled in its own transaction before that, and of one whose worker ends
	// without a settled result (ErrUnsettled). The next batch waits for it, and no connection is
	// held meanwhile. Its ctx lasts for CallTimeout, also when the loop's has ended. When it
	// panics, slog's default logger gets that. Default: what has an Err goes to slog's default
	// logger.
	Settled func(ctx context.Context, result RequestResult)
}

// WorkRequests works on the batches of a request queue ("": "default"), Concurrency at once, until
// ctx ends, and returns ctx's error then, wrapped. Run it in as many processes as there should be.
// Each batch uses one connection of the pool, also while handle runs. All loops of a process and
// pool listen on one more. A handler that takes another connection from the same pool needs a pool
// with one more for each: with less they may all wait for each other.
//
// handle gets a READ COMMITTED transaction and a batch of one entity: its create alone, or its
// outstanding updates, oldest first, BatchSize at most. Nobody else has the entity until the
// transaction ends. The batch's ProcessID is a new one for every capture: a name for what handle
// does outside the database that no other try has. The batch is settled in the same transaction:
//
//   - nil: complete, committed together with what handle did in tx.
//   - an error: what handle did in tx is undone, and all of the batch is settled as error with the
//     error's text as its message. So it is when handle leaves tx in a state that cannot be settled
//     or committed: a deferred constraint, a role without rights, a batch that is settled already.
//     tx's own Commit and Rollback return an error and do nothing. When handle has returned, all
//     that tx has returns pgx.ErrTxClosed.
//   - rows left open, a commit or rollback in SQL, a context of handle's own that ends during a
//     query, which closes the connection: an error, too. The transaction is gone. Settled is told,
//     and exactly these requests are settled in the next transaction that gets them. Prefer
//     statement_timeout for a limit.
//   - RetryAfter(delay, err): undone, and put back for any worker. When one of the batch has been
//     tried MaxTries times it is an error instead. The requests' Tries say how often they were
//     tried, this time included. Permanent(err) is an error in any case.
//   - Snooze(delay): undone, and put back for any worker. It costs no try.
//   - a panic, or the end of its goroutine: as an error. It is a *PanicError with the stack.
//   - a lost connection, or another error that is IsRetryable: everything is undone, nothing is
//     counted, OnError is told, and the batch is as new. It is found again as soon as the server
//     has let go of it.
//
// Stopping: when ctx ends no other batch is captured. The context that handle gets does not end
// with ctx, and lasts for nine tenths of Grace. What handle returns by then counts, as nil does
// afterwards. An error after that leaves the batch as new, and counts nothing. A handler that uses
// ctx instead fails at once, and that counts. When a batch could not be settled by then,
// WorkRequests returns an error that is ErrUnsettled and not ctx's: the batch is settled or as new.
//
// A worker that finds nothing asks no more questions until it is notified, the next retry of its
// own is due, or Poll has passed. It survives the loss of its connections. A commit whose outcome
// is unknown, because the connection broke or CallTimeout passed, has happened or not: the batch is
// settled, or found again. A login that is refused is told to OnError and tried again. Errors that
// would not go away by themselves, such as missing rights (42501), end the worker.
func WorkRequests(ctx context.Context, pool *pgxpool.Pool, queueID string,
	handle func(ctx context.Context, tx pgx.Tx, batch []db.Request) error, opts *RequestOptions,
) error {
	shared := requestWorker{pool: pool, queueID: cmp.Or(queueID, defaultQueue), handle: handle}
	if opts != nil {
		shared.RequestOptions = *opts
	}
	err := shared.complete(handle != nil, map[string]int{
		"Concurrency": shared.Concurrency,
		"MaxTries":    shared.MaxTries,
		"BatchSize":   shared.BatchSize,
	})
	if err != nil {
		return shared.named(err)
	}
	shared.MaxTries, shared.BatchSize = cmp.Or(shared.MaxTries, 10), cmp.Or(shared.BatchSize, 1000)
	if shared.Settled == nil {
		shared.Settled = logRequests
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	shared.end = newGraceful(running, shared.Grace)
	defer shared.end.end()
	shared.teller = newTeller(shared.OnError, shared.end, shared.CallTimeout)
	shared.note("request worker begins", shared.queueID)
	defer shared.note("request worker has ended", shared.queueID)
	trouble := &wake.Complaint{
		Tell: func(err error) { shared.wait(shared.of(shared.named(err))) },
		Back: func() { shared.note("request worker is back", shared.queueID) },
	}
	ended := make(chan error)
	loops := cmp.Or(shared.Concurrency, 1)
	for range loops {
		go func() {
			w := shared
			w.refused, w.cut = map[int64]requestResult{}, map[int64]int{}
			err := wake.Watch(running, pool, wake.Requests, w.queueID, wake.Options{
				Poll:        w.Poll,
				Blind:       w.Blind,
				CallTimeout: w.CallTimeout,
				Due:         w.next,
				Trouble:     trouble,
				Revisit:     true,
			}, w.look)
			if running.Err() != nil && w.unsettled != nil {
				err = fmt.Errorf("%w: %v", ErrUnsettled, w.unsettled)
			}
			ended <- err
		}()
	}
	err = nil
	for range loops {
		// The first that ends ends the others, and a result that is lost counts more than how.
		if one := <-ended; err == nil || errors.Is(one, ErrUnsettled) {
			err = one
		}
		stop()
	}
	return shared.named(err)
}

type requestWorker struct {
	RequestOptions
	teller
	pool    *pgxpool.Pool
	queueID string
	handle  func(ctx context.Context, tx pgx.Tx, batch []db.Request) error
	end     *graceful

	line   int64       // the first request of this turn's last batch; 0: a new turn
	turn   rare        // the search from the queue's beginning
	behind bool        // this turn goes on behind what failed
	worked bool        // this turn had a batch: what it skipped may be free now
	due    []time.Time // when batches come up again that were put back here
	lost   []time.Time // when to look for what a failed transaction left

	// What became of batches whose own transaction was gone, by their first request, until another
	// transaction has settled them.
	refused   map[int64]requestResult
	cut       map[int64]int // how often a batch's connection was lost, by its first request
	unsettled error         // why the last batch before the end could not be settled
}

// A requestResult is what became of a batch.
type requestResult struct {
	batch []db.Request
	outcome
}

func (w *requestWorker) named(err error) error {
	return fmt.Errorf("locks: work on request queue %.60q: %w", w.queueID, err)
}

// look takes one batch. When there is none after the line, it starts again from the beginning,
// unless this turn had no batch.
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

// step captures, handles and settles one batch in one transaction, in two round trips beside the
// handler's own (six on YugabyteDB: see pipeline). It tells of the batch when the connection is the
// pool's again.
func (w *requestWorker) step(ctx context.Context) (found bool, err error) {
	c, err := w.capture(ctx)
	if err != nil {
		return false, err
	}
	if len(c.batch) == 0 {
		w.leave(c)
		return false, nil
	}
	result, refused := w.refused[c.batch[0].RequestID]
	same := func(a, b db.Request) bool { return a.RequestID == b.RequestID }
	if refused = refused && slices.EqualFunc(result.batch, c.batch, same); !refused {
		result = requestResult{c.batch, <-w.run(c)}
		err = w.usable(c, &result.outcome)
	}
	if err == nil && result.verdict != workReturned {
		err = w.settle(c, &result.outcome)
	}
	w.leave(c)
	gone := (*goneError)(nil)
	switch {
	case err == nil:
		delete(w.refused, c.batch[0].RequestID)
		delete(w.cut, c.batch[0].RequestID)
		w.worked = true
		if result.verdict == workRetry || result.verdict == workSnoozed {
			// The next look begins where the server says, however long a handler takes: so neither
			// what fails nor what is new keeps the other waiting.
			w.behind = true
			w.due = append(w.due, time.Now().Add(result.delay))
		}
	case ctx.Err() != nil: // There is no next transaction.
		w.unsettled = err
		result.verdict, result.err = workLost, errors.Join(ErrUnsettled, err, result.err)
		w.report(result, time.Time{})
		return false, err
	case !refused && errors.As(err, &gone):
		if len(w.refused) >= 1000 { // Others settle some of them.
			clear(w.refused)
		}
		w.refused[c.batch[0].RequestID] = result
		w.line = c.before
		if gone.connection {
			w.comeBack()
		}
	default:
		return false, err
	}
	if !refused {
		settled := time.Now()
		if err != nil || result.verdict == workReturned {
			settled = time.Time{}
		}
		w.report(result, settled)
	}
	return true, nil
}

// report tells what became of a batch, and waits for that.
func (w *requestWorker) report(r requestResult, settled time.Time) {
	if r.verdict == workFailed {
		r.verdict = workDead
	}
	told := RequestResult{r.result(), r.batch}
	told.Settled = settled
	if r.delay > 0 && !settled.IsZero() {
		told.RetryAt = settled.Add(r.delay)
	}
	w.wait(func(ctx context.Context) { w.Settled(ctx, told) })
}

// A requestCapture is a transaction with a batch.
type requestCapture struct {
	conn    *pgxpool.Conn
	tx      pgx.Tx
	process pgtype.UUID
	batch   []db.Request
	before  int64         // the line before it
	took    time.Duration // the call
}

// capture takes the next batch. One that begins as a refused batch is taken as that was, without
// the updates that came later.
func (w *requestWorker) capture(ctx context.Context) (*requestCapture, error) {
	// A turn ends by itself when nothing is found behind the line. Under steady load it ends once a
	// second, so that what was put back, or was committed late, gets its turn; less often when a
	// search from the beginning takes long.
	began := time.Now()
	if began.Sub(w.turn.began) >= time.Second && w.turn.rest(began) <= 0 && !w.behind {
		w.line = 0
	}
	first := w.line == 0
	c, err := w.begin(ctx, w.line, w.BatchSize)
	if err != nil {
		return nil, err
	}
	if first {
		past := func(at time.Time) bool { return !at.After(began) }
		w.due, w.lost = slices.DeleteFunc(w.due, past), slices.DeleteFunc(w.lost, past)
		w.turn = rare{began, c.took}
	}
	w.behind = false
	for most := w.BatchSize; len(c.batch) > 0; {
		id, whole := c.batch[0].RequestID, w.BatchSize
		if refused, ok := w.refused[id]; ok {
			whole = len(refused.batch)
		}
		if most == whole || len(c.batch) < most && len(c.batch) <= whole {
			c.before, w.line = w.line, id
			break
		}
		// Meanwhile somebody else may have settled what was refused: then it is another batch.
		w.leave(c)
		if c, err = w.begin(ctx, w.line, whole); err != nil {
			return nil, err
		}
		most = whole
	}
	return c, nil
}

// begin begins a transaction and captures.
func (w *requestWorker) begin(ctx context.Context, after int64, most int,
) (c *requestCapture, err error) {
	acquiring, cancel := context.WithTimeout(ctx, w.CallTimeout)
	defer cancel()
	c = &requestCapture{process: newProcess()}
	if c.conn, err = wake.Acquire(acquiring, w.pool); err != nil {
		return nil, err
	}
	calling, cancel := w.end.call(w.CallTimeout) // From here on the end of ctx must not interrupt.
	defer cancel()
	asked := time.Now()
	opening := &pipeline{
		Conn: c.conn.Conn(), begins: true, then: []string{"savepoint locks_handler"},
	}
	c.batch, err = db.New(opening).CaptureRequest(calling, db.CaptureRequestParams{
		ProcessID: c.process, After: after, QueueID: w.queueID, Max: clamp(most),
	})
	err = opening.close(calling, err)
	c.took = time.Since(asked)
	c.tx = opening.tx
	if err != nil {
		w.leave(c)
		return nil, err
	}
	return c, nil
}

// leave ends a transaction that is not committed, and gives the connection back.
func (w *requestWorker) leave(c *requestCapture) {
	defer wake.Release(w.pool, c.conn)
	if c.conn.Conn().PgConn().TxStatus() != 'I' { // a commit in a pipeline is none of tx's
		calling, cancel := w.end.call(w.CallTimeout)
		defer cancel()
		c.tx.Rollback(calling)
	}
}

// run calls the handler in a goroutine of its own, which it may end, and sends what became of the
// batch.
func (w *requestWorker) run(c *requestCapture) <-chan outcome {
	became := make(chan outcome, 1)
	tx := &batchTx{Tx: c.tx, over: &atomic.Bool{}}
	go handled(1, w.end.handlers, func() []error {
		return []error{w.handle(w.end.handlers, tx, slices.Clone(c.batch))}
	}, func(outcomes []outcome) {
		tx.over.Store(true)
		became <- outcomes[0]
	})
	return became
}

// A goneError says that a handler's own doing took the transaction away.
type goneError struct {
	error
	connection bool // and its connection
}

func (e *goneError) Unwrap() error { return e.error }

// usable says what keeps a batch from being settled in the transaction that its handler had.
func (w *requestWorker) usable(c *requestCapture, o *outcome) error {
	conn := c.tx.Conn()
	switch {
	case o.verdict == workReturned:
		return nil
	case conn.IsClosed() && o.late:
		return &goneError{o.err, true} // by a limit of the handler's own, and it would be so again
	case conn.IsClosed():
		// Who is to blame is not known, unless it happens again and again.
		id := c.batch[0].RequestID
		err := fmt.Errorf("connection lost while handling request %d: %v", id, o.err)
		if len(w.cut) >= 1000 {
			clear(w.cut)
		}
		if w.cut[id]++; w.cut[id] < w.MaxTries {
			return err
		}
		o.fail(err)
		return &goneError{err, true}
	case conn.PgConn().IsBusy(): // Only closing the connection ends a query whose rows nobody has.
		o.fail(errors.New("the handler left a query open: it must close its rows"))
		return &goneError{o.err, true}
	case o.verdict == workFailed && o.conflict:
		return o.err
	case conn.PgConn().TxStatus() == 'I':
		err := errEnded
		if o.err != nil {
			err = fmt.Errorf("%w: %w", errEnded, o.err)
		}
		o.become(err)
		return &goneError{err, false}
	case conn.PgConn().TxStatus() == 'E':
		o.fail(
			errors.New(
				"a statement failed, and the handler did not return its error: return it, or use " +
					"a savepoint (tx.Begin)",
			),
		)
	}
	return nil
}

// fail makes an outcome that is done a failure.
func (o *outcome) fail(err error) {
	if o.verdict == workDone {
		o.become(err)
	}
}

// become is another outcome of the same work.
func (o *outcome) become(err error) {
	began, ended := o.began, o.ended
	*o = judge(err, false)
	o.began, o.ended = began, ended
}

// settle settles the batch by its outcome and commits. What the server refuses is settled once more
// behind the savepoint: as error, and then in plain letters.
func (w *requestWorker) settle(c *requestCapture, o *outcome) error {
	if o.verdict == workRetry && w.exhausted(c.batch) {
		o.verdict = workFailed
	}
	pg := c.tx.Conn().PgConn()
	for {
		err := w.trySettle(c, o)
		switch {
		case err == nil || !errors.Is(err, errTaken) && wake.Transient(err):
			return err
		// and it cannot be committed, such as with a deferred constraint
		case o.verdict == workDone:
			o.fail(err)
		case unspeakable(err) && spelled(o.text) != o.text:
			o.text = spelled(o.text)
		default:
			return &goneError{err, false}
		}
		if pg.TxStatus() == 'I' {
			return &goneError{err, false}
		}
	}
}

// backNames are those of lock.settle_request for what is put back.
var backNames = map[verdict]db.RequestStatus{workRetry: db.RequestRetry, workSnoozed: db.RequestNew}

func (w *requestWorker) trySettle(c *requestCapture, o *outcome) error {
	calling, cancel := w.end.call(w.CallTimeout)
	defer cancel()
	expects := int64(len(c.batch))
	params := db.SettleRequestParams{ProcessID: c.process, Expects: &expects}
	if o.verdict != workDone {
		params.Status = db.RequestError
		if o.verdict != workSnoozed {
			params.Message = o.text
		}
		if _, err := c.tx.Exec(calling, "rollback to savepoint locks_handler"); err != nil {
			return err
		}
	}
	if back := backNames[o.verdict]; back != "" {
		params.Status, params.Delay = back, o.delay
	}
	// What is deferred is checked while there is still a savepoint to go back to.
	closing := &pipeline{
		Conn: c.conn.Conn(), then: []string{"set constraints all immediate", "commit"},
	}
	_, err := db.New(closing).SettleRequest(calling, params)
	closed := closing.close(calling, err)
	// It would settle another number than it expects.
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "55000" {
		return errTaken
	}
	return unanswered(closed)
}

// errTaken is for a handler that settles or deletes requests of its batch, or begins another
// transaction.
var errTaken = errors.New(
	"the handler took the batch away from its transaction: leave settling, deleting, begin and " +
		"commit to the worker",
)

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
