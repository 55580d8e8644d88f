package locks

import (
	"context"
	"sync"
	"time"

	"github.com/seed4787c507/locks/internal/wake"
)

// A heartbeat is a context under which something is held that ends by itself when it is not
// renewed. The context ends before that can be, by this process's own monotonic clock.
type heartbeat struct {
	context.Context
	parent context.Context
	ttl    time.Duration
	renew  func(ctx context.Context) (bool, error) // false: it is lost
	lostIs error                                   // the cause of the context's end when it is lost

	mu       sync.Mutex
	deadline time.Time
	alarm    *time.Timer
	cancel   context.CancelCauseFunc
}

// heldUntil is for how long what was asked for at a time is surely held. The time is from before
// the request was sent.
func heldUntil(asked time.Time, ttl time.Duration) time.Time {
	return asked.Add(ttl - ttl/10)
}

// startHeartbeat renews what is held until a time, every third of ttl, until stop is called.
// Without renew it only ends the context in time. A renewal that fails is tried again, until a
// tenth of ttl is left. stop says whether it is lost.
func startHeartbeat(ctx context.Context, until time.Time, ttl time.Duration, lostIs error,
	renew func(context.Context) (bool, error),
) (held *heartbeat, stop func() (lost bool)) {
	h := &heartbeat{parent: ctx, deadline: until, ttl: ttl, renew: renew, lostIs: lostIs}
	h.Context, h.cancel = context.WithCancelCause(ctx)
	h.alarm = time.AfterFunc(time.Until(h.deadline), h.lose)
	renewing := func() {}
	if renew != nil { // What is short ends before there is a goroutine for it.
		renewals, end := context.WithCancel(h.Context)
		ended := make(chan struct{})
		first := time.AfterFunc(ttl/3, func() {
			defer close(ended)
			h.beat(renewals)
		})
		renewing = func() {
			end()
			if !first.Stop() {
				<-ended
			}
		}
	}
	return h, func() bool {
		lost := h.lost()
		renewing()
		h.alarm.Stop()
		h.cancel(nil)
		return lost
	}
}

func (h *heartbeat) beat(ctx context.Context) {
	for {
		pause, asked := h.ttl/3, time.Now()
		renewed, err := h.tryRenew(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = h.ttl / 30
		case !renewed:
			h.lose()
			return
		default:
			h.extend(heldUntil(asked, h.ttl))
			pause -= time.Since(asked)
		}
		if wake.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// longestRenewal is short, as others wait for the same few connections.
const longestRenewal = 5 * time.Second

// tryRenew gives up early enough for another try on another connection.
func (h *heartbeat) tryRenew(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(h.ttl/4, longestRenewal))
	defer cancel()
	return h.renew(ctx)
}

func (h *heartbeat) extend(deadline time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(h.deadline) {
		h.deadline = deadline
		h.alarm.Reset(time.Until(deadline))
	}
}

func (h *heartbeat) lost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !time.Now().Before(h.deadline)
}

func (h *heartbeat) lose() {
	h.mu.Lock()
	h.deadline = time.Time{}
	h.mu.Unlock()
	h.cancel(h.lostIs)
}

// Err is not nil as soon as the deadline has passed, also when a process that was stopped has just
// been continued and its timers have yet to fire.
func (h *heartbeat) Err() error {
	if h.Context.Err() == nil && h.lost() {
		h.lose()
	}
	if err := h.Context.Err(); err != nil {
		return err
	}
	return h.parent.Err() // which may know by itself, too
}
