//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks"
)

// patience is how long a call may take. Whoever gives up has an unknown outcome: the server may still be at it.
const patience = 5 * time.Second

// A session is one worker: a connection, its record, and its dice.
type session struct {
	*recorder
	ctx           context.Context
	conn          *pgx.Conn
	url, database string
	dice          *rand.Rand
	die           func(point string) // ends the process with SIGKILL, now and then
	known         map[string]bool    // what this worker has created
	stale         []stale            // attempts that it left, to be settled too late
	left          []left             // leases that it left
	linger        time.Duration
	warn          func(error)
}

// errStopped says that the run is over while a call's outcome was being found out.
var errStopped = errors.New("the run is over")

func connect(ctx context.Context, url, database string) (*pgx.Conn, error) {
	config, err := configFor(url, "torture_app", database)
	if err != nil {
		return nil, err
	}
	config.DialFunc = locks.Dial
	config.ConnectTimeout = 3 * time.Second
	return pgx.ConnectConfig(ctx, config)
}

// configFor is the address of a database for a role; empty: for the role that the address has.
func configFor(url, role, database string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if role != "" {
		config.User = role
	}
	config.Database = database
	return config, nil
}

// connected connects the session again until it can.
func (s *session) connected() error {
	for s.conn == nil || s.conn.IsClosed() {
		if s.ctx.Err() != nil {
			return errStopped
		}
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		conn, err := connect(ctx, s.url, s.database)
		cancel()
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		s.conn = conn
	}
	return nil
}

func (s *session) close() {
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.conn.Close(ctx)
	}
}

// tell says what a call's error means for its outcome. An error that the server reports undid the call's transaction; one that ended
// the connection tells nothing.
func (s *session) tell(err error) outcome {
	if err == nil {
		return yes
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return no
	}
	if pgconn.SafeToRetry(err) {
		return failed
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR" {
		if s.warn != nil && !expected[pg.Code] {
			s.warn(err)
		}
		if pg.Code == "P0002" {
			return no // What it is about is not there: to ask again would not help.
		}
		return failed
	}
	return unknown
}

// expected are the errors that faults bring with them; what else the server reports is shown.
var expected = map[string]bool{
	"40001": true, "40P01": true, "55P03": true, "57014": true, "25006": true, "53100": true, "53300": true, "57P01": true, "57P02": true, "57P03": true,
	"LK001": true, "58030": true,
}

// ask runs one statement and scans its row: yes with a row, no without.
func (s *session) ask(dest []any, sql string, args ...any) (outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := s.conn.QueryRow(ctx, sql, args...).Scan(dest...)
	return s.tell(err), err
}

// truth runs one statement that answers true or false.
func (s *session) truth(sql string, args ...any) outcome {
	var granted bool
	result, _ := s.ask([]any{&granted}, sql, args...)
	if result == yes && !granted {
		return no
	}
	return result
}

func (s *session) exec(sql string, args ...any) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.conn.Exec(ctx, sql, args...)
	return s.tell(err)
}

// A statement of a pipeline. Without dest its rows are not looked at.
type statement struct {
	sql  string
	args []any
	dest []any
}

// pipeline sends statements in one round trip, which are one transaction unless they say otherwise.
func (s *session) pipeline(statements ...statement) (outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	batch := &pgx.Batch{}
	for _, st := range statements {
		batch.Queue(st.sql, st.args...)
	}
	results := s.conn.SendBatch(ctx, batch)
	var err error
	for _, st := range statements {
		if st.dest != nil {
			err = results.QueryRow().Scan(st.dest...)
		} else {
			_, err = results.Exec()
		}
		if err != nil {
			break
		}
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	return s.tell(err), err
}

// until asks again, on new connections if need be, until there is an answer.
func (s *session) until(ask func() outcome) (outcome, error) {
	result, _, err := s.insist(ask)
	return result, err
}

// insist is until, and says whether the answer is in doubt: a call before it had none, and may have done already what was asked for.
func (s *session) insist(ask func() outcome) (result outcome, doubt bool, err error) {
	for {
		if err := s.connected(); err != nil {
			return unknown, doubt, err
		}
		if result = ask(); result == yes || result == no {
			return result, doubt, nil
		}
		doubt = doubt || result == unknown
		if s.ctx.Err() != nil {
			return unknown, doubt, errStopped
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// slot draws an id of a kind that is in use now: most live for an epoch, some for a window. few ids mean contention.
func (s *session) slot(kind string, few int) (id string, window int) {
	at := now() - s.start
	window = windowOf(s.start, s.start+at)
	if s.dice.IntN(4) == 0 {
		return fmt.Sprintf("%s-w%d-%d", kind, window, s.dice.IntN(few)), window
	}
	return fmt.Sprintf("%s-e%d-%d", kind, at/int64(epoch), s.dice.IntN(few)), window
}

// once runs a creation that may be run again, once per worker and id.
func (s *session) once(id string, sql string, args ...any) bool {
	if s.known[id] {
		return true
	}
	if len(s.known) > 10000 {
		clear(s.known)
	}
	if s.exec(sql, args...) != yes {
		return false
	}
	s.known[id] = true
	return true
}
