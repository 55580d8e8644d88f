package locks

import (
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

// checkWorker refuses what no worker can work with. 0 stands for a default.
func checkWorker(handler bool, grace, callTimeout, poll, blind time.Duration, counts map[string]int) error {
	if !handler {
		return errors.New("the handler is nil: pass a function")
	}
	for name, value := range map[string]time.Duration{"Grace": grace, "CallTimeout": callTimeout, "Poll": poll, "Blind": blind} {
		least := shortestOption
		if name == "Grace" {
			least = 0
		}
		if value != 0 && value < least {
			return fmt.Errorf("%s is %v: pass at least %v, or 0 for the default", name, value, least)
		}
	}
	for name, value := range counts {
		if value < 0 {
			return fmt.Errorf("%s is %d: pass at least 1, or 0 for the default", name, value)
		}
	}
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
