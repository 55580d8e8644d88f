package locks

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/seed4787c507/locks/db"
)

// An Outcome is what became of a piece of work.
type Outcome string

const (
	OutcomeDone     Outcome = "done"
	OutcomeRetry    Outcome = "retry"    // it failed, and is tried again
	OutcomeDead     Outcome = "dead"     // it failed for good: a dead letter, or requests in error
	OutcomeSnoozed  Outcome = "snoozed"  // as if not captured, by Snooze
	OutcomeReturned Outcome = "returned" // as if not captured, since its worker was stopped
	OutcomeStale    Outcome = "stale"    // another has it, and this result was dropped
	OutcomeUnknown  Outcome = "unknown"  // the result could not be settled: it is done again
)

// A Result is what became of a piece of work, and when.
type Result struct {
	Outcome Outcome
	// Err is the handler's error or *PanicError. It is also ErrTaskLost, ErrTimedOut or
	// ErrUnsettled when that was so, and joined with the handler's. Nil: there was none.
	Err error

	// Began and Ended are of the handler, and Settled is of the result, by this process's clock.
	// Zero: it was not called, or not settled.
	Began, Ended, Settled time.Time
	// RetryAt is when it can be had again, by the database's clock. Zero: at once, or never.
	RetryAt time.Time
}

// A TaskResult is what became of a task.
type TaskResult struct {
	Result
	Task db.Task // as it was captured: since ChangedAt, and available since AvailableAt
}

// A RequestResult is what became of a batch of requests.
type RequestResult struct {
	Result
	Batch []db.Request // as it was captured
}

// ErrUnsettled is the error of a worker that has ended and could not settle what its handlers did.
// The work is done again: see WorkTasks and WorkRequests. The error is not one of ctx, as that of a
// clean stop is.
var ErrUnsettled = errors.New(
	"the worker has ended, and could not settle all that its handlers did",
)

// ErrTimedOut is the error of a task that is a dead letter since its last try ran out of time.
var ErrTimedOut = errors.New("not settled within its timeout")

// outcomes are for people. What the database does with a failure, it says itself.
var outcomes = map[verdict]Outcome{
	workDone:     OutcomeDone,
	workFailed:   OutcomeRetry,
	workRetry:    OutcomeRetry,
	workDead:     OutcomeDead,
	workSnoozed:  OutcomeSnoozed,
	workReturned: OutcomeReturned,
	workStale:    OutcomeStale,
	workLost:     OutcomeUnknown,
}

func (o outcome) result() Result {
	return Result{Outcome: outcomes[o.verdict], Err: o.err, Began: o.began, Ended: o.ended}
}

// logTask is the default of TaskOptions.Settled: what failed is logged.
func logTask(ctx context.Context, r TaskResult) {
	r.log(ctx, "locks: task failed", "queue", r.Task.QueueID, "task", r.Task.ID, "attempt",
		r.Task.Attempt, "tries", r.Task.Tries,
	)
}

// logRequests is the default of RequestOptions.Settled.
func logRequests(ctx context.Context, r RequestResult) {
	first := r.Batch[0]
	r.log(ctx, "locks: request failed", "queue", first.QueueID, "entity", first.EntityID, "request",
		first.RequestID, "batch", len(r.Batch), "tries", first.Tries,
	)
}

func (r Result) log(ctx context.Context, text string, args ...any) {
	if r.Err == nil {
		return
	}
	level := slog.LevelWarn
	if r.Outcome == OutcomeDead {
		level = slog.LevelError
	}
	args = append(args, "outcome", string(r.Outcome), "error", r.Err.Error())
	if !r.RetryAt.IsZero() {
		args = append(args, "retry_at", r.RetryAt)
	}
	var panicked *PanicError
	if errors.As(r.Err, &panicked) {
		args = append(args, "stack", string(panicked.Stack))
	}
	slog.Log(ctx, level, text, args...)
}

// warn is the default of OnError.
func warn(ctx context.Context, err error) { slog.WarnContext(ctx, err.Error()) }

// A teller calls the hooks of a worker's owner, with a guard around them.
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

// call calls a hook in a goroutine of its own, and then after. So a panic there, or the end of the
// goroutine, harms nobody. Its context outlives the loop's.
func (t *teller) call(hook func(context.Context), after func()) {
	go func() {
		defer after()
		calling, cancel := t.end.call(t.timeout)
		defer cancel()
		defer func() {
			if value := recover(); value != nil {
				slog.Error("locks: a worker's hook panicked", "panic", value, "stack",
					string(debug.Stack()),
				)
			}
		}()
		hook(calling)
	}()
}

// wait calls a hook, and returns when that is over.
func (t *teller) wait(hook func(context.Context)) {
	told := make(chan struct{})
	t.call(hook, func() { close(told) })
	<-told
}

// of is OnError with an error.
func (t *teller) of(err error) func(context.Context) {
	return func(ctx context.Context) { t.onError(ctx, err) }
}
