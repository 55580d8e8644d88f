package tests

import (
	"context"
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
	max     int
}

func newRequestWorker(t *testing.T, e *env) *requestWorker {
	return &requestWorker{session: e.session(t), process: requestProcess(), max: 1000}
}

// capture begins a transaction unless one is open, captures after the line, and returns the ids; the line moves along.
func (w *requestWorker) capture(queue string) []int64 {
	w.t.Helper()
	if w.conn.PgConn().TxStatus() == 'I' {
		w.exec("begin")
	}
	w.process = requestProcess()
	rows, err := w.conn.Query(ctx, "select request_id from lock.capture_request($1, $2, $3, $4)", w.process, w.line, queue, w.max)
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
		_, err := e.admin.Exec(ctx, "update lock.request set request_status = 'complete', settled_at = clock_timestamp() where request_id = 4")
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
	})
}

// Where a capture can be made to stand.
const (
	requestBeforeLock = "continue when not lock_internal.try_entity"
	requestBeforeLook = "with oldest as"
	requestBeforeTake = "return query"
)

// requestGate makes the captures of sessions that begin one with begins stand before a piece of the function's text, until open.
func requestGate(t *testing.T, e *env, piece string) (open func()) {
	t.Helper()
	mutate(t, e, "capture_request", piece, `if current_setting('application_name') = 'gate' then
		perform pg_advisory_lock(5, 5);
		perform pg_advisory_unlock(5, 5);
	end if;
	`+piece)
	keeper := e.session(t)
	keeper.exec("select pg_advisory_lock(5, 5)")
	return func() { keeper.exec("select pg_advisory_unlock(5, 5)") }
}

// begins starts a capture in a transaction of its own, which stands at a gate.
func (w *requestWorker) begins() *pending {
	w.t.Helper()
	w.exec("begin")
	w.exec("set application_name = 'gate'")
	w.process = requestProcess()
	return w.start("select lock.capture_request($1, $2)", w.process, w.line).blocked()
}

// has is what the worker captured last.
func (w *requestWorker) has() string {
	w.t.Helper()
	return get[string](w.session, `select coalesce(string_agg(request_id::text, ' ' order by request_id), '') from lock.request_history('e')
		where process_id = $1 and request_status = 'in-progress'`, w.process)
}

// requestRest works on everything that is left, and says in which batches.
func requestRest(w *requestWorker) (batches string) {
	w.t.Helper()
	for w.line = 0; len(w.capture("default")) > 0; w.line = 0 {
		batches += "|" + w.has()
		w.exec("select lock.settle_request($1)", w.process)
		w.exec("commit")
	}
	w.exec("commit")
	if n := get[int64](w.e.sessionAs(w.t, w.e.super), "select count(*) from lock.request where settled_at is null"); n > 0 {
		batches += fmt.Sprintf("|%d left", n)
	}
	return batches
}

// requestLate commits requests of an entity while a capture of it stands at a gate, one of them with a lower number, and says in which
// batches all are worked on.
func requestLate(t *testing.T, e *env, gate, kind string) string {
	t.Helper()
	p, o, w, v := e.session(t), e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
	open := requestGate(t, e, gate)
	o.exec("begin")
	o.exec("select lock.enqueue('update', 'e')")
	p.exec("select lock.enqueue('update', 'e')")
	capture := w.begins()
	o.exec("commit")
	p.exec("select lock.enqueue($1, 'e')", kind)
	if gate != requestBeforeLock {
		v.takes("default")
		v.exec("commit")
	}
	open()
	capture.ends()
	first := w.has()
	w.settles("complete", int64(len(strings.Fields(first))))
	return first + requestRest(v)
}

// requestPassedOver lets another worker settle an entity, or put it back, while a capture that has met it stands at a gate. It says what
// the capture took then, and what the other can take while the first's transaction is open and a new request has come.
func requestPassedOver(t *testing.T, e *env, gate, settle string) (took, taken string) {
	t.Helper()
	a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
	a.exec("select lock.enqueue('update', 'e')")
	open := requestGate(t, e, gate)
	capture := w.begins()
	v.takes("default", 1)
	answers(v.session, int64(1), settle, v.process)
	v.exec("commit")
	open()
	capture.ends()
	took = w.has()
	a.exec("select lock.enqueue('update', 'e')")
	_, err := e.admin.Exec(ctx, `update lock.request set available_at = available_at - interval '1 hour'
		where request_id in (select request_id from lock.request where available_at is not null for update skip locked)`)
	must(t, err)
	v.line = 0
	v.capture("default")
	return took, v.has()
}

const (
	requestSettles  = "select lock.settle_request($1)"
	requestPutsBack = "select lock.settle_request($1, 'retry', 'not now', '1 hour')"
)

// requestUnlocked is a capture that believes that it has every entity's lock.
func requestUnlocked(t *testing.T, e *env) {
	mutate(t, e, "capture_request", "continue when not lock_internal.try_entity(capture_request.queue_id, candidate.entity_id);", "")
}

