package locks

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks/internal/wake"
)

const (
	retries       = 10
	shortestPause = 2 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// IsRetryable says whether err is the database's request to run the whole transaction again. That
// is SQLSTATE 40001 (serialization failure; on YugabyteDB also any conflict or restart that it
// could not hide) or 40P01 (deadlock).
func IsRetryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// retry runs attempt until it succeeds, fails with an error that is not IsRetryable, has failed
// often enough, or ctx ends. The pauses grow twofold and are random, so that two callers that met
// do not meet again.
func retry(ctx context.Context, attempt func() error) error {
	pauses := wake.Pauses{Shortest: shortestPause, Longest: longestPause}
	for n := 0; ; n++ {
		err := attempt()
		if n == retries || !IsRetryable(err) {
			return err
		}
		if ended := pauses.Sleep(ctx); ended != nil {
			return errors.Join(ended, err)
		}
	}
}
