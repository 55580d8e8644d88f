package tests

import (
	"crypto/rand"
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

// requestOpenProducer lets a follower commit after its head was settled, and says whether it is ever found.
func requestOpenProducer(t *testing.T, e *env) bool {
	t.Helper()
	a, b, w := e.session(t), e.session(t), newRequestWorker(t, e)
	a.exec("select lock.enqueue('update', 'e')")
	b.exec("begin")
	b.exec("select lock.enqueue('update', 'e')")
	w.takes("default", 1)
	w.settles("complete", 1)
	w.line = 0
	w.takes("default")
	w.exec("commit")
	b.exec("commit")
	found := slices.Equal(w.capture("default"), []int64{2})
	w.exec("rollback")
	return found
}

// requestStaleHead lets a producer lock an old version of a head while a worker takes it off, and says whether its request
// is found. PostgreSQL locks a row that somebody is changing as it was before, when the change does not touch the key; and
// when it had to wait for a later version, it still returns the old one.
func requestStaleHead(t *testing.T, e *env) bool {
	t.Helper()
	a, b, p, w := e.session(t), e.session(t), e.session(t), newRequestWorker(t, e)
	mutate(t, e, "capture_request", "and current_setting('lock.heads_kept', true) is distinct from 'true'", "") // so that a producer can wait
	a.exec("select lock.enqueue('update', 'e')")
	b.exec("begin")
	b.exec("select lock.enqueue('update', 'e')")
	w.takes("default", 1)
	answers(w.session, int64(1), "select lock.settle_request($1)", w.process) // the head stays: b counts on it
	b.exec("commit")
	w.line = 0
	w.takes("default", 2)
	w.exec("savepoint s")
	answers(w.session, int64(1), "select lock.settle_request($1)", w.process)
	w.exec("release savepoint s")
	waits := p.start("select lock.enqueue('update', 'e')").blocked()
	w.exec("commit")
	waits.ends()
	w.line = 0
	found := slices.Equal(w.capture("default"), []int64{3})
	w.exec("rollback")
	return found
}

func TestRequestHeads(t *testing.T) {
	t.Parallel()
	const outstanding = "select count(*) from lock.request where head"
	t.Run("a follower that commits after its head was settled is found", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			if !requestOpenProducer(t, e) {
				t.Fatal("request 2 is lost")
			}
			w := newRequestWorker(t, e)
			w.takes("default", 2)
			w.settles("complete", 1)
			answers(e.sessionAs(t, e.super), int64(0), outstanding)
		})
	})
	t.Run("the checker catches a worker that takes every head off", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "capture_request", "for update skip locked", "")
		if requestOpenProducer(t, e) {
			t.Fatal("found without the lock")
		}
	})
	t.Run("a producer looks again at the head that it locked", func(t *testing.T) {
		t.Parallel()
		if !requestStaleHead(t, open(t, advisory)) {
			t.Fatal("request 3 is lost")
		}
	})
	t.Run("the checker catches a producer that does not", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "add_request", "where request.request_id = leader\n              and request.head", "where true")
		if requestStaleHead(t, e) {
			t.Fatal("found without the second look")
		}
	})
	t.Run("a mark whose producer rolled back is tidied away", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b, w, super := e.session(t), e.session(t), newRequestWorker(t, e), e.sessionAs(t, e.super)
		a.exec("select lock.enqueue('update', 'e')")
		b.exec("begin")
		b.exec("select lock.enqueue('update', 'e')")
		w.takes("default", 1)
		w.settles("complete", 1)
		answers(super, int64(1), outstanding)
		w.line = 0
		w.takes("default")
		w.exec("commit")
		answers(super, int64(1), outstanding)
		b.exec("rollback")
		w.takes("default")
		w.exec("commit")
		answers(super, int64(0), outstanding)
	})
	t.Run("neither producers nor workers wait for each other", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, b, w, v := e.session(t), e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
			for _, s := range []*session{a, b, w.session, v.session} {
				s.exec("set lock_timeout = '1ms'")
			}
			a.exec("begin")
			a.exec("select lock.enqueue('update', 'e')") // 1
			b.exec("begin")
			b.exec("select lock.enqueue('update', 'e')") // 2
			a.exec("commit")
			w.takes("default", 1)
			b.exec("select lock.enqueue('update', 'e')") // 3
			b.exec("commit")
			v.takes("default")
			v.exec("rollback")
			a.exec("select lock.enqueue('update', 'e')") // 4
			b.exec("begin isolation level repeatable read")
			b.exec("select lock.enqueue('update', 'e')") // 5
			answers(w.session, int64(1), "select lock.settle_request($1)", w.process)
			a.exec("select lock.enqueue('update', 'e')") // 6
			b.exec("select lock.enqueue('update', 'e')") // 7
			v.takes("default")
			v.exec("rollback")
			w.exec("commit")
			v.takes("default", 2, 3, 4, 6)
			b.exec("commit")
			v.settles("complete", 4)
			v.line = 0
			v.takes("default", 5, 7)
			v.settles("complete", 2)
			answers(e.sessionAs(t, e.super), int64(0), outstanding)
		})
	})
	t.Run("a worker's own request for its entity comes afterwards", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		w := newRequestWorker(t, e)
		w.exec("select lock.enqueue('update', 'e')")
		w.takes("default", 1)
		w.exec("select lock.enqueue('update', 'e')")
		first := w.process
		w.takes("default")
		w.process = first
		w.settles("complete", 1)
		w.line = 0
		w.takes("default", 2)
		w.settles("complete", 1)
	})
	t.Run("a worker that captures an entity twice makes no producer wait", func(t *testing.T) {
		t.Parallel()
		for _, status := range []string{"complete", "new"} {
			e := open(t, advisory)
			a, b, w := e.session(t), e.session(t), newRequestWorker(t, e)
			a.exec("select lock.enqueue('update', 'e')")
			b.exec("begin")
			b.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 1)
			answers(w.session, int64(1), "select lock.settle_request($1, $2)", w.process, status)
			b.exec("commit")
			w.line = 0
			if got := w.capture("default"); len(got) == 0 {
				t.Fatal("nothing captured")
			}
			a.exec("set lock_timeout = '1ms'")
			a.exec("select lock.enqueue('update', 'e')")
			answers(w.session, true, "select lock.settle_request($1) > 0", w.process)
			w.exec("commit")
			w.line = 0
			w.takes("default", 3)
			w.settles("complete", 1)
			answers(e.sessionAs(t, e.super), int64(0), outstanding)
		}
	})
	t.Run("one transaction captures from two queues and settles them apart", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', 'e', queue_id => q) from unnest(array['one', 'two', 'two']) q")
		a.exec("select lock.enqueue('update', 'f', queue_id => 'two')")
		w.takes("one", 1)
		one := w.process
		w.takes("two", 2, 3)
		v.takes("two", 4)
		v.exec("rollback")
		answers(w.session, int64(2), "select lock.settle_request($1, 'error', 'why')", w.process)
		w.exec("savepoint s")
		w.takes("two", 4)
		w.exec("rollback to savepoint s")
		v.line = 0
		v.takes("two", 4)
		v.settles("complete", 1)
		w.process = one
		w.settles("complete", 1)
		answers(e.sessionAs(t, e.super), "complete error error complete", "select string_agg(request_status::text, ' ' order by request_id) from lock.request")
	})
	// Two heads, of which the second commits after the first was captured.
	twoHeads := func(t *testing.T, e *env) (first, second *requestWorker) {
		a, b := e.session(t), e.session(t)
		first, second = newRequestWorker(t, e), newRequestWorker(t, e)
		a.exec("begin")
		a.exec("select lock.enqueue('update', 'e')")
		b.exec("begin")
		b.exec("select lock.enqueue('update', 'e')")
		b.exec("commit")
		first.takes("default", 2)
		a.exec("commit")
		return first, second
	}
	t.Run("an entity with two heads is one worker's", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			first, second := twoHeads(t, e)
			second.takes("default")
			second.exec("rollback")
			first.settles("complete", 1)
			second.takes("default", 1)
			second.settles("complete", 1)
		})
	})
	t.Run("the checker catches a worker that counts no heads, and the primary key stops it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "capture_request", "<> cardinality(locked)", "< 0")
		mutate(t, e, "capture_request", "locked := locked || others", "null")
		first, second := twoHeads(t, e)
		p := second.start("select lock.capture_request(gen_random_uuid())").blocked()
		first.settles("complete", 1)
		wantCode(t, p.wait(), "23503", "commit without settling")
	})
}