// requestLookBeforeLock is a capture that reads what is outstanding before it tries the lock.
func requestLookBeforeLock(t *testing.T, e *env) {
	mutate(t, e, "capture_request", "continue when not lock_internal.try_entity(capture_request.queue_id, candidate.entity_id);", "",
		"if not found then", "/* it looked */ if not found or not lock_internal.try_entity(capture_request.queue_id, candidate.entity_id) then")
}

func TestRequestEntity(t *testing.T) {
	t.Parallel()
	t.Run("is in one hand, and nobody waits", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, b, w, v := e.session(t), e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
			for _, s := range []*session{a, b, w.session, v.session} {
				s.exec("set lock_timeout = '10ms'")
			}
			a.exec("begin")
			a.exec("select lock.enqueue('update', 'e')") // 1
			b.exec("begin")
			b.exec("select lock.enqueue('update', 'e')") // 2
			b.exec("select lock.enqueue('create', 'f')") // 3
			b.exec("commit")
			w.takes("default", 2)
			a.exec("commit")
			b.exec("select lock.enqueue('update', 'e') from generate_series(1, 200)") // 4 to 203
			v.takes("default", 3)
			answers(v.session, int64(1), "select lock.settle_request($1, 'retry')", v.process)
			v.takes("default")
			a.fails("23505", "select lock.enqueue('create', 'f')")
			v.exec("rollback")
			answers(w.session, int64(1), "select lock.settle_request($1)", w.process)
			b.exec("begin isolation level serializable")
			b.exec("select lock.enqueue('update', 'e')") // 204, or 205
			v.line = 3
			v.takes("default")
			v.exec("commit")
			w.exec("commit")
			v.line = 0
			if got := v.capture("default"); len(got) != 201 || got[0] != 1 || got[1] != 4 {
				t.Errorf("captured %v", got)
			}
			b.exec("commit")
			v.settles("complete", 201)
			v.line = 3
			if got := v.capture("default"); len(got) != 1 {
				t.Errorf("captured %v", got)
			}
		})
	})
	t.Run("the checker catches two that have it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		requestUnlocked(t, e)
		a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', 'e')")
		w.takes("default", 1)
		capture := v.start("select lock.capture_request($1)", v.process).blocked()
		w.settles("complete", 1)
		capture.ends()
	})
	t.Run("the checker catches a create that waits for a worker", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "enqueue", "and not request.failed", "and false")
		a, w := e.session(t), newRequestWorker(t, e)
		a.exec("select lock.enqueue('create', 'e')")
		w.takes("default", 1)
		create := a.start("select lock.enqueue('create', 'e')").blocked()
		w.settles("complete", 1)
		wantCode(t, create.wait(), "23505", "a second create")
	})
	for gate, want := range map[string][2]string{
		requestBeforeLock: {"1 2 3", "3|1 2"},
		requestBeforeLook: {"1 2 3", "3|1 2"},
		requestBeforeTake: {"2|1 3", "2|3|1"},
	} {
		for n, kind := range []string{"update", "create"} {
			t.Run("what is committed late is found, and a create goes first: "+gate+", "+kind, func(t *testing.T) {
				t.Parallel()
				eachEngine(t, func(t *testing.T, e *env) {
					if got := requestLate(t, e, gate, kind); got != want[n] {
						t.Errorf("batches %s, want %s", got, want[n])
					}
				})
			})
		}
	}
	t.Run("is nobody's when it was settled between a look and a lock", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			if took, taken := requestPassedOver(t, e, requestBeforeLock, requestSettles); took != "" || taken != "2" {
				t.Errorf("took %q, then the other took %q", took, taken)
			}
		})
	})
	t.Run("is nobody's when it was put back between a look and a lock", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			if took, taken := requestPassedOver(t, e, requestBeforeLock, requestPutsBack); took != "" || taken != "1 2" {
				t.Errorf("took %q, then the other took %q", took, taken)
			}
		})
	})
	t.Run("the checker catches a worker that looks before it has the lock", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		requestLookBeforeLock(t, e)
		if took, _ := requestPassedOver(t, e, "if not found or not", requestPutsBack); took != "1" {
			t.Errorf("took %q", took)
		}
	})
	t.Run("the checker catches a worker that keeps what it passes over", func(t *testing.T) {
		t.Parallel()
		for _, settle := range []string{requestSettles, requestPutsBack} {
			e := open(t, advisory)
			mutate(t, e, "capture_request", "raise no_data_found", "continue")
			if took, taken := requestPassedOver(t, e, requestBeforeLock, settle); took != "" || taken != "" {
				t.Errorf("took %q, then the other took %q", took, taken)
			}
		}
	})
	t.Run("is captured once in a transaction, until it is settled", func(t *testing.T) {
		t.Parallel()
		twice := func(e *env) (second string) {
			w := newRequestWorker(t, e)
			w.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 1)
			first := w.process
			w.exec("select lock.enqueue('update', 'e')")
			w.line = 0
			w.capture("default")
			second = w.has()
			w.process = first
			answers(w.session, int64(1), "select lock.settle_request($1)", w.process)
			if second == "" {
				w.takes("default", 2)
				w.settles("complete", 1)
			}
			return second
		}
		eachEngine(t, func(t *testing.T, e *env) {
			if second := twice(e); second != "" {
				t.Errorf("captured %s beside 1", second)
			}
		})
		e := open(t, advisory)
		mutate(t, e, "capture_request", "having bool_and(work.request_status = 'new')", "having true")
		if second := twice(e); second != "2" {
			t.Errorf("the checker sees %q", second)
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
	t.Run("one process id may stand for several captures, and settles them together", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		w := newRequestWorker(t, e)
		w.exec("select lock.enqueue('update', n::text) from generate_series(1, 3) n")
		w.exec("begin")
		for range 3 {
			answers(w.session, int64(1), "select count(*) from lock.capture_request($1)", w.process)
		}
		answers(w.session, int64(0), "select count(*) from lock.capture_request($1)", w.process)
		w.settles("complete", 3)
	})
	t.Run("goes with a savepoint", func(t *testing.T) {
		t.Parallel()
		other := func(t *testing.T, e *env) (taken string) {
			a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
			a.exec("select lock.enqueue('update', 'e')")
			w.exec("begin")
			w.exec("savepoint s")
			w.takes("default", 1)
			w.exec("release savepoint s")
			v.takes("default")
			w.exec("rollback")
			w.exec("begin")
			w.exec("savepoint s")
			w.line = 0
			w.takes("default", 1)
			w.exec("rollback to savepoint s")
			v.capture("default")
			taken = v.has()
			v.exec("rollback")
			w.exec("commit")
			return taken
		}
		eachEngine(t, func(t *testing.T, e *env) {
			if taken := other(t, e); taken != "1" {
				t.Errorf("the other took %q", taken)
			}
		})
		e := open(t, advisory)
		mutate(t, e, "try_entity", "pg_try_advisory_xact_lock", "pg_try_advisory_lock")
		a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', 'e')")
		w.takes("default", 1)
		w.exec("rollback")
		v.takes("default") // the checker catches a lock that outlives what was rolled back
	})
	t.Run("stays with a prepared transaction", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "it has no prepared transactions")
		e := open(t, advisory)
		a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
		if get[string](a, "select current_setting('max_prepared_transactions')") == "0" {
			t.Skip("max_prepared_transactions is 0")
		}
		name := "'" + get[string](a, "select current_database()::text") + "'"
		a.exec("select lock.enqueue('update', 'e')")
		w.takes("default", 1)
		w.fails("23503", "prepare transaction "+name)
		w.line = 0
		w.takes("default", 1)
		answers(w.session, int64(1), "select lock.settle_request($1)", w.process)
		w.exec("prepare transaction " + name)
		a.exec("select lock.enqueue('update', 'e')")
		v.takes("default")
		w.exec("commit prepared " + name)
		v.takes("default", 2)
		answers(v.session, int64(1), "select lock.settle_request($1)", v.process)
		v.exec("prepare transaction " + name)
		w.line = 0
		w.takes("default")
		v.exec("rollback prepared " + name)
		w.takes("default", 2)
		w.settles("complete", 1)
	})
	t.Run("is free again when its worker's back end dies", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, w, v := e.session(t), newRequestWorker(t, e), newRequestWorker(t, e)
			a.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 1)
			_, err := e.admin.Exec(ctx, "select pg_terminate_backend($1::integer)", int(w.pid))
			must(t, err)
			eventually(t, "the entity is free", func() bool { return len(v.capture("default")) == 1 })
			v.settles("complete", 1)
		})
	})
}

