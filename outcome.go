package locks

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// An outcome is what became of a piece of work. The function handled makes it. It is settled, or
// kept to be settled, before anybody is told of it.
type outcome struct {
	verdict
	delay time.Duration // before a retry; 0: the kind's own
	err   error         // of the handler; nil for who snoozes
	text  string        // of err, for the database

	began, ended time.Time // of the handler

	conflict bool // err is IsRetryable
	late     bool // err is the end of a context
}

// A verdict is what is to be done about a piece of work.
type verdict int

const (
	workDone     verdict = iota
	workFailed           // tried again or not, by the rules of its kind
	workRetry            // tried again, as RetryAfter wishes
	workDead             // not tried again, as Permanent wishes
	workSnoozed          // as if it had not been captured, and not before delay, as Snooze wishes
	workReturned         // as if it had not been captured: it failed after its worker was stopped
	workStale            // another has it, and the result was dropped
	workLost             // the result could not be settled
)

// judge is the outcome of a handler's error. The error's methods are the handler's, and may panic.
func judge(err error, stopped bool) outcome {
	if err == nil {
		return outcome{}
	}
	o := outcome{verdict: workFailed, err: err, text: message(err), conflict: IsRetryable(err)}
	o.late = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	var permanent *permanentError
	var snooze *snoozeError
	var retry *retryError
	switch {
	case errors.As(err, &permanent) && !stopped:
		o.verdict = workDead
	case errors.As(err, &snooze):
		return outcome{verdict: workSnoozed, delay: snooze.delay}
	case stopped:
		o.verdict = workReturned
	case errors.As(err, &retry):
		o.verdict, o.delay = workRetry, retry.delay
	}
	return o
}

// handled calls the handler of so many pieces of work, and then after with what became of each.
// They fail together when the handler panics, ends its goroutine, or returns another number of
// errors, and when looking at one of its errors panics.
func handled(pieces int, over context.Context, handle func() []error, after func([]outcome)) {
	became, failed, began := make([]outcome, pieces), errGoexit, time.Now()
	defer func() {
		if value := recover(); value != nil {
			failed = &PanicError{value, debug.Stack()}
		}
		ended := time.Now()
		for n := range became {
			if failed != nil {
				became[n] = judge(failed, over.Err() != nil)
			}
			became[n].began, became[n].ended = began, ended
		}
		after(became)
	}()
	errs := handle()
	switch {
	case errs == nil:
		errs = make([]error, pieces)
	case len(errs) != pieces:
		failed = fmt.Errorf(
			"the handler returned %d errors for %d tasks: return one for each, or nil", len(errs),
			pieces,
		)
		return
	}
	stopped := over.Err() != nil
	for n, err := range errs {
		became[n] = judge(err, stopped)
	}
	failed = nil
}

var errGoexit = errors.New("the handler ended its goroutine")

// message is an error's text as the database takes it, and keeps the beginning of.
func message(err error) string {
	text := err.Error()
	text = text[:min(len(text), 16000)]
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

// unspeakable says that a database's encoding lacks a character of what it was sent.
func unspeakable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "22P05" || pg.Code == "22021")
}

// spelled is a text in letters that every encoding has.
func spelled(text string) string {
	var plain strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			plain.WriteRune(r)
		} else {
			fmt.Fprintf(&plain, "\\u%04x", r)
		}
	}
	return plain.String()
}