// requestLate commits a request of an entity, and one that counts on it, while a capture of the entity stands at a gate, before it
// looks for the create or before it takes the updates, and says in which batches all are worked on afterwards.
func requestLate(t *testing.T, e *env, gate, level, kind string) (batches string) {
	t.Helper()
	mutate(t, e, "capture_request", gate, "perform pg_advisory_lock(5, 5);\nperform pg_advisory_unlock(5, 5);\n"+gate)
	p, q, g, w, v := e.session(t), e.session(t), e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
	batch := func(of *requestWorker) {
		batches += get[string](of.session, "select coalesce(string_agg(request_id::text, ' ' order by request_id), '') from lock.request_history('e') where process_id = $1 and request_status = 'in-progress'", of.process) + "|"
	}
	p.exec("select lock.enqueue('update', 'e')")
	g.exec("select pg_advisory_lock(5, 5)")
	w.exec("begin")
	capture := w.start("select lock.capture_request($1)", w.process).blocked()
	p.exec("begin isolation level " + level)
	p.exec("select lock.enqueue($1, 'e')", kind)
	p.exec("commit")
	p.exec("select lock.enqueue('update', 'e')")
	g.exec("select pg_advisory_unlock(5, 5)")
	capture.ends()
	batch(w)
	q.exec("begin")
	q.exec("select lock.enqueue('update', 'e')") // counts on a head that may have been captured
	w.exec("select lock.settle_request($1)", w.process)
	w.exec("commit")
	rest := func() {
		for v.line = 0; len(v.capture("default")) > 0; v.line = 0 {
			batch(v)
			v.exec("select lock.settle_request($1)", v.process)
			v.exec("commit")
		}
		v.exec("commit")
	}
	rest()
	q.exec("commit")
	rest()
	if n := get[int64](e.sessionAs(t, e.super), "select count(*) from lock.request where settled_at is null"); n > 0 {
		batches += fmt.Sprintf("%d lost", n)
	}
	return batches
}

