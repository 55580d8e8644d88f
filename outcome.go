package locks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// An outcome is what became of a piece of work. The function handled makes it. It is settled, or
// kept to be settled, before anybody is told of it.
type outcome struct {
	verdict
	delay time.Duration // before a retry; 0: the kind's own
	err   error         // nil: nobody has to be told
	text  string        // of err, for the database

	conflict bool // err is IsRetryable
	late     bool // err is the end of a context
}

// A verdict is what is to be done about a piece of work.
type verdict int

const (
	workDone     verdict = iota
	workFailed           // tried again or not, by the rules of its kind
	workRetry            // tried again, as RetryAfter wishes
	workDead             // not tried again, as Permanent wishes
	workReturned         // as if it had not been captured: it failed after its worker was stopped
	workStale            // another has it, and the result was dropped
	workLost             // the result could not be settled
)

// judge is the outcome of a handler's error. The error's methods are the handler's, and may panic.
func judge(err error, stopped bool) outcome {
	if err == nil {
		return outcome{}
	}
	o := outcome{verdict: workFailed, err: err, text: message(err), conflict: IsRetryable(err)}
	o.late = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	var permanent *permanentError
	var retry *retryError
	switch {
	case stopped:
		o.verdict = workReturned
	case errors.As(err, &permanent):
		o.verdict = workDead
	case errors.As(err, &retry):
		o.verdict, o.delay = workRetry, retry.delay
	}
	return o
}

// handled calls the handler of so many pieces of work, and then after with what became of each.
// They fail together when the handler panics, ends its goroutine, or returns another number of
// errors, and when looking at one of its errors panics.
func handled(pieces int, over context.Context, handle func() []error, after func([]outcome)) {
	became, failed := make([]outcome, pieces), errGoexit
	defer func() {
		if value := recover(); value != nil {
			failed = &PanicError{value, debug.Stack()}
		}
		for n := range became {
			if failed != nil {
				became[n] = judge(failed, over.Err() != nil)
			}
		}
		after(became)
	}()
	errs := handle()
	switch {
	case errs == nil:
		errs = make([]error, pieces)
	case len(errs) != pieces:
		failed = fmt.Errorf("the handler returned %d errors for %d tasks: return one for each, or nil", len(errs), pieces)
		return
	}
	stopped := over.Err() != nil
	for n, err := range errs {
		became[n] = judge(err, stopped)
	}
	failed = nil
}

var errGoexit = errors.New("the handler ended its goroutine")

// message is an error's text as the database takes it, and keeps the beginning of.
func message(err error) string {
	text := err.Error()
	text = text[:min(len(text), 16000)]
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

// unspeakable says that a database's encoding lacks a character of what it was sent.
func unspeakable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "22P05" || pg.Code == "22021")
}

// spelled is a text in letters that every encoding has.
func spelled(text string) string {
	var plain strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			plain.WriteRune(r)
		} else {
			fmt.Fprintf(&plain, "\\u%04x", r)
		}
	}
	return plain.String()
}

// An Outcome is what became of work that has not simply been done.
type Outcome string

const (
	OutcomeRetry    Outcome = "retry"    // it is tried again
	OutcomeDead     Outcome = "dead"     // it is not: a dead letter, or a request in error
	OutcomeReturned Outcome = "returned" // as if not captured, since its worker was stopped
	OutcomeStale    Outcome = "stale"    // another has it, and this result was dropped
	OutcomeUnknown  Outcome = "unknown"  // the result could not be settled: it is done again
)

// public is a verdict for people. exhausted says that a failure has no try left.
func (o outcome) public(exhausted bool) Outcome {
	switch {
	case o.verdict == workDead || exhausted && (o.verdict == workFailed || o.verdict == workRetry):
		return OutcomeDead
	case o.verdict == workReturned:
		return OutcomeReturned
	case o.verdict == workStale:
		return OutcomeStale
	case o.verdict == workLost:
		return OutcomeUnknown
	}
	return OutcomeRetry
}

// warn is the default of OnError.
func warn(ctx context.Context, err error) {
	level, text, args := slog.LevelWarn, err.Error(), []any(nil)
	var became Outcome
	var again time.Duration
	var task *TaskError
	var request *RequestError
	switch {
	case errors.As(err, &task):
		became, again, text = task.Outcome, task.RetryIn, "locks: task failed"
		args = append(args, "queue", task.Task.QueueID, "task", task.Task.ID,
			"attempt", task.Task.Attempt, "tries", task.Task.Tries)
		err = task.Err
	case errors.As(err, &request):
		first := request.Batch[0]
		became, again, text = request.Outcome, request.RetryIn, "locks: request failed"
		args = append(args, "queue", first.QueueID, "entity", first.EntityID, "request", first.RequestID,
			"batch", len(request.Batch), "tries", first.Tries)
		err = request.Err
	}
	if became != "" {
		args = append(args, "outcome", string(became), "error", err.Error())
	}
	if became == OutcomeRetry && again > 0 {
		args = append(args, "retry_in", again)
	}
	if became == OutcomeDead {
		level = slog.LevelError
	}
	var panicked *PanicError
	if errors.As(err, &panicked) {
		args = append(args, "stack", string(panicked.Stack))
	}
	slog.Log(ctx, level, text, args...)
}

// A teller is OnError with a guard around it.
type teller struct {
	onError func(context.Context, error)
	end     *graceful
	timeout time.Duration // of one call's context
	quiet   bool          // there is an OnError, and the log is its owner's
}

// newTeller takes the log where there is no OnError.
func newTeller(onError func(context.Context, error), end *graceful, timeout time.Duration) teller {
	if onError == nil {
		return teller{onError: warn, end: end, timeout: timeout}
	}
	return teller{onError: onError, end: end, timeout: timeout, quiet: true}
}

// note says in the log what is no error: that a loop has begun, is back, or has ended.
func (t *teller) note(text, queue string) {
	if !t.quiet {
		slog.InfoContext(t.end.calls, "locks: "+text, "queue", queue)
	}
}

// tell calls OnError in a goroutine of its own, and then after. So a panic there, or the end of the
// goroutine, harms nobody. Its context outlives the loop's.
func (t *teller) tell(err error, after func()) {
	go func() {
		defer after()
		calling, cancel := t.end.call(t.timeout)
		defer cancel()
		defer func() {
			if value := recover(); value != nil {
				slog.Error("locks: OnError panicked", "panic", value, "stack", string(debug.Stack()))
			}
		}()
		t.onError(calling, err)
	}()
}

// wait tells, and returns when that is over.
func (t *teller) wait(err error) {
	told := make(chan struct{})
	t.tell(err, func() { close(told) })
	<-told
}

// ErrUnsettled is the error of a worker that has ended and could not settle what its handlers did.
// The work is done again: see WorkTasks and WorkRequests. The error is not one of ctx, as that of a
// clean stop is.
var ErrUnsettled = errors.New("the worker has ended, and could not settle all that its handlers did")