// requestOldSnapshot captures on a snapshot that does not show an entity's create, and says what.
func requestOldSnapshot(t *testing.T, e *env, level string) (string, error) {
	t.Helper()
	a, v := e.session(t), newRequestWorker(t, e)
	a.exec("select lock.enqueue('update', 'e')")
	v.exec("begin isolation level " + level)
	v.exec("select from lock.request_history('e')")
	a.exec("select lock.enqueue('create', 'e')")
	if _, err := v.conn.Exec(ctx, "select lock.capture_request($1)", v.process); err != nil {
		return "", err
	}
	return v.has(), nil
}

func TestRequestIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range levels[1:] {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			eachEngine(t, func(t *testing.T, e *env) {
				_, err := requestOldSnapshot(t, e, level)
				if refused := wantCode(t, err, "25000", "capture"); !strings.Contains(refused.Message, strings.ToUpper(level)) || refused.Hint == "" {
					t.Errorf("%s: hint %q", refused.Message, refused.Hint)
				}
			})
			e := open(t, advisory)
			mutate(t, e, "check_read_committed", "if isolation not in", "if false and isolation not in")
			if batch, err := requestOldSnapshot(t, e, level); batch != "1" || err != nil {
				t.Errorf("the checker sees %q, %v", batch, err)
			}
		})
	}
	t.Run("read uncommitted is read committed", func(t *testing.T) {
		t.Parallel()
		if batch, err := requestOldSnapshot(t, open(t, advisory), "read uncommitted"); batch != "2" || err != nil {
			t.Errorf("captured %q, %v", batch, err)
		}
	})
	t.Run("what YugabyteDB calls read committed, and is not", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "it is a stand-in for that")
		e := open(t, advisory)
		super := e.sessionAs(t, e.super)
		super.exec("set allow_system_table_mods = on")
		super.exec("create function pg_catalog.yb_get_effective_transaction_isolation_level() returns text language sql as $$ select 'repeatable read'::text $$")
		mutate(t, e, "is_yugabyte", "version() like '%-YB-%'", "true")
		_, err := requestOldSnapshot(t, e, "read committed")
		wantCode(t, err, "25000", "capture")
	})
}