// requestKept is the interleaving in which a worker takes a follower of a head that is settled and stays, and leaves a head that came
// late; then a worker whose snapshot is from before captures that.
func requestKept(t *testing.T, e *env, level string) error {
	t.Helper()
	const gate = "if created.outstanding then"
	mutate(t, e, "capture_request", gate, "perform pg_advisory_lock(5, 5);\nperform pg_advisory_unlock(5, 5);\n"+gate)
	p, o, g, w, v := e.session(t), e.session(t), e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
	p.exec("select lock.enqueue('update', 'e')")
	o.exec("begin")
	o.exec("select lock.enqueue('update', 'e')")
	w.takes("default", 1)
	w.settles("complete", 1) // and stays a head: o counts on it
	g.exec("select pg_advisory_lock(5, 5)")
	w.exec("begin")
	capture := w.start("select lock.capture_request($1)", w.process).blocked()
	p.exec("begin isolation level repeatable read")
	p.exec("select lock.enqueue('update', 'e')")
	p.exec("commit")
	v.exec("begin isolation level " + level)
	v.exec("select from lock.request_history('e')")
	o.exec("commit")
	g.exec("select pg_advisory_unlock(5, 5)")
	capture.ends()
	answers(w.session, int64(1), "select lock.settle_request($1)", w.process)
	w.exec("commit")
	_, err := v.conn.Exec(ctx, "select lock.capture_request(gen_random_uuid())")
	v.exec("rollback")
	return err
}

// requestLower commits a request with a lower number while a capture of its entity is about to take the updates.
func requestLower(t *testing.T, e *env) (batch string) {
	t.Helper()
	const gate = "if created.outstanding then"
	mutate(t, e, "capture_request", gate, "perform pg_advisory_lock(5, 5);\nperform pg_advisory_unlock(5, 5);\n"+gate)
	p, o, g, w, v := e.session(t), e.session(t), e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
	o.exec("begin")
	o.exec("select lock.enqueue('update', 'e')")
	p.exec("select lock.enqueue('update', 'e')")
	g.exec("select pg_advisory_lock(5, 5)")
	w.exec("begin")
	capture := w.start("select lock.capture_request($1)", w.process).blocked()
	o.exec("commit")
	p.exec("select lock.enqueue('update', 'e')")
	v.takes("default") // which looks at the one that came late
	g.exec("select pg_advisory_unlock(5, 5)")
	capture.ends()
	batch = get[string](w.session, "select coalesce(string_agg(request_id::text, ' ' order by request_id), '') from lock.request_history('e') where process_id = $1", w.process)
	answers(w.session, int64(len(strings.Fields(batch))), "select lock.settle_request($1)", w.process)
	w.exec("commit")
	v.exec("commit")
	v.takes("default", 1, 3)
	v.settles("complete", 2)
	return batch
}

