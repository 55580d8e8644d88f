package wake

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Transient says whether err can be gone at the next attempt: the connection failed or was too slow, the server is going down, is full
// or is a standby for now, or the database asked for a retry or ran into a timeout. Not so a pool that its owner has closed, which pgx
// says in words only.
func Transient(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return !errors.Is(err, context.Canceled) && !strings.HasSuffix(err.Error(), "closed pool")
	}
	return slices.Contains([]string{"08", "40", "53", "57", "58"}, pg.Code[:min(2, len(pg.Code))]) ||
		pg.Code == "25006" || pg.Code == "55P03" || pg.Code == "XX000" && strings.Contains(pg.Message, "cache lookup failed")
}

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

// A complaint is about trouble that lasts: told at once, and then after pauses that grow to a minute.
type complaint struct {
	tell  func(error)
	pause time.Duration
	next  time.Time
}

func (c *complaint) about(err error) {
	if now := time.Now(); !now.Before(c.next) {
		c.pause = min(max(2*c.pause, time.Second), time.Minute)
		c.next = now.Add(c.pause)
		c.tell(err)
	}
}

// over says that the trouble is.
func (c *complaint) over() { c.pause, c.next = 0, time.Time{} }
