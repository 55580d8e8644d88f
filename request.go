package locks

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/wake"
)

// A WorkOption changes how Work works.
type WorkOption func(*requestWorker)

// WorkPoll sets how long an idle worker sleeps at most, and so how late it finds work that nobody notified it of: what a
// worker left that died. Default: 30 s.
func WorkPoll(poll time.Duration) WorkOption {
	return func(w *requestWorker) { w.wake.Poll = poll }
}

// WorkAttempts sets how often a request is tried in all when the handler asks for retries. Default: 10.
func WorkAttempts(attempts int) WorkOption {
	return func(w *requestWorker) { w.attempts = attempts }
}

// WorkOnError sets who is told of errors that Work survives: the handler's, which are settled, and the connection's, after
// which it starts again. It may be called by two goroutines at once. Default: nobody.
func WorkOnError(tell func(error)) WorkOption {
	return func(w *requestWorker) { w.wake.OnError = tell }
}

// Work runs the back end of a request queue until ctx ends, and returns ctx's error then. Any number of workers, in any
// number of processes, share a queue; each uses one connection of the pool at a time, and all those of a process and pool
// listen on one more.
//
// handle gets a READ COMMITTED transaction and a batch of one entity: its create alone, or all its outstanding updates,
// oldest first. Nobody else has the entity until the transaction ends. The batch's ProcessID is a new one for every capture: a
// name for what handle does outside the database that no other try has. The batch is settled in the same transaction:
//
//   - nil: complete, committed together with what handle did in tx.
//   - an error: what handle did in tx is undone, and the batch, all of it, is settled as error with the error's text as its message. So it
//     is when handle leaves tx in a state that cannot be settled or committed: a deferred constraint, a role without rights, rows
//     left open, a commit or rollback in SQL, a batch that is settled already. tx's own Commit and Rollback return an error and do nothing.
//   - RetryAfter(delay, err), delay being at least a millisecond: undone, and put back for any worker, unless one of the batch has
//     been tried as often as WorkAttempts allows: then it is an error. The requests' Tries say how often they were tried, this time included.
//   - a panic: as an error; the one that WorkOnError gets ends with the stack.
//   - a lost connection, or an error that is IsRetryable: everything is undone, nothing is counted, and the batch is as new. It
//     is found again as soon as the server has let go of it. A context of handle's own that ends during a query closes the connection, too, and handle's error
//     counts then; prefer statement_timeout for a limit.
//
// When ctx ends, the batch at hand is finished first: the context that handle gets does not end with it. A worker that finds
// nothing asks no more questions until it is notified, the next retry of its own is due, or WorkPoll has passed; it survives
// the loss of its connections. Errors that would not go away by themselves, such as missing rights (42501), end it.
func Work(ctx context.Context, pool *pgxpool.Pool, queueID string, handle func(ctx context.Context, tx pgx.Tx, batch []db.Request) error, opts ...WorkOption) error {
	w := &requestWorker{pool: pool, queueID: queueID, handle: handle, attempts: 10}
	for _, opt := range opts {
		opt(w)
	}
	if err := wake.Watch(ctx, pool, wake.Requests, queueID, w.wake, w.look); err != nil {
		return fmt.Errorf("locks: work on %.60q: %w", queueID, err)
	}
	return nil
}

type requestWorker struct {
	pool     *pgxpool.Pool
	queueID  string
	handle   func(ctx context.Context, tx pgx.Tx, batch []db.Request) error
	wake     wake.Options
	attempts int

	line   int64         // the first request of the last batch of this turn through the queue; 0: a new turn
	began  time.Time     // when this turn began
	lasted time.Duration // what the last search from the queue's beginning took
	worked bool          // something was settled in this turn, so that others may have had to skip what is free now
	due    []time.Time   // when batches come up again that were put back here
	lost   []time.Time   // when to look for what a failed transaction left

	refused map[try]error // why the transaction of a batch could not be committed, by its last request
}