func TestRequestLate(t *testing.T) {
	t.Parallel()
	t.Run("a head that comes late, with a lower number, keeps nobody from what was captured before", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			if batch := requestLower(t, e); batch != "2" {
				t.Errorf("captured %q", batch)
			}
		})
	})
	for _, level := range levels[1:] {
		t.Run("what is left meets the change of who took the rest, "+level, func(t *testing.T) {
			t.Parallel()
			wantCode(t, requestKept(t, open(t, advisory), level), "40001", "capture on a snapshot from before")
		})
		t.Run("the checker catches that no head was changed, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, "settle_request", "if batch.heads <> batch.request_ids[1:1] then", "if false then")
			if err := requestKept(t, e, level); err != nil {
				t.Errorf("not captured: %v", err)
			}
		})
	}
	t.Run("a create that is cancelled meanwhile is not captured", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			p, w, owner := e.session(t), newRequestWorker(t, e), e.sessionAs(t, e.super)
			p.exec("select lock.enqueue('update', 'e')")
			p.exec("select lock.enqueue('create', 'e')")
			owner.exec("begin")
			owner.exec("update lock.request set request_status = 'error', settled_at = clock_timestamp(), message = 'cancelled' where request_id = 2")
			w.exec("begin")
			capture := w.start("select lock.capture_request($1)", w.process).blocked()
			owner.exec("commit")
			capture.ends()
			answers(w.session, int64(0), "select lock.settle_request($1)", w.process)
			w.exec("commit")
			answers(owner, "cancelled", "select message from lock.request where request_id = 2")
			w.takes("default", 1)
			w.settles("complete", 1)
		})
	})
	const create, take = "select request.request_id, request.settled_at is null and", "if created.outstanding then"
	for gateName, gate := range map[string]string{"create": create, "take": take} {
		for _, level := range levels[:2] {
			t.Run("a head that comes late is left for the next, with all behind it: "+gateName+", "+level, func(t *testing.T) {
				t.Parallel()
				eachEngine(t, func(t *testing.T, e *env) {
					if got := requestLate(t, e, gate, level, "update"); got != "1|2 3|4|" {
						t.Errorf("batches %s", got)
					}
				})
			})
			t.Run("a create that comes late goes before all updates: "+gateName+", "+level, func(t *testing.T) {
				t.Parallel()
				eachEngine(t, func(t *testing.T, e *env) {
					if got := requestLate(t, e, gate, level, "create"); got != "|2|1 3|4|" {
						t.Errorf("batches %s", got)
					}
				})
			})
		}
	}
	for name, broken := range map[string]struct{ gate, kind, piece, by, want string }{
		"a late head that is taken":             {take, "update", "late.request_id <> all (locked)", "false", "1 2 3|1 lost"},
		"updates before a late create":          {take, "create", "select late.settled_at is null", "select false", "1|2|3|4|"},
		"a late create that is taken, unlocked": {create, "create", "(not request.head or request.request_id = any (locked))", "true", "2|1 3|1 lost"},
	} {
		t.Run("the checker catches "+name, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, "capture_request", broken.piece, broken.by)
			if got := requestLate(t, e, broken.gate, "read committed", broken.kind); got != broken.want {
				t.Errorf("batches %s, want %s", got, broken.want)
			}
		})
	}
}

// requestOldSnapshot lets a worker whose snapshot still shows a request as new capture after another has settled it.
func requestOldSnapshot(t *testing.T, e *env, level string) error {
	t.Helper()
	a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
	a.exec("select lock.enqueue('update', 'e')")
	v.exec("begin isolation level " + level)
	v.exec("select from lock.request_history('e')")
	w.takes("default", 1)
	w.settles("complete", 1)
	_, err := v.conn.Exec(ctx, "select lock.capture_request(gen_random_uuid())")
	v.exec("rollback")
	return err
}

// requestOldCreate lets a worker whose snapshot does not show the create take the updates after another has settled that.
func requestOldCreate(t *testing.T, e *env, level string) error {
	t.Helper()
	a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
	a.exec("select lock.enqueue('update', 'e')")
	v.exec("begin isolation level " + level)
	v.exec("select from lock.request_history('e')")
	a.exec("select lock.enqueue('create', 'e')")
	w.takes("default", 2)
	w.settles("complete", 1)
	_, err := v.conn.Exec(ctx, "select lock.capture_request(gen_random_uuid())")
	v.exec("rollback")
	w.line = 0
	w.takes("default", 1)
	w.settles("complete", 1)
	answers(e.sessionAs(t, e.super), int64(0), "select count(*) from lock.request where head")
	return err
}

func TestRequestIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range levels[1:] {
		t.Run(level+", the checker catches a capture that writes nothing", func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			// It believes its snapshot: no row is locked, none is changed.
			mutate(t, e, "capture_request", "for no key update of candidate skip locked", "", `update lock.request
                set request_status = 'in-progress',
                    process_id = capture_request.process_id,
                    started_at = clock_timestamp(),
                    head = false
                where request.queue_id`, "select request.request_id from lock.request where request.queue_id", "returning request.request_id\n            )", ")")
			if err := requestOldSnapshot(t, e, level); err != nil {
				t.Errorf("not granted twice: %v", err)
			}
		})
		t.Run(level+", the checker catches a settled create that changes no head", func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, "settle_request", "if batch.heads <> batch.request_ids[1:1] then", "if false then")
			if err := requestOldCreate(t, e, level); err != nil {
				t.Errorf("not captured: %v", err)
			}
		})
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			wantCode(t, requestOldCreate(t, open(t, advisory), level), "40001", "capture of what waits for a create that another has settled")
			wantCode(t, requestOldSnapshot(t, e, level), "40001", "capture of what another has settled")
			a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
			a.exec("select lock.enqueue('update', 'f')")
			v.exec("begin isolation level " + level)
			v.exec("select from lock.request_history('f')")
			w.takes("default", 2)
			v.takes("default") // skipped, while somebody works on it
			w.settles("complete", 1)
			v.exec("rollback")

			// What commits behind the snapshot's back is not lost.
			a.exec("select lock.enqueue('update', 'e')")
			v.exec("begin isolation level " + level)
			v.takes("default", 3)
			a.exec("select lock.enqueue('update', 'e')")
			v.settles("complete", 1)
			v.line = 0
			v.takes("default", 4)
			v.settles("complete", 1)
		})
	}
}

// TestRequestDelay: the whole entity waits for what was put back, whichever of its requests stands for it.
func TestRequestDelay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		play func(a, b *session, w *requestWorker) (later []int64)
	}{
		{"a create behind an update", func(a, b *session, w *requestWorker) []int64 {
			a.exec("select lock.enqueue('update', 'e')")
			a.exec("select lock.enqueue('create', 'e')")
			w.takes("default", 2)
			return []int64{2}
		}},
		{"a follower of a settled head", func(a, b *session, w *requestWorker) []int64 {
			a.exec("select lock.enqueue('update', 'e')")
			b.exec("begin")
			b.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 1)
			w.settles("complete", 1)
			b.exec("commit")
			w.line = 0
			w.takes("default", 2)
			return []int64{2}
		}},
		{"a head that is older and committed later", func(a, b *session, w *requestWorker) []int64 {
			b.exec("begin")
			b.exec("select lock.enqueue('update', 'e')")
			a.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 2)
			b.exec("commit")
			return []int64{1, 2}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			eachEngine(t, func(t *testing.T, e *env) {
				a, b, w := e.session(t), e.session(t), newRequestWorker(t, e)
				later := c.play(a, b, w)
				answers(w.session, int64(1), "select lock.settle_request($1, 'new', 'not now', '1 hour')", w.process)
				w.exec("commit")
				a.exec("select lock.enqueue('update', 'other')")
				w.line = 0
				w.takes("default", 3)
				w.settles("complete", 1)
				_, err := e.admin.Exec(ctx, "update lock.request set available_at = available_at - interval '1 hour'")
				must(t, err)
				w.line = 0
				w.takes("default", later...)
			})
		})
	}
}

// TestRequestOperators: what the owner of the schema may do to the table by hand.
func TestRequestOperators(t *testing.T) {
	t.Parallel()
	t.Run("deleting a head hands its followers on", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, b, owner, w := e.session(t), e.session(t), e.sessionAs(t, e.owner), newRequestWorker(t, e)
			a.exec("select lock.enqueue('update', 'e') from generate_series(1, 3)")
			owner.exec("delete from lock.request where request_id = 1")
			w.takes("default", 2, 3)
			w.exec("rollback")
			b.exec("begin")
			b.exec("select lock.enqueue('update', 'e')")
			p := owner.start("delete from lock.request where request_id <= 3").blocked()
			b.exec("commit")
			p.ends()
			w.line = 0
			w.takes("default", 4)
			w.settles("complete", 1)
			owner.exec("delete from lock.request")
		})
	})
	t.Run("deleting an outstanding head needs a new snapshot", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, owner := e.session(t), e.sessionAs(t, e.owner)
		a.exec("select lock.enqueue('update', 'e')")
		owner.exec("begin isolation level repeatable read")
		if got := owner.fails("55000", "delete from lock.request"); got.Hint == "" {
			t.Error("no hint")
		}
	})
	t.Run("a request is cancelled by settling it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, owner, w := e.session(t), e.sessionAs(t, e.owner), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', 'e') from generate_series(1, 3)")
		const cancel = `update lock.request set request_status = 'error', settled_at = clock_timestamp(), message = 'cancelled'
			where request_id = $1 and settled_at is null`
		owner.exec(cancel, 1)
		w.takes("default", 2, 3)
		p := owner.start(cancel, 3).blocked()
		w.settles("complete", 2)
		p.ends()
		answers(owner, "error complete complete", "select string_agg(request_status::text, ' ' order by request_id) from lock.request")
		answers(owner, int64(0), "select count(*) from lock.request where head")
	})
}

