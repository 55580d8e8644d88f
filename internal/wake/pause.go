package wake

import (
	"context"
	"math/rand/v2"
	"sync"
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
// minute. Loops that share one tell of it together.
type Complaint struct {
	Tell func(error)
	Back func() // is told that it is over. Default: nobody is.

	mu     sync.Mutex
	pauses Pauses
	next   time.Time // zero: there is none
}

// About tells of trouble, unless it is too soon for that.
func (c *Complaint) About(err error) {
	if c.due() {
		c.Tell(err)
	}
}

func (c *Complaint) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Before(c.next) {
		return false
	}
	c.pauses.Shortest, c.pauses.Longest = time.Second, time.Minute
	c.next = now.Add(c.pauses.Next())
	return true
}

// Over says that the trouble is.
func (c *Complaint) Over() {
	c.mu.Lock()
	was := !c.next.IsZero()
	c.pauses.Over()
	c.next = time.Time{}
	c.mu.Unlock()
	if was && c.Back != nil {
		c.Back()
	}
}
