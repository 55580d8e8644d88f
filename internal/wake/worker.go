// Package wake runs the loops of workers: look for work, and sleep without a query until a producer
// notifies.
//
// The rules are in SQL: see lock_internal.wake and lock.start_idling.
package wake

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/calls"
)

// Options tune Watch. The zero value is good.
type Options struct {
	// Poll is the longest sleep of an idle worker that is notified. Default: 30 s.
	Poll time.Duration
	// Blind is the longest sleep where notifications do not arrive. Default: 1 s, and never more
	// than Poll.
	Blind time.Duration
	// Linger tells steady work, which comes again sooner, from single work. A worker that has found
	// steady work is off the list of the idle, and looks again after short pauses, each as long as
	// the work is ago, before it lists itself again: so that a steady load sends no notifications.
	// One that finds single work stays listed: so that it takes few calls. Default: 10 ms.
	Linger time.Duration
	// CallTimeout bounds every call that Watch makes by itself. Default: 10 s.
	CallTimeout time.Duration
	// Stir ends a sleep as a notification does. Default: nothing else does.
	Stir <-chan struct{}
	// Due says after how long there will be work without anybody's notification (0: unknown). It is
	// asked before each sleep, after a look that found nothing. Default: never. Its errors are as
	// those of a Look.
	Due func(ctx context.Context) (time.Duration, error)
	// Revisit makes a worker that was woken, and found nothing, look again: after a second, and
	// then after pauses that grow twofold. Whoever had what it was woken for may be cut off, and
	// nobody tells when the server lets go of it.
	Revisit bool
	// Trouble is told of what the loop survives, and that it is over. Default: nobody is.
	Trouble *Complaint
}

// Look looks for work and does it, or lets it be done. It returns whether there was any. An error
// that is Transient makes Watch look again after a pause; any other but ErrBusy ends it. When it
// takes long it must bound its own calls.
type Look func(ctx context.Context) (found bool, err error)

// ErrBusy is the answer of a Look that did not look, as there has been no room for work since a
// while. Watch takes the worker off the list of the idle, and calls Look again.
var ErrBusy = errors.New("there is no room for more work")

const (
	shortestPause = time.Millisecond
	shortestBreak = 2 * time.Millisecond
	longestPause  = time.Second
	callTimeout   = 10 * time.Second
	answering     = 5 * time.Second // of a connection that lives
)

// Watch calls look again and again while it finds work, sleeps otherwise until a producer of the
// queue notifies, and returns ctx's error when ctx ends, or the first error of look that is not
// Transient.
//
// No change that was made before, or is notified by lock_internal.wake, waits longer than it takes
// to call look, and after work no longer than opts.Linger beside that; where notifications do not
// arrive it waits at most opts.Blind.
//
// A worker that is listed as idle is taken off the list after it has found work twice, in looks
// that follow each other or within opts.Linger.
func Watch(ctx context.Context, pool *pgxpool.Pool, channel, queueID string, opts Options,
	look Look,
) error {
	if opts.Poll <= 0 {
		opts.Poll = longestPoll
	}
	if opts.Blind <= 0 {
		opts.Blind = time.Second
	}
	opts.Blind = min(opts.Blind, opts.Poll)
	if opts.Linger <= 0 {
		opts.Linger = 10 * time.Millisecond
	}
	if opts.CallTimeout <= 0 {
		opts.CallTimeout = callTimeout
	}
	if opts.Due == nil {
		opts.Due = func(context.Context) (time.Duration, error) { return 0, nil }
	}
	if opts.Trouble == nil {
		opts.Trouble = &Complaint{Tell: func(error) {}}
	}
	l, leave := attach(pool, opts.Poll)
	defer leave()
	w := &worker{
		pool: pool, channel: channel, queueID: queueID, name: rand.Text(), opts: opts,
		look: look,
	}
	w.pauses = Pauses{Shortest: shortestPause, Longest: longestPause}
	w.listener, w.wakes = l, l.subscribe(channel+" "+queueID)
	defer l.unsubscribe(channel+" "+queueID, w.wakes)
	select {
	case <-l.tried:
	case <-ctx.Done():
		return ctx.Err()
	}
	return w.run(ctx)
}

type worker struct {
	pool             *pgxpool.Pool
	listener         *listener
	wakes            chan struct{}
	channel, queueID string
	name             string
	opts             Options
	look             Look

	// the listener's epoch when this worker was listed as idle; 0: it is not listed
	listed   int
	listedAt time.Time // when that was
	// the list may hold a line of this worker, asked for or not: a call may fail after its commit
	line   bool
	open   []int64 // transactions that may have missed the line
	pauses Pauses  // between two questions about them
	// how soon to look again for what others seem to have in hand; 0: when Poll has passed
	passed time.Duration
}

