package wake

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Subscribe receives on the returned channel after each notification on channel with this payload, and after anything that may
// have made it miss one, until the returned function is called. It returns once it listens, or could not for now: who needs to
// be sure must look for itself from time to time.
func Subscribe(ctx context.Context, pool *pgxpool.Pool, channel, payload string) (<-chan struct{}, func(), error) {
	l := attach(pool)
	topic := channel + " " + payload
	wakes := l.subscribe(topic)
	unsubscribe := func() {
		l.unsubscribe(topic, wakes)
		l.detach()
	}
	select {
	case <-l.tried:
	case <-ctx.Done():
		unsubscribe()
		return nil, nil, ctx.Err()
	}
	select {
	case <-wakes: // That it listens now.
	default:
	}
	return wakes, unsubscribe, nil
}