// TestRequestDelay: the whole entity waits for what was put back, whichever of its requests was put back.
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
		{"an update that is older and committed later", func(a, b *session, w *requestWorker) []int64 {
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
				answers(w.session, int64(1), "select lock.settle_request($1, 'retry', 'not now', '1 hour')", w.process)
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

// What nobody works on is ended as error, for the record.
func TestRequestCancel(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		w, v, operator := newRequestWorker(t, e), newRequestWorker(t, e), e.sessionAs(t, e.owner)
		w.exec("select lock.enqueue('create', 'a', '{\"n\": 1}', 'q'), lock.enqueue('update', 'a', queue_id => 'q'), lock.enqueue('update', 'b', queue_id => 'q')")
		w.takes("q", 1)
		answers(operator, false, "select lock.cancel_request(1, 'why')")
		answers(operator, false, "select lock.cancel_request(2, 'why')")
		w.exec("rollback")
		operator.exec("begin")
		answers(operator, true, "select lock.cancel_request(1, 'no longer wanted')")
		v.takes("q", 3)
		v.settles("complete", 1)
		operator.exec("commit")
		answers(operator, false, "select lock.cancel_request(1, 'again')")
		answers(operator, false, "select lock.cancel_request(3, 'done')")
		v.line = 0
		v.takes("q", 2)
		v.settles("complete", 1)
		answers(operator, "error cancelled: no longer wanted", "select request_status || ' ' || message from lock.request_history('a', 'q') where request_id = 1")
		answers(operator, "request q: a no longer wanted cancel 1 locks_owner", `select string_agg(concat_ws(' ', kind, id, reason, previous ->> 'action', previous ->> 'request_id', released_by), ';') from lock.forced_release`)
		for _, c := range []struct{ code, sql string }{
			{"22004", "select lock.cancel_request(null, 'why')"}, {"22004", "select lock.cancel_request(1, null)"}, {"22023", "select lock.cancel_request(1, ' ')"},
			{"22023", "select lock.cancel_request(1, repeat('x', 1025))"}, {"P0002", "select lock.cancel_request(99, 'why')"},
		} {
			if operator.fails(c.code, c.sql).Hint == "" {
				t.Errorf("%s has no hint", c.sql)
			}
		}
		w.fails("42501", "select lock.cancel_request(2, 'why')")
		answers(operator, int64(1), "select count(*) from lock.forced_release")
	})
	t.Run("the checker catches one that does not ask for the entity", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "cancel_request", " or not lock_internal.try_entity(wanted.queue_id, wanted.entity_id)", "")
		w, operator := newRequestWorker(t, e), e.sessionAs(t, e.owner)
		w.exec("select lock.enqueue('update', 'a', queue_id => 'q')")
		w.takes("q", 1)
		cancel := operator.start("select lock.cancel_request(1, 'why')").blocked()
		w.settles("complete", 1)
		cancel.ends()
	})
	t.Run("wakes who passed over the entity also when somebody was faster", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "cancel_request", "if not found then\n        raise", "perform pg_advisory_xact_lock(4711);\n    if wanted is null then\n        raise")
		w, operator := newRequestWorker(t, e), e.sessionAs(t, e.owner)
		w.exec("select lock.enqueue('update', 'a', queue_id => 'q')")
		w.takes("q", 1)
		w.exec("select pg_advisory_lock(4711)")
		cancel := operator.start("create temporary table got as select lock.cancel_request(1, 'why') as done").blocked()
		w.settles("complete", 1)
		w.exec("listen lock_request")
		w.exec("select lock.start_idling('lock_request', 'q', 'w', '1 minute')")
		w.exec("select pg_advisory_unlock(4711)")
		cancel.ends()
		answers(operator, false, "select done from got")
		waiting, stop := context.WithTimeout(ctx, patience)
		defer stop()
		note, err := w.conn.WaitForNotification(waiting)
		if err != nil || note.Payload != "q" {
			t.Errorf("%v, %v", note, err)
		}
	})
	t.Run("wakes who waits for what stood behind it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, operator := e.session(t), e.sessionAs(t, e.owner)
		s.exec("select lock.enqueue('update', 'a', queue_id => 'q')")
		s.exec("listen lock_request")
		s.exec("select lock.start_idling('lock_request', 'q', 'w', '1 minute')")
		answers(operator, true, "select lock.cancel_request(1, 'why')")
		waiting, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		note, err := s.conn.WaitForNotification(waiting)
		if err != nil || note.Payload != "q" {
			t.Errorf("%v, %v", note, err)
		}
	})
}