func (w *worker) run(ctx context.Context) error {
	defer w.unlist(ctx)
	pauses := Pauses{Shortest: shortestPause, Longest: longestPause}
	worked, again := time.Time{}, false
	for {
		// A notification from here on leads to another look; one from before is answered by this
		// look.
		for _, wakes := range []<-chan struct{}{w.wakes, w.opts.Stir} {
			select {
			case <-wakes:
			default:
			}
		}
		epoch := w.listener.epoch()
		found, err := w.look(ctx)
		steady := again || time.Since(worked) < w.opts.Linger
		again = found
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrBusy):
			w.unlist(ctx)
			continue
		case err != nil:
		case found:
			if steady {
				w.unlist(ctx)
			}
			w.passed = 0
			worked = time.Now()
			pauses.Over()
			w.opts.Trouble.Over()
			continue
		case epoch != 0 && w.listed != epoch && time.Since(worked) < w.opts.Linger:
			if _, err := w.sleep(ctx, max(time.Since(worked), shortestBreak)); err != nil {
				return err
			}
			continue
		case epoch != 0 && (w.listed != epoch || time.Since(w.listedAt) >= w.opts.Poll):
			if err = w.list(ctx, epoch); err == nil {
				continue
			}
		default:
			var due time.Duration
			if due, err = w.opts.Due(ctx); err == nil {
				pauses.Over()
				w.opts.Trouble.Over()
				if err := w.idle(ctx, epoch, due); err != nil {
					return err
				}
				continue
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !Transient(err) {
			return err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			Weed(w.pool) // The network may be gone, and then what is idle in the pool is no better.
		}
		w.opts.Trouble.About(err)
		if err := pauses.Sleep(ctx); err != nil {
			return err
		}
	}
}

// list makes producers notify this worker. The caller looks for work once more afterwards.
func (w *worker) list(ctx context.Context, epoch int) error {
	ctx, cancel := context.WithTimeout(ctx, w.opts.CallTimeout)
	defer cancel()
	w.listed, w.listedAt, w.line = 0, time.Now(), true
	err := Call(ctx, w.pool, func(conn db.DBTX) (err error) {
		err = calls.New(conn).StartIdling(ctx, calls.StartIdlingParams{
			Channel: w.channel,
			QueueID: w.queueID,
			Worker:  w.name,
			Lasting: 2*w.opts.Poll + longestPause,
		})
		if err == nil {
			w.open, err = calls.New(conn).OpenTransactions(ctx, nil)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list as idle: %w", err)
	}
	w.listed = epoch
	w.pauses.Over()
	return nil
}

// unlist takes the worker off the list. It is tried once: a line that stays stops counting by
// itself.
func (w *worker) unlist(ctx context.Context) {
	if !w.line {
		return
	}
	w.listed, w.line, w.open = 0, false, nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUp)
	defer cancel()
	Call(ctx, w.pool, func(conn db.DBTX) error {
		_, err := calls.New(conn).StopIdling(ctx, calls.StopIdlingParams{
			Channel: w.channel, QueueID: w.queueID, Worker: w.name,
		})
		return err
	})
}

// idle sleeps until there may be something to do. Who was notified of a request and did not get it
// comes back after pauses that grow twofold: whoever has it may be cut off, and nobody tells when
// the server lets go of it.
func (w *worker) idle(ctx context.Context, epoch int, due time.Duration) error {
	longest := w.opts.Blind
	if epoch != 0 {
		longest = w.opts.Poll - time.Since(w.listedAt)
	}
	again := w.passed > 0 && w.passed < longest
	if again {
		longest = w.passed
	}
	if due > 0 {
		longest = min(longest, due)
	}
	end := time.Now().Add(longest)
	for {
		left := time.Until(end)
		if len(w.open) > 0 {
			left = min(left, w.pauses.Next())
		}
		woken, err := w.sleep(ctx, left)
		if woken && w.opts.Revisit {
			w.passed = longestPause
		} else if again && time.Until(end) <= 0 {
			w.passed *= 2
		}
		if err != nil || woken || len(w.open) == 0 {
			return err
		}
		calling, cancel := context.WithTimeout(ctx, w.opts.CallTimeout)
		var still []int64
		err = Call(calling, w.pool, func(conn db.DBTX) (err error) {
			still, err = calls.New(conn).OpenTransactions(calling, w.open)
			return err
		})
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			w.opts.Trouble.About(fmt.Errorf("lock.open_transactions: %w", err))
			w.listed = 0
			return nil
		}
		gone := len(still) < len(w.open)
		w.open = still
		if gone || time.Until(end) <= 0 {
			return nil
		}
	}
}

// sleep pauses, and says whether something else ended it.
func (w *worker) sleep(ctx context.Context, pause time.Duration) (woken bool, err error) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-w.wakes:
		return true, nil
	case <-w.opts.Stir:
		return true, nil
	case <-timer.C:
		return false, nil
	}
}
