package tests

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// requestProcess makes a process id.
func requestProcess() (id [16]byte) {
	rand.Read(id[:])
	return id
}

// A requestWorker is a session that captures in its own transactions, as a back end does.
type requestWorker struct {
	*session
	process [16]byte
	line    int64
}

func newRequestWorker(t *testing.T, e *env) *requestWorker {
	return &requestWorker{session: e.session(t), process: requestProcess()}
}

// capture begins a transaction unless one is open, captures after the line, and returns the ids; the line moves along.
func (w *requestWorker) capture(queue string) []int64 {
	w.t.Helper()
	if w.conn.PgConn().TxStatus() == 'I' {
		w.exec("begin")
	}
	w.process = requestProcess()
	rows, err := w.conn.Query(ctx, "select request_id from lock.capture_request($1, $2, $3)", w.process, w.line, queue)
	must(w.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	must(w.t, err)
	if len(ids) > 0 {
		w.line = ids[0]
	}
	return ids
}

// takes captures and compares.
func (w *requestWorker) takes(queue string, want ...int64) {
	w.t.Helper()
	if got := w.capture(queue); !slices.Equal(got, want) {
		w.t.Fatalf("captured %v, want %v", got, want)
	}
}

// settles settles what was captured last, and commits.
func (w *requestWorker) settles(status string, want int64) {
	w.t.Helper()
	answers(w.session, want, "select lock.settle_request($1, $2)", w.process, status)
	w.exec("commit")
}

func requestRows(s *session, sql string, args ...any) string {
	s.t.Helper()
	rows, err := s.conn.Query(ctx, sql, args...)
	must(s.t, err)
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		var words []string
		for _, value := range values {
			words = append(words, fmt.Sprint(value))
		}
		return strings.Join(words, " "), err
	})
	must(s.t, err)
	return strings.Join(lines, "\n")
}

func TestRequestWalkThrough(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		front := e.session(t)
		enqueue := func(kind, entity string) {
			t.Helper()
			front.exec("select lock.enqueue($1, $2)", kind, entity)
		}
		// The picture: the first three boxes are one spreadsheet, the next four another, whose create is complete.
		enqueue("create", "red")
		enqueue("update", "red")
		enqueue("update", "red")
		enqueue("create", "blue")
		_, err := e.admin.Exec(ctx, "update lock.request set request_status = 'complete', settled_at = clock_timestamp(), head = false where request_id = 4")
		must(t, err)
		enqueue("update", "blue")
		enqueue("update", "blue")
		enqueue("create", "green")
		enqueue("update", "blue")

		a, b := newRequestWorker(t, e), newRequestWorker(t, e)
		a.takes("default", 1)
		// B skips 2 and 3, whose spreadsheet A creates, does not stop at 4, and takes 5 with all updates of its spreadsheet.
		b.takes("default", 5, 6, 8)
		// Nobody sees in-progress.
		answers(front, "create new|update new|update new", `select string_agg(request_type || ' ' || request_status, '|' order by request_id)
			from lock.request_history('red')`)
		b.settles("complete", 3)
		b.takes("default", 7)
		b.settles("error", 1)
		b.takes("default")
		a.settles("complete", 1)
		// B found work, so it starts again from the beginning, and finds what it had to skip.
		b.line = 0
		b.takes("default", 2, 3)
		a.takes("default")
		a.line = 0
		a.takes("default")
		b.settles("complete", 2)
		b.line = 0
		b.takes("default")
		answers(e.sessionAs(t, e.super), "complete complete complete complete complete complete error complete",
			"select string_agg(request_status::text, ' ' order by request_id) from lock.request")
		answers(e.sessionAs(t, e.super), int64(0), "select count(*) from lock.request where head")
	})
}

var _ = context.Background
var _ = errors.New
