package wake

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pauses between attempts grow twofold, from Shortest to Longest. Each is random, from half of its
// length to one and a half, so that those who failed together do not come back together.
type Pauses struct {
	Shortest, Longest time.Duration

	last time.Duration
}

// Next is the next pause.
func (p *Pauses) Next() time.Duration {
	p.last = min(max(2*p.last, p.Shortest), p.Longest)
	return p.last/2 + rand.N(p.last)
}

// Over makes the next pause a short one.
func (p *Pauses) Over() { p.last = 0 }

// Sleep pauses, or returns ctx's error as soon as ctx ends.
func (p *Pauses) Sleep(ctx context.Context) error { return Sleep(ctx, p.Next()) }

// Sleep pauses, or returns ctx's error as soon as ctx ends.
func Sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A Complaint is about trouble that lasts: told at once, and then after pauses that grow to a
// minute.
type Complaint struct {
	Tell func(error)
	Back func() // is told that it is over. Default: nobody is.

	pauses Pauses
	next   time.Time
}

// About tells of trouble, unless it is too soon for that.
func (c *Complaint) About(err error) {
	if now := time.Now(); !now.Before(c.next) {
		c.pauses.Shortest, c.pauses.Longest = time.Second, time.Minute
		c.next = now.Add(c.pauses.Next())
		c.Tell(err)
	}
}

// Over says that the trouble is.
func (c *Complaint) Over() {
	if !c.next.IsZero() && c.Back != nil {
		c.Back()
	}
	c.pauses.Over()
	c.next = time.Time{}
}
