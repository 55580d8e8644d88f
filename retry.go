package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
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

// ErrOutcomeUnknown says that a commit was asked for, and that the answer is not known: the
// connection broke, the server ended it, or ctx ended first. It has happened, or not, or is still
// to happen. The error is joined with that of the connection, and such a call is never repeated by
// itself, but for those of the loops of workers.
var ErrOutcomeUnknown = errors.New(
	"the outcome is unknown: the commit was asked for, and not answered",
)

// unanswered joins the error of a call that ends a transaction with ErrOutcomeUnknown, unless it
// was not sent, or the server says that it failed.
func unanswered(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil || pgconn.SafeToRetry(err):
		return err
	case errors.As(err, &pg):
		if pg.SeverityUnlocalized == "ERROR" && pg.Code != "40003" {
			return err
		}
	case errors.Is(err, pgx.ErrNoRows),
		errors.Is(err, pgx.ErrTxClosed),
		errors.Is(err, pgx.ErrTxCommitRollback):
		return err // There was an answer.
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}

// whole says that a call on conn is a transaction of its own.
func whole(conn db.DBTX) bool {
	switch conn := conn.(type) {
	case *pgxpool.Pool:
		return true
	case *pgxpool.Conn:
		return whole(conn.Conn())
	case *pgx.Conn:
		return conn.PgConn().TxStatus() == 'I'
	}
	return false
}

// call makes a call on any handle. On a pool it makes it again when the database asks for that.
func call(ctx context.Context, conn db.DBTX, once func(*db.Queries) error) error {
	committing := func(conn db.DBTX) error { return unanswered(once(db.New(conn))) }
	switch pool, pooled := conn.(*pgxpool.Pool); {
	case pooled:
		return retry(ctx, func() error { return wake.Call(ctx, pool, committing) })
	case whole(conn):
		return committing(conn)
	}
	return once(db.New(conn))
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
