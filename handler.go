package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// RetryAfter makes the error of a handler of WorkTasks, WorkTaskBatches or WorkRequests a wish to
// try again, by any worker, no earlier than delay from now. The delay is at least a millisecond, at
// most 100 years. errors.Is and errors.As reach err. Nil stays nil.
func RetryAfter(delay time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryError{err: err, delay: min(max(delay, time.Millisecond), longestDelay)}
}

// longestDelay is the server's limit.
const longestDelay = 36525 * 24 * time.Hour

type retryError struct {
	err   error
	delay time.Duration
}

func (e *retryError) Error() string { return fmt.Sprintf("retry in %v: %v", e.delay, e.err) }
func (e *retryError) Unwrap() error { return e.err }

// Snooze is the error of a handler that does not want to work now: by any worker, no earlier than
// delay from now, as if the task or batch had not been captured. So it costs no try, and nobody is
// told of a failure. The delay is at least a millisecond, at most 100 years.
func Snooze(delay time.Duration) error {
	return &snoozeError{min(max(delay, time.Millisecond), longestDelay)}
}

type snoozeError struct{ delay time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("snooze for %v", e.delay) }

// Permanent makes the error of a handler one that no other try can mend, whatever RetryAfter says.
// A task becomes a dead letter at once. A request ends in error at once. errors.Is and errors.As
// reach err. Nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// A PanicError is the error of a handler that panicked. It does not unwrap to Value, which must not
// look like a wish to try again.
type PanicError struct {
	Value any
	Stack []byte
}

// Error is the panic's value without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// WorkerOptions are those of every worker. The zero value is good.
type WorkerOptions struct {
	Grace time.Duration // for running handlers after ctx has ended. Default: 10 s.
	// CallTimeout is of each call of the loop itself, a commit included; at least 10 ms.
	// Default: 10 s.
	CallTimeout time.Duration
	// Poll is the longest sleep of an idle worker; at least 10 ms. So late at most it finds what
	// nobody notified it of. Default: 30 s.
	Poll time.Duration
	// Blind is the longest sleep where notifications do not arrive; at least 10 ms. It is also that
	// of workers that capture done tasks, since nobody announces these. Default: 1 s.
	Blind time.Duration
	// OnError is told of the loop's own trouble, such as a server that cannot be reached: at once,
	// and while it lasts after pauses that grow to a minute. What became of the work itself is told
	// to Settled. Each call has a goroutine of its own and a ctx that lasts for CallTimeout, also
	// when the loop's has ended. When it panics, slog's default logger gets that. Default: slog's
	// default logger.
	OnError func(ctx context.Context, err error)
}

// complete refuses what no worker can work with, and fills in the defaults. Counts are 0 for
// theirs.
func (o *WorkerOptions) complete(handler bool, counts map[string]int) error {
	if !handler {
		return errors.New("the handler is nil: pass a function")
	}
	for name, value := range map[string]time.Duration{
		"Grace": o.Grace, "CallTimeout": o.CallTimeout, "Poll": o.Poll, "Blind": o.Blind,
	} {
		least := shortestOption
		if name == "Grace" {
			least = 0
		}
		if value != 0 && value < least {
			return fmt.Errorf("%s is %v: pass at least %v, or 0 for the default", name, value,
				least,
			)
		}
	}
	for name, value := range counts {
		if value < 0 {
			return fmt.Errorf("%s is %d: pass at least 1, or 0 for the default", name, value)
		}
	}
	o.Grace = cmp.Or(o.Grace, defaultGrace)
	o.CallTimeout = cmp.Or(o.CallTimeout, defaultCallTimeout)
	o.Poll, o.Blind = cmp.Or(o.Poll, defaultPoll), cmp.Or(o.Blind, defaultBlind)
	return nil
}

// shortestOption keeps a slip, such as a number without its unit, from being a flood of queries.
const shortestOption = 10 * time.Millisecond

// A graceful end of a loop: when the loop's context ends, what is running goes on for a while.
type graceful struct {
	handlers context.Context // ends after nine tenths of the grace period
	calls    context.Context // ends with the grace period, at least a second later, to settle
	begin    func()          // begins the grace period, if it has not begun
	end      func()          // ends everything
}

const (
	defaultGrace       = 10 * time.Second
	defaultCallTimeout = 10 * time.Second
	defaultPoll        = 30 * time.Second
	defaultBlind       = time.Second
	shortestCall       = time.Second // of those that settle at the end
)

func newGraceful(ctx context.Context, period time.Duration) *graceful {
	handlers, endHandlers := context.WithCancel(context.WithoutCancel(ctx))
	calls, endCalls := context.WithCancel(context.WithoutCancel(ctx))
	var timers [2]*time.Timer
	begin := sync.OnceFunc(func() {
		most := period - period/10
		timers[0] = time.AfterFunc(most, endHandlers)
		timers[1] = time.AfterFunc(max(period, most+shortestCall), endCalls)
	})
	stop := context.AfterFunc(ctx, begin)
	return &graceful{handlers: handlers, calls: calls, begin: begin, end: func() {
		stop()
		begin()
		for _, timer := range timers {
			timer.Stop()
		}
		endHandlers()
		endCalls()
	}}
}

// call bounds one call of a loop. Who comes when the time is up has one short call.
func (g *graceful) call(timeout time.Duration) (context.Context, context.CancelFunc) {
	if g.calls.Err() != nil {
		return context.WithTimeout(context.WithoutCancel(g.calls), shortestCall)
	}
	return context.WithTimeout(g.calls, timeout)
}