// A try of a request is over when it is settled or put back.
type try struct {
	request int64
	tries   int32
}

// look takes one batch. When there is none after the line, it starts again from the beginning, unless this turn settled nothing.
func (w *requestWorker) look(ctx context.Context) (found bool, due time.Duration, err error) {
	for {
		found, err = w.step(ctx)
		if err != nil {
			// What failed is new again: go on behind it, and come back.
			w.worked = true
			w.comeBack()
			return false, 0, err
		}
		if found {
			return true, 0, nil
		}
		again := w.worked
		w.line, w.worked = 0, false
		if !again {
			return false, w.next(), nil
		}
	}
}

// comeBack makes the worker look again, and again: the server may notice a lost connection late, and nobody tells when it
// lets go of the batch.
func (w *requestWorker) comeBack() {
	w.lost = w.lost[:0]
	for pause := 100 * time.Millisecond; pause <= time.Minute; pause *= 2 {
		w.lost = append(w.lost, time.Now().Add(pause))
	}
}

// next says after how long there is something to look for that nobody notifies of; 0: never.
func (w *requestWorker) next() (due time.Duration) {
	now := time.Now()
	for _, times := range []*[]time.Time{&w.due, &w.lost} {
		*times = slices.DeleteFunc(*times, func(at time.Time) bool { return !at.After(now) })
		for _, at := range *times {
			if wait := at.Sub(now); due == 0 || wait < due {
				due = wait
			}
		}
	}
	return due
}

// step captures, handles and settles one batch in one transaction, in two round trips beside the handler's own.
func (w *requestWorker) step(ctx context.Context) (found bool, err error) {
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	// From here on the end of ctx must not interrupt.
	finish := context.WithoutCancel(ctx)
	process := newProcess()
	// A turn ends by itself when nothing is found behind the line. Under steady load it ends once a second, so that what was put back, or
	// was committed late, gets its turn; less often when a search from the beginning takes long.
	began := time.Now()
	if began.Sub(w.began) >= max(time.Second, 20*w.lasted) {
		w.line = 0
	}
	first := w.line == 0
	opening := &pipeline{Conn: conn.Conn(), begins: true, then: "savepoint locks_handler"}
	batch, err := db.New(opening).CaptureRequest(finish, db.CaptureRequestParams{ProcessID: process, After: w.line, QueueID: w.queueID})
	err = cmp.Or(err, opening.results.Close())
	if first {
		w.began, w.lasted = began, time.Since(began)
	}
	tx := opening.results.Tx()
	defer func() {
		if conn.Conn().PgConn().TxStatus() != 'I' { // a commit in a pipeline is none of tx's
			tx.Rollback(finish)
		}
	}()
	if err != nil || len(batch) == 0 {
		return false, err
	}
	wake.Found(ctx)
	line := w.line
	w.line = max(line, batch[0].RequestID)

	last := try{batch[len(batch)-1].RequestID, batch[len(batch)-1].Tries}
	outcome, refused := w.refused[last]
	if !refused {
		outcome, err = w.run(finish, tx, batch)
	}
	settle := db.SettleRequestParams{ProcessID: process, Status: "complete"}
	if outcome != nil {
		settle.Status = "error"
		message := strings.ReplaceAll(strings.ToValidUTF8(outcome.Error(), "\uFFFD"), "\x00", "")
		settle.Message = &message
	}
	var retry *retryError
	if errors.As(outcome, &retry) && !w.exhausted(batch) {
		settle.Status, settle.Delay = "new", max(retry.delay, time.Millisecond)
	}
	if err == nil {
		closing := &pipeline{Conn: conn.Conn(), expects: len(batch), then: "commit"}
		_, err = db.New(closing).SettleRequest(finish, settle)
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "22012" { // division by zero
			err = errUnsettled
		}
		err = cmp.Or(err, closing.results.Close())
	}
	if err != nil {
		// The handler's doing, such as a deferred constraint of its tables: the same batch is settled as error in the next transaction.
		if !refused && (errors.Is(err, errEnded) || errors.Is(err, errUnsettled) || !wake.Transient(err)) {
			if w.refused == nil || len(w.refused) >= 1000 { // Others settle some of them.
				w.refused = map[try]error{}
			}
			w.refused[last] = cmp.Or(outcome, err)
			w.line = line
			if errors.Is(err, errCut) {
				w.comeBack()
			}
			return true, nil
		}
		return false, err
	}
	delete(w.refused, last)
	if settle.Status == "new" {
		w.due = append(w.due, time.Now().Add(settle.Delay))
	} else {
		w.worked = true
	}
	if outcome != nil && w.wake.OnError != nil {
		outcome = fmt.Errorf("locks: request %d of %.60q: %w", batch[0].RequestID, w.queueID, outcome)
		var panicked *panicError
		if errors.As(outcome, &panicked) {
			outcome = fmt.Errorf("%w\n%s", outcome, panicked.stack)
		}
		w.wake.OnError(outcome)
	}
	return true, nil
}