// TestRequestOperators: what the owner of the schema may do to the table by hand.
// What ended in error is enqueued once more, and stays in the history.
func TestRequestRetry(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		w := newRequestWorker(t, e)
		w.exec(`select lock.enqueue('create', 'a', '{"n": 1}', 'q'), lock.enqueue('update', 'b', '{"n": 2}', 'q'), lock.enqueue('update', 'c', queue_id => 'q')`)
		for _, status := range []string{"error", "error", "complete"} {
			w.capture("q")
			w.settles(status, 1)
		}
		w.line = 0
		answers(w.session, int64(4), "select lock.retry_request(1)")
		answers(w.session, int64(5), "select lock.retry_request(2)")
		w.takes("q", 4)
		answers(w.session, "create a 1", "select request_type || ' ' || entity_id || ' ' || (payload ->> 'n') from lock.request_history('a', 'q') where request_id = 4")
		w.settles("complete", 1)
		w.takes("q", 5)
		w.settles("complete", 1)
		for _, c := range []struct{ code, sql string }{
			{"55000", "select lock.retry_request(3)"}, {"P0002", "select lock.retry_request(99)"}, {"22004", "select lock.retry_request(null)"},
			{"23505", "select lock.retry_request(1)"}, // created since
		} {
			w.fails(c.code, c.sql)
		}
		w.exec("select lock.enqueue('update', 'd', queue_id => 'q')")
		w.fails("55000", "select lock.retry_request((select max(request_id) from lock.request_history('d', 'q')))")
	})
}

func TestRequestOperators(t *testing.T) {
	t.Parallel()
	t.Run("deleting a request leaves the others", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, owner, w := e.session(t), e.sessionAs(t, e.owner), newRequestWorker(t, e)
			a.exec("select lock.enqueue('update', 'e') from generate_series(1, 3)")
			owner.exec("delete from lock.request where request_id = 1")
			w.takes("default", 2, 3)
			w.settles("complete", 2)
			owner.exec("delete from lock.request")
		})
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
	})
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
	const read = "select pg_stat_get_xact_tuples_returned('lock.request_fresh'::regclass)"
	s.exec("begin")
	defer s.exec("rollback")
	before := get[int64](s, read)
	answers(s, int64(1), "select count(*) from lock.capture_request(gen_random_uuid(), $1)", after)
	return get[int64](s, read) - before
}

// ahead is how many entries a search may read beyond the one that it takes: PL/pgSQL fetches 10 rows at first.
const ahead = 15