// requestBuffers is how many buffers one capture touches, which must find something.
func requestBuffers(s *session) int {
	s.t.Helper()
	return least(func() int {
		s.exec("begin")
		defer s.exec("rollback")
		n, rows := buffersOnce(s, "select * from lock.capture_request(gen_random_uuid())")
		if rows == 0 {
			s.t.Fatal("nothing found")
		}
		return n
	})
}

// requestEntries is how many entries of the queue's index one capture reads, live or dead.
func requestEntries(s *session, after int64) int64 {
	s.t.Helper()
	const read = "select pg_stat_get_xact_tuples_returned('lock.request_queue_id_head_request_id_idx'::regclass)"
	s.exec("begin")
	defer s.exec("rollback")
	before := get[int64](s, read)
	answers(s, int64(1), "select count(*) from lock.capture_request(gen_random_uuid(), $1)", after)
	return get[int64](s, read) - before
}

func TestRequestCost(t *testing.T) {
	t.Parallel()
	const bound = 150
	t.Run("10,000 requests of one busy entity cost others nothing", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, w, v := e.session(t), newRequestWorker(t, e), e.session(t)
			super := e.sessionAs(t, e.super)
			a.exec("select lock.enqueue('update', 'busy') from generate_series(1, 5000)")
			for range 100 {
				a.exec("select lock.enqueue('update', 'busy')")
			}
			if got := w.capture("default"); len(got) != 5100 {
				t.Fatalf("a batch of %d, want 5100", len(got))
			}
			a.exec("select lock.enqueue('update', 'busy') from generate_series(1, 5000)")
			a.exec("select lock.enqueue('update', 'other')")
			answers(super, int64(3), "select count(*) from lock.request where head")
			if n := requestBuffers(v); n > bound {
				t.Errorf("%d buffers, want at most %d", n, bound)
			}
			answers(w.session, int64(5100), "select lock.settle_request($1)", w.process)
			if n := requestBuffers(v); n > bound {
				t.Errorf("%d buffers after settling, want at most %d", n, bound)
			}
			w.exec("rollback")

			// The checker catches a queue where every request stands for itself.
			super.exec("update lock.request set head = true")
			w.line = 0
			w.capture("default")
			super.exec("select lock.enqueue('update', 'other')")
			if n := requestBuffers(v); n <= bound {
				t.Errorf("%d buffers past 10,000 heads: the measure is broken", n)
			}
		})
	})
	t.Run("as many heads cost as much each", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, w, v := e.session(t), newRequestWorker(t, e), e.session(t)
		const heads = 3000
		a.exec("begin isolation level serializable")
		a.exec("select lock.enqueue('update', 'busy') from generate_series(1, $1::integer)", heads)
		a.exec("commit")
		answers(e.sessionAs(t, e.super), int64(heads), "select count(*) from lock.request where head")
		w.capture("default")
		a.exec("select lock.enqueue('update', 'other')")
		if n := requestBuffers(v); n > 5*heads+bound {
			t.Errorf("%d buffers past %d heads", n, heads)
		}
	})
	t.Run("the newest of many outstanding requests are found at once", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a := e.session(t)
		a.exec("select lock.enqueue('update', 'busy') from generate_series(1, 10000)")
		const newest = "select string_agg(request_id::text, ' ') from lock.request_history('busy', max => 3)"
		answers(a, "10000 9999 9998", newest)
		if n := buffers(a, newest); n > bound/3 {
			t.Errorf("%d buffers for the newest 3 of 10,000", n)
		}
	})
	t.Run("the line in the sand is not held up by an old snapshot", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		old, w, v, super := e.session(t), newRequestWorker(t, e), e.session(t), e.sessionAs(t, e.super)
		old.exec("begin isolation level repeatable read")
		old.exec("select from lock.request_history('1')")
		w.exec("select lock.enqueue('update', n::text) from generate_series(1, 4000) n")
		settle := func(n int) {
			for range n {
				if len(w.capture("default")) != 1 {
					t.Fatal("no request")
				}
				w.settles("complete", 1)
			}
		}
		// What the search reads from the beginning, and from the line, after a vacuum that does what it may.
		measure := func() (whole, line int64) {
			super.exec("vacuum (truncate off) lock.request")
			return requestEntries(v, 0), requestEntries(v, w.line)
		}
		settle(500)
		whole1, line1 := measure()
		settle(2500)
		whole2, line2 := measure()
		t.Logf("index entries from the beginning, and from the line: %d %d after 500, %d %d after 3000", whole1, line1, whole2, line2)
		if whole1 < 500 || whole2 < 3000 {
			t.Error("the search from the beginning walks over nothing: the measure is broken")
		}
		if line1 > 2 || line2 > 2 {
			t.Error("the search from the line grows with what is settled, or reads the backlog")
		}
		old.exec("commit")
		eventually(t, "what is settled costs a search nothing without the snapshot", func() bool { // autovacuum may have another one
			whole, line := measure()
			return whole <= 2 && line <= 2
		})
	})
	t.Run("a denied capture writes nothing", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
			v.takes("nothing")
			answers(v.session, true, "select pg_current_xact_id_if_assigned() is null")
			a.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 1)
			a.exec("select lock.enqueue('update', 'e')")
			v.takes("default")
			answers(w.session, int64(1), "select lock.settle_request($1)", w.process)
			a.exec("select lock.enqueue('update', 'e')")
			v.takes("default")
			answers(v.session, true, "select pg_current_xact_id_if_assigned() is null")
		})
	})
}