// errUnsettled is for a handler that settles or deletes requests of its batch, or begins another transaction.
var errUnsettled = errors.New("the handler took the batch away from its transaction")

// errCut is for a handler whose connection cannot be used any more.
var errCut = fmt.Errorf("%w with its connection", errEnded)

// A pipeline is a connection that sends what stands around a query together with it, in the connection's query exec mode.
type pipeline struct {
	*pgx.Conn
	begins  bool   // a transaction, before the query
	then    string // is sent after the query
	expects int    // of QueryRow, which divides by zero when the answer is another number
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

// The server compares, since what is sent after the query does not wait for its answer.
func (p *pipeline) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	sql = fmt.Sprintf("select answer.n / (answer.n = $%d::bigint)::integer from (%s) as answer(n)", len(args)+1, sql)
	p.send(ctx, sql, append(args, p.expects))
	return p.results.QueryRow()
}

// run calls the handler. Its outcome is what to settle; err means that nothing can be settled in tx.
func (w *requestWorker) run(ctx context.Context, tx pgx.Tx, batch []db.Request) (outcome, err error) {
	outcome = w.call(ctx, givenTx{tx}, batch)
	switch {
	case tx.Conn().IsClosed() && (errors.Is(outcome, context.DeadlineExceeded) || errors.Is(outcome, context.Canceled)):
		return outcome, errCut // by a limit of the handler's own, and it would be so again
	case tx.Conn().IsClosed():
		return nil, fmt.Errorf("connection lost while handling request %d: %v", batch[0].RequestID, outcome)
	case tx.Conn().PgConn().IsBusy(): // Only closing the connection ends a query whose rows nobody has.
		return cmp.Or(outcome, errors.New("the handler left a query open: it must close its rows")), errCut
	case outcome != nil && IsRetryable(outcome):
		return nil, outcome
	}
	switch tx.Conn().PgConn().TxStatus() {
	case 'I':
		if outcome != nil {
			outcome = fmt.Errorf("%w: %w", errEnded, outcome)
		}
		return outcome, errEnded
	case 'E':
		if outcome == nil {
			outcome = errors.New("a statement failed, and the handler did not return its error")
		}
	}
	if outcome != nil {
		_, err = tx.Exec(ctx, "rollback to savepoint locks_handler")
	}
	return outcome, err
}

func (w *requestWorker) call(ctx context.Context, tx pgx.Tx, batch []db.Request) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value, debug.Stack()}
		}
	}()
	return w.handle(ctx, tx, batch)
}

// A panicError does not unwrap to what was panicked with, which must not look like a wish to try again.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func (w *requestWorker) exhausted(batch []db.Request) bool {
	for _, request := range batch {
		if int(request.Tries) >= w.attempts {
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
