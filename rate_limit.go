package locks

import (
	"context"
	"fmt"
	"time"

	"github.com/seed4787c507/locks/db"
)

// A RateLimit gives each name a bucket of tokens, which are taken by calls and come back evenly.
type RateLimit struct {
	conn  db.DBTX
	rate  int64
	per   time.Duration
	burst int64
}

// RateLimitOptions are what a RateLimit can do without.
type RateLimitOptions struct {
	// Burst is how many tokens a bucket holds: what can be taken at once, by somebody who has
	// taken none for long. 1 to 3,000,000,000. Default: rate.
	Burst int64
}

// NewRateLimit returns the RateLimit that gives a bucket rate tokens back per per. It has 1 to
// 3,000,000,000 tokens, and per is at least a microsecond. The limits travel with each call: a
// program that is deployed with others changes them, and what was taken counts. NewDurableMutex
// says what happens on a pool, on a transaction and on a connection. Here a pool is what you want:
// whoever takes from a bucket waits for an open transaction that has taken from it.
func NewRateLimit(conn db.DBTX, rate int64, per time.Duration, opts *RateLimitOptions) RateLimit {
	limit := RateLimit{conn: conn, rate: rate, per: per}
	if opts != nil {
		limit.burst = opts.Burst
	}
	return limit
}

// Take takes cost tokens (0: 1) from the bucket of that name, and says whether they were there.
// Granted: they are taken. Remaining: how many there are now. RetryAfter: 0, or after how long the
// same call is granted, unless somebody else takes some in between. A bucket that is new is made,
// and is full.
//
// Contention: a denial is immediate and writes nothing. Else it waits for a transaction that has
// taken from the bucket and not ended. On a pool the grant stands when Take returns. On a
// transaction it stands when that commits, and rolled back it never was.
//
// Errors are those of DurableMutex.Acquire, and 22023 for bad limits, or for a cost above the
// burst, which would never be granted.
func (l RateLimit) Take(ctx context.Context, name string, cost int64) (taken db.Taken, err error) {
	err = call(ctx, l.conn, func(q *db.Queries) (err error) {
		taken, err = q.Take(ctx,
			db.TakeParams{LimitID: name, Rate: l.rate, Per: l.per, Burst: l.burst, Cost: cost},
		)
		return err
	})
	if err != nil {
		return db.Taken{}, fmt.Errorf("locks: take tokens %.60q: %w", name, err)
	}
	return taken, nil
}

// Wait takes cost tokens as soon as they are there. It sleeps as long as each denial says, without
// a connection of the pool. Nobody is in a queue: who comes at the right moment is granted. When
// ctx ends before the tokens can be there, it returns context.DeadlineExceeded at once. Other
// errors are those of Take and of ctx.
func (l RateLimit) Wait(ctx context.Context, name string, cost int64) error {
	for {
		taken, err := l.Take(ctx, name, cost)
		if err != nil || taken.Granted {
			return err
		}
		if end, bounded := ctx.Deadline(); bounded && time.Until(end) < taken.RetryAfter {
			return fmt.Errorf("locks: take tokens %.60q: %s too long to wait: %w", name,
				taken.RetryAfter, context.DeadlineExceeded,
			)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("locks: take tokens %.60q: %w", name, ctx.Err())
		case <-time.After(taken.RetryAfter):
		}
	}
}