func TestRequestCost(t *testing.T) {
	t.Parallel()
	const bound = 150
	t.Run("the requests of a busy entity are walked over, once each, and their lock is tried once", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, w, v, super := e.session(t), newRequestWorker(t, e), e.session(t), e.sessionAs(t, e.super)
			const busy = 5000
			w.max = busy
			a.exec("select lock.enqueue('update', 'busy')")
			w.takes("default", 1)
			w.settles("complete", 1)
			super.exec("insert into lock.request (request_type, entity_id, created_at) select 'update', 'busy', now() from generate_series(1, $1::integer)", busy)
			if got := w.capture("default"); len(got) != busy {
				t.Fatalf("a batch of %d, want %d", len(got), busy)
			}
			super.exec("insert into lock.request (request_type, entity_id, created_at) select 'update', 'busy', now() from generate_series(1, $1::integer)", busy)
			line := get[int64](a, "select lock.enqueue('update', 'other')") - 1
			// What is captured may have an entry for its new version.
			if n := requestEntries(v, 0); n < 2*busy || n > 3*busy+ahead {
				t.Errorf("%d entries read past %d", n, 2*busy)
			}
			if n := requestEntries(v, line); n > ahead {
				t.Errorf("%d entries read from the line", n)
			}
			if n := requestBuffers(v); n > 3*busy {
				t.Errorf("%d buffers past %d requests", n, 2*busy)
			}
			answers(w.session, int64(busy), "select lock.settle_request($1)", w.process)
			w.exec("rollback")
		})
	})
	t.Run("plans are the same without statistics, and with wrong ones", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		v, super := e.session(t), e.sessionAs(t, e.super)
		fill := func(queue string, n int) {
			super.exec("insert into lock.request (request_type, entity_id, queue_id, created_at) select 'update', n::text, $1, now() from generate_series(1, $2::integer) n", queue, n)
		}
		super.exec("alter table lock.request set (autovacuum_enabled = off)")
		for _, state := range []string{"no statistics", "statistics of an empty queue", "statistics of a full one"} {
			fill("default", 20000)
			fill("other", 20000)
			if n := requestBuffers(v); n > bound {
				t.Errorf("%s: %d buffers, want at most %d", state, n, bound)
			}
			if n := requestEntries(v, 0); n > ahead {
				t.Errorf("%s: %d entries of the queue's index", state, n)
			}
			switch state {
			case "no statistics":
				super.exec("truncate lock.request")
				super.exec("analyze lock.request")
			default:
				super.exec("analyze lock.request")
				super.exec("truncate lock.request")
			}
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
		if line1 > ahead || line2 > ahead {
			t.Error("the search from the line grows with what is settled, or reads the backlog")
		}
		old.exec("commit")
		eventually(t, "what is settled costs a search nothing without the snapshot", func() bool { // autovacuum may have another one
			whole, line := measure()
			return whole <= ahead && line <= ahead
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
			w.settles("complete", 1) // on the row engine the first lock of an entity makes a row
			a.exec("select lock.enqueue('update', 'e')")
			w.takes("default", 2)
			a.exec("select lock.enqueue('update', 'e')")
			v.takes("default")
			answers(v.session, true, "select pg_current_xact_id_if_assigned() is null")
			answers(w.session, int64(1), "select lock.settle_request($1, 'retry', null, '1 hour')", w.process)
			w.exec("commit")
			v.takes("default") // what was put back until later is looked at under its lock, which writes on the row engine
			answers(v.session, true, "select lock.engine() = 'row' or pg_current_xact_id_if_assigned() is null")
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
	t.Run("a batch is the oldest max updates, or the create alone", func(t *testing.T) {
		t.Parallel()
		e := open(t, engines()[0])
		s := e.session(t)
		s.exec("select lock.enqueue('update', 'sheet') from generate_series(1, 1001)")
		s.exec("select lock.enqueue('create', 'sheet')")
		const capture = "select concat_ws(' ', count(*), min(request_id), max(request_id)) from lock.capture_request($1, max => $2)"
		for _, c := range []struct {
			max  int
			want string
		}{{3, "1 1002 1002"}, {3, "3 1 3"}, {1, "1 4 4"}, {996, "996 5 1000"}, {5, "1 1001 1001"}} {
			process := requestProcess()
			s.exec("begin")
			answers(s, c.want, capture, process, c.max)
			answers(s, "0 ", "select concat_ws(' ', count(*), '') from lock.capture_request($1)", requestProcess())
			s.exec("select lock.settle_request($1)", process)
			s.exec("commit")
		}
		s.exec("select lock.enqueue('update', 'sheet') from generate_series(1, 1001)")
		s.exec("begin")
		answers(s, "1000 1003 2002", "select concat_ws(' ', count(*), min(request_id), max(request_id)) from lock.capture_request($1)", requestProcess())
	})
	t.Run("settling refuses another number than what is expected", func(t *testing.T) {
		t.Parallel()
		e := open(t, engines()[0])
		a, w := e.session(t), newRequestWorker(t, e)
		a.exec("select lock.enqueue('update', 'e') from generate_series(1, 2)")
		for _, expects := range []int64{0, 1, 3, -1} {
			w.takes("default", 1, 2)
			if refused := w.fails("55000", "select lock.settle_request($1, expects => $2)", w.process, expects); refused.Hint == "" {
				t.Error("no hint")
			}
			w.exec("rollback")
			w.line = 0
		}
		w.takes("default", 1, 2)
		answers(w.session, int64(2), "select lock.settle_request($1, expects => 2)", w.process)
		answers(w.session, int64(0), "select lock.settle_request($1, expects => 0)", w.process)
		w.fails("55000", "select lock.settle_request($1, expects => 2)", w.process)
		w.exec("rollback")
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
		a.exec("select lock.enqueue('create', 'e')") // the one in error stands in nobody's way
		w.settles("complete", 2)
		a.exec("select lock.enqueue('update', 'e')")
		w.line = 0
		w.takes("default", 7)
		w.settles("complete", 1)
		w.line = 0
		w.takes("default", 8)
		w.settles("error", 1)
		a.fails("23505", "select lock.enqueue('create', 'e')")
		answers(a, int64(2), "select count(*) from lock.request_history('e') where request_type = 'create'")
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
		w.settles("retry", 1)
		w.line = 0
		w.takes("default", 1)
		answers(w.session, int64(1), "select lock.settle_request($1, 'retry', 'not now', '1 hour')", w.process)
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
		answers(a, "2 not now", "select tries || ' ' || message from lock.request_history('e') where request_id = 1")
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
		a.fails("42501", "select lock.purge_requests('1 hour')")
		e.operates(t)
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
			{"22004", "select lock.capture_request(gen_random_uuid(), max => null)"},
			{"22023", "select lock.capture_request(gen_random_uuid(), max => 0)"},
			{"22023", "select lock.await_request(gen_random_uuid(), max => -1)"},
			{"22004", "select lock.capture_request(gen_random_uuid(), null)"},
			{"22004", "select lock.capture_request(gen_random_uuid(), 0, null)"},
			{"22023", "select lock.capture_request(gen_random_uuid(), 0, '')"},
			{"22004", "select lock.settle_request(null)"},
			{"22004", "select lock.settle_request(gen_random_uuid(), null)"},
			{"22023", "select lock.settle_request(gen_random_uuid(), 'done')"},
			{"22023", "select lock.settle_request(gen_random_uuid(), 'retry', null, '-1 second')"},
			{"22004", "select lock.settle_request(gen_random_uuid(), 'retry', null, null)"},
			{"22023", "select lock.settle_request(gen_random_uuid(), 'complete', null, '1 second')"},
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

func TestRequestPutBack(t *testing.T) {
	t.Parallel()
	// outage makes n entities, each with one request that is put back for an hour and a newer one.
	outage := func(t *testing.T, e *env, n int) *session {
		super := e.sessionAs(t, e.super)
		super.exec(`insert into lock.request (request_type, entity_id, created_at, available_at)
			select 'update', n::text, now(), now() + interval '1 hour' from generate_series(1, $1::integer) n`, n)
		super.exec("select lock.enqueue('update', n::text) from generate_series(1, $1::integer) n", n)
		return super
	}
	const many, bound = 3000, 150
	t.Run("costs a look nothing, with what came behind it", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			super := outage(t, e, many)
			if n, _ := buffersOnce(super, "select * from lock.capture_request(gen_random_uuid())"); n > bound*4 { // what a first call reads of the catalogue
				t.Errorf("%d buffers for the first look", n)
			}
			if n := buffers(super, "select * from lock.capture_request(gen_random_uuid())"); n > bound {
				t.Errorf("%d buffers for a look that finds nothing", n)
			}
			super.exec("select lock.enqueue('update', 'free')")
			newRequestWorker(t, e).takes("default", 2*many+1)
		})
		e := open(t, advisory)
		mutate(t, e, "add_request", "if new.available_at is null then", "if false then")
		super := outage(t, e, many)
		if n := buffers(super, "select * from lock.capture_request(gen_random_uuid())"); n <= bound {
			t.Errorf("the checker sees %d buffers without the marks", n)
		}
		answers(super, int64(0), "select count(*) from lock.capture_request(gen_random_uuid())")
	})
	t.Run("makes its whole entity wait, whoever slips through, and nothing is forgotten", func(t *testing.T) {
		t.Parallel()
		eachEngine(t, func(t *testing.T, e *env) {
			a, w, super := e.session(t), newRequestWorker(t, e), e.sessionAs(t, e.super)
			a.exec("select lock.enqueue('update', 'e') from generate_series(1, 3)")
			w.max = 2
			w.takes("default", 1, 2)
			late := e.session(t)
			late.exec("begin")
			late.exec("select lock.enqueue('update', 'e')") // 4
			answers(w.session, int64(2), "select lock.settle_request($1, 'retry', null, '1 hour')", w.process)
			w.exec("commit")
			a.exec("select lock.enqueue('update', 'e')") // 5
			late.exec("commit")
			answers(super, "1235", "select string_agg(request_id::text, '' order by request_id) from lock.request where available_at > now()")
			answers(super, int64(1), "select count(distinct available_at) from lock.request")
			a.exec("select lock.enqueue('update', 'f')") // 6
			w.line = 0
			w.takes("default", 6)
			w.settles("complete", 1)
			w.line = 0
			w.takes("default")
			super.exec("update lock.request set available_at = available_at - interval '1 hour' where available_at is not null")
			for _, want := range [][]int64{{1, 2}, {3, 4}, {5}} {
				w.line = 0
				w.takes("default", want...)
				w.settles("complete", int64(len(want)))
			}
			w.takes("default")
		})
	})
	t.Run("frees what came behind it when it is cancelled", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, w, owner := e.session(t), newRequestWorker(t, e), e.sessionAs(t, e.owner)
		a.exec("select lock.enqueue('update', 'e') from generate_series(1, 2)")
		w.takes("default", 1, 2)
		answers(w.session, int64(2), "select lock.settle_request($1, 'retry', null, '1 hour')", w.process)
		w.exec("commit")
		a.exec("select lock.enqueue('update', 'e')")
		w.line = 0
		for id := range int64(2) {
			w.takes("default")
			w.exec("commit")
			answers(owner, true, "select lock.cancel_request($1, 'why')", id+1)
		}
		w.takes("default", 3)
	})
	t.Run("fails again and again, and what was never tried takes turns with it", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		w, super := newRequestWorker(t, e), e.sessionAs(t, e.super)
		const each = 30
		super.exec(`insert into lock.request (request_type, entity_id, created_at, available_at, tries)
			select 'update', n::text, now(), case when n % 2 = 0 then now() - interval '1 second' end, 1 - n % 2
			from generate_series(1, 2 * $1::integer) n`, each)
		seen, tried := map[int64]bool{}, [2]int{}
		for len(seen) < 2*each {
			ids := w.capture("default")
			if len(ids) == 0 {
				if w.line == 0 {
					break
				}
				w.exec("rollback")
				w.line = 0
				continue
			}
			if seen[ids[0]] {
				t.Fatalf("request %d again", ids[0])
			}
			seen[ids[0]] = true
			tried[ids[0]%2]++
			if ahead := tried[0] - tried[1]; ahead < -1 || ahead > 1 {
				t.Fatalf("%d that were due are tried, and %d that were not", tried[0], tried[1])
			}
			answers(w.session, int64(1), "select lock.settle_request($1, 'retry', null, '1 hour')", w.process)
			w.exec("commit")
		}
		if len(seen) != 2*each {
			t.Errorf("%d of %d tried", len(seen), 2*each)
		}
	})
	t.Run("marks what a statement on a tracked table records, at no cost when nothing is put back", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, w := e.sessionAs(t, e.super), newRequestWorker(t, e)
		const rows = 200
		s.exec("create table sheet (id integer primary key, n integer not null default 0)")
		s.exec("select lock.track_changes('sheet', 'id', queue_id => 'changes')")
		record := func(marked, moments int64) {
			t.Helper()
			s.exec("update sheet set n = n + 1")
			answers(s, marked, "select count(available_at) from lock.request where payload -> 'new' ->> 'n' = (select max(n) from sheet)::text")
			got := get[int64](s, "select count(distinct created_at) from lock.request where payload -> 'new' ->> 'n' = (select max(n) from sheet)::text")
			if got == 1 != (moments == 1) {
				t.Errorf("the rows came at %d moments: one means that they went by the trigger", got)
			}
		}
		s.exec("insert into sheet select generate_series(1, $1::integer)", rows)
		s.exec("select lock.enqueue('update', 'e')")
		w.capture("default")
		answers(w.session, int64(1), "select lock.settle_request($1, 'retry', null, '1 hour')", w.process)
		w.exec("commit")
		record(0, 1)
		w.line = 0
		if len(w.capture("changes")) != 2 {
			t.Fatal("no batch of two")
		}
		answers(w.session, int64(2), "select lock.settle_request($1, 'retry', null, '1 hour')", w.process)
		w.exec("commit")
		record(1, rows)
	})
	t.Run("is found first, by its time, and a worker that always fails reaches everything once", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		w, super := newRequestWorker(t, e), e.sessionAs(t, e.super)
		super.exec("select setseed(0.26)")
		super.exec(`insert into lock.request (request_type, entity_id, created_at, available_at)
			select 'update', floor(random() * 60)::text, now(),
				case when random() < 0.5 then now() - floor(random() * 5) * interval '1 second' end
			from generate_series(1, 300)`)
		entities := get[int](super, "select count(distinct entity_id)::integer from lock.request")
		for _, w.max = range []int{1, 2, 1000} {
			met := map[string]bool{}
			for w.line = 0; ; {
				before := w.line
				ids := w.capture("default")
				w.exec("rollback")
				if len(ids) == 0 {
					break
				}
				entity := get[string](super, "select entity_id from lock.request where request_id = $1", ids[0])
				if met[entity] {
					t.Fatalf("max %d: entity %s again behind %d", w.max, entity, before)
				}
				met[entity] = true
			}
			if len(met) != entities {
				t.Errorf("max %d: %d of %d entities reached", w.max, len(met), entities)
			}
		}
	})
}

func TestRequestHugeEntity(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		a, b, super := newRequestWorker(t, e), newRequestWorker(t, e), e.sessionAs(t, e.super)
		const huge = 20000
		super.exec("insert into lock.request (request_type, entity_id, created_at) select 'update', 'huge', now() from generate_series(1, $1::integer)", huge)
		super.exec("select lock.enqueue('update', 'other')")
		size := func() int64 { return get[int64](super, "select pg_relation_size('lock.request')") }
		before := size()
		for first := int64(1); first < 3000; first += 1000 {
			a.line = 0
			batch := a.capture("default")
			if len(batch) != 1000 || batch[0] != first || batch[999] != first+999 || !slices.IsSorted(batch) {
				t.Fatalf("a batch of %d, from %d", len(batch), batch[0])
			}
			b.line = 0
			b.takes("default", huge+1)
			b.exec("rollback")
			a.settles("complete", 1000)
		}
		if grown := size() - before; grown > before/2 {
			t.Errorf("lock.request grew from %d bytes by %d for 3 batches", before, grown)
		}
	})
}