func TestRequestRules(t *testing.T) {
	t.Parallel()
	t.Run("a click is a request, 50 clicks are one batch", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, w := e.session(t), newRequestWorker(t, e)
		var want []int64
		for n := range int64(50) {
			answers(a, n+1, "select lock.enqueue('update', 'sheet', jsonb_build_object('click', $1::bigint))", n)
			want = append(want, n+1)
		}
		w.takes("default", want...)
		a.exec("select lock.enqueue('update', 'sheet')")
		w.settles("complete", 50)
		w.line = 0
		w.takes("default", 51)
		w.settles("complete", 1)
	})
	t.Run("a create goes first and alone, wherever it stands", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, w := e.session(t), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', 'e')")
		a.exec("select lock.enqueue('update', 'e')")
		a.exec("select lock.enqueue('create', 'e')")
		if got := a.fails("23505", "select lock.enqueue('create', 'e')"); got.Hint == "" || got.ConstraintName != "request_one_create" {
			t.Errorf("hint %q, constraint %q", got.Hint, got.ConstraintName)
		}
		a.exec("select lock.enqueue('create', 'e', queue_id => 'another')")
		a.exec("begin")
		a.exec("select lock.enqueue('create', 'f', queue_id => 'another')")
		p := w.start("select lock.enqueue('create', 'f', queue_id => 'another')").blocked()
		a.exec("commit")
		wantCode(t, p.wait(), "23505", "a second create that waited")
		w.takes("default", 3)
		w.settles("error", 1)
		w.line = 0
		w.takes("default", 1, 2)
		w.settles("complete", 2)
		a.fails("23505", "select lock.enqueue('create', 'e')")
	})
	t.Run("nothing in-progress can be committed", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, w := e.session(t), newRequestWorker(t, e)
			a.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 1)
			if refused := w.fails("23503", "commit"); refused.ConstraintName != "settle_request_before_commit" {
				t.Errorf("refused by %q", refused.ConstraintName)
			}
			w.fails("23503", "select lock.capture_request(gen_random_uuid())")
			w.line = 0
			w.takes("default", 1)
			answers(a, int64(0), "select lock.settle_request($1)", w.process)
			w.settles("complete", 1)
			answers(w.session, int64(0), "select lock.settle_request($1)", w.process)
		})
	})
	t.Run("put back is tried again, at its place and not before the delay", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, w := e.session(t), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', 'e')")
		a.exec("select lock.enqueue('update', 'f')")
		w.takes("default", 1)
		w.settles("new", 1)
		w.line = 0
		w.takes("default", 1)
		answers(w.session, int64(1), "select lock.settle_request($1, 'new', 'not now', '1 hour')", w.process)
		w.exec("commit")
		a.exec("select lock.enqueue('update', 'e')")
		w.line = 0
		w.takes("default", 2)
		w.settles("complete", 1)
		w.line = 0
		w.takes("default")
		_, err := e.admin.Exec(ctx, "update lock.request set available_at = available_at - interval '1 hour'")
		must(t, err)
		w.takes("default", 1, 3)
		answers(a, "2 not now", "select attempts || ' ' || message from lock.request_history('e') where request_id = 1")
		w.settles("complete", 2)
	})
	t.Run("a plain insert is as good", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, w := e.sessionAs(t, e.super), newRequestWorker(t, e)
		s.exec("insert into lock.request (request_type, entity_id) values ('update', 'e'), ('update', 'e')")
		s.exec("insert into lock.request (request_type, request_status, entity_id) values ('update', 'complete', 'e')")
		s.fails("22023", "insert into lock.request (request_type, request_status, entity_id) values ('update', 'in-progress', 'e')")
		s.fails("22023", "insert into lock.request (request_type, entity_id) values ('update', '')")
		s.fails("22P02", "insert into lock.request (request_type, entity_id) values ('delete', 'e')")
		w.takes("default", 1, 2)
		w.settles("complete", 2)
	})
	t.Run("history and purge", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, w := e.session(t), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', (n % 10)::text) from generate_series(1, 100) n")
		for range 9 {
			if len(w.capture("default")) != 10 {
				t.Fatal("want batches of 10")
			}
			w.settles("complete", 10)
		}
		answers(a, int64(10), "select count(*) from lock.request_history('1') where process_id is not null and started_at <= settled_at and created_at <= started_at")
		answers(a, int64(91), "select request_id from lock.request_history('1', max => 1)")
		answers(a, int64(0), "select count(*) from lock.request_history('1', 'another')")
		answers(a, int64(0), "select lock.purge_requests('1 hour')")
		_, err := e.admin.Exec(ctx, "update lock.request set settled_at = settled_at - interval '1 day' where settled_at is not null")
		must(t, err)
		if len(w.capture("default")) != 10 {
			t.Fatal("want a batch of 10")
		}
		answers(a, int64(60), "select lock.purge_requests('1 hour', 60)")
		answers(a, int64(30), "select lock.purge_requests('1 hour', 60)")
		w.settles("complete", 10)
		answers(e.sessionAs(t, e.super), int64(10), "select count(*) from lock.request")
	})
	t.Run("bad input changes nothing", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		for _, bad := range []struct{ code, sql string }{
			{"22004", "select lock.enqueue(null, 'e')"},
			{"22023", "select lock.enqueue('delete', 'e')"},
			{"22004", "select lock.enqueue('update', null)"},
			{"22023", "select lock.enqueue('update', '')"},
			{"22023", "select lock.enqueue('update', repeat('x', 1025))"},
			{"22004", "select lock.enqueue('update', 'e', queue_id => null)"},
			{"22023", "select lock.enqueue('update', 'e', queue_id => '')"},
			{"22004", "select lock.capture_request(null)"},
			{"22004", "select lock.capture_request(gen_random_uuid(), null)"},
			{"22004", "select lock.capture_request(gen_random_uuid(), 0, null)"},
			{"22023", "select lock.capture_request(gen_random_uuid(), 0, '')"},
			{"22004", "select lock.settle_request(null)"},
			{"22004", "select lock.settle_request(gen_random_uuid(), null)"},
			{"22023", "select lock.settle_request(gen_random_uuid(), 'done')"},
			{"22023", "select lock.settle_request(gen_random_uuid(), 'new', null, '-1 second')"},
			{"22004", "select lock.settle_request(gen_random_uuid(), 'new', null, null)"},
			{"22023", "select lock.settle_request(gen_random_uuid(), 'complete', null, '1 second')"},
			{"22004", "select lock.purge_requests(null)"},
			{"22023", "select lock.purge_requests('-1 day')"},
			{"22023", "select lock.purge_requests('1 day', 0)"},
			{"22004", "select lock.purge_requests('1 day', null)"},
			{"22004", "select lock.request_history(null)"},
			{"22023", "select lock.request_history('e', 'q', 0)"},
			{"42501", "select * from lock.request"},
			{"42501", "insert into lock.request (request_type, entity_id) values ('update', 'e')"},
		} {
			if got := s.fails(bad.code, bad.sql); strings.HasPrefix(bad.code, "22") && got.Hint == "" {
				t.Errorf("%s: no hint", bad.sql)
			}
		}
		answers(e.sessionAs(t, e.super), int64(0), "select count(*) from lock.request")
	})
}
