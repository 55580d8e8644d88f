package tests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
)

func TestActivity(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	a, b := e.session(t), e.session(t)
	a.exec("select lock.create_timeout('t', '1 hour'), lock.create_throttled_resource('r', '1 hour'), lock.create_task('id', 'q', timeout => '1 hour')")
	a.exec("select lock.create_task('waiting', 'q'), lock.enqueue('update', 'entity', queue_id => 'q')")
	activity := func() []string {
		rows, err := db.New(e.pool).Activity(ctx)
		must(t, err)
		var lines []string
		for _, row := range rows {
			owner := "-"
			if row.Owner != nil {
				owner = *row.Owner
			}
			line := strings.Join([]string{row.Kind, row.Name, row.Mode, map[bool]string{true: "held", false: "waits"}[row.Granted], owner}, " ")
			if row.Until != nil {
				line += " until"
			}
			if row.Since == nil {
				t.Errorf("%s: since when?", line)
			}
			if (row.PID != nil) != (row.Kind == "key") || (row.Key != nil) != (row.Kind == "key") {
				t.Errorf("%s: pid %v, key %v", line, row.PID, row.Key)
			}
			if len(row.BlockedBy) > 0 {
				line += fmt.Sprintf(" behind %v", row.BlockedBy)
			}
			lines = append(lines, line)
		}
		return lines
	}
	if got := activity(); len(got) > 0 {
		t.Errorf("at rest: %q", got)
	}
	a.exec("select lock.acquire_mutex('m', 'me'), lock.acquire_timeout('t'), lock.lock_throttled_resource('r', 'why'), lock.acquire_lease('l', 'leader', '1 hour')")
	a.exec("select lock.capture(1, 'q', owner => 'worker')")
	a.exec("begin")
	want := []string{
		"lease l permit held leader until",
		"mutex m exclusive held me",
		"task q: id exclusive held worker until",
		"throttle r exclusive held - until",
		"timeout t exclusive held - until",
	}
	other := want
	ends := func() {}
	if !target.yugabyte { // who holds a key shows after a second there, and not the same
		a.exec("select lock.exclusive('k'), lock.shared(7), pg_advisory_xact_lock(1), pg_advisory_xact_lock(-1), pg_advisory_xact_lock(4294967295), pg_advisory_xact_lock(1, 2)")
		ends = b.start("select lock.shared('k')").blocked().ends
		held, waits := "key k exclusive held locks_app", fmt.Sprintf("key k shared waits locks_app behind [%d]", a.pid)
		other = append([]string{"key 7 shared held locks_app", waits, held}, want...)
		want = append([]string{"key 7 shared held locks_app", held, waits}, want...)
	}
	if got := activity(); !slices.Equal(got, want) && !slices.Equal(got, other) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	a.exec("rollback")
	ends()

	depths, err := db.New(e.pool).QueueDepth(ctx)
	must(t, err)
	var lines []string
	for _, d := range depths {
		lines = append(lines, fmt.Sprint(d.Kind, " ", d.QueueID, " ", d.Ready))
		if d.OldestReady == nil {
			t.Errorf("%+v", d)
		}
	}
	if got := strings.Join(lines, ", "); got != "request q 1, task q 1" {
		t.Error(got)
	}
}

// queueNames are what a test calls its sessions, by pid.
type queueNames map[int32]string

func (c queueNames) of(pids ...int32) string {
	var names []string
	for _, pid := range pids {
		names = append(names, cmp.Or(c[pid], "a stranger"))
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// blocked are the rows of lock.blocked, a line each.
func (c queueNames) blocked(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	rows, err := db.New(pool).Blocked(ctx)
	must(t, err)
	var lines []string
	for _, row := range rows {
		what := "?"
		if row.Name != nil {
			what = *row.Name
		} else if row.Key != nil {
			what = fmt.Sprint(*row.Key)
		}
		root := "in a cycle"
		if row.RootPID != nil {
			root = "root " + c.of(*row.RootPID) + " " + deref(row.RootState) + " " + deref(row.RootApplication) + ": " + deref(row.RootQuery)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s, behind %s, held by %s, %s", c.of(row.PID), row.Kind, what, row.Mode, c.of(row.BlockedBy...), c.of(row.HeldBy...), root))
		if c.of(row.PID) != "a stranger" && (row.Since == nil || row.RootState != nil && row.RootSince == nil) {
			t.Errorf("since when? %+v", row)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func wantLines(t *testing.T, got string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// known locks names once, so that the row engine has their rows.
func (s *session) known(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.exec("select lock.exclusive($1::text)", name)
	}
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "who waits shows after a second, and not the same")
	eachEngine(t, func(t *testing.T, e *env) {
		a, b, c, d := e.session(t), e.session(t), e.session(t), e.session(t)
		who := queueNames{0: "prepared", int32(a.pid): "a", int32(b.pid): "b", int32(c.pid): "c", int32(d.pid): "d"}
		for name, s := range map[string]*session{"a": a, "b": b, "c": c, "d": d} {
			s.exec("set application_name = '" + name + "''s'")
		}
		a.known("k", "l")
		// rollback ends the transactions, those that wait behind the others.
		rollback := func(waiters ...*pending) {
			t.Helper()
			for _, s := range []*session{a, b, c, d} {
				for _, p := range waiters {
					if p.s == s {
						p.ends()
					}
				}
				s.exec("rollback")
			}
			wantLines(t, who.blocked(t, e.pool))
		}
		wantLines(t, who.blocked(t, e.pool))
		t.Run("a chain of three, and its root idles", func(t *testing.T) {
			a.exec("begin")
			a.exec("select lock.exclusive('k')")
			b.exec("begin")
			b.exec("select lock.exclusive('l')")
			atK := b.start("select lock.shared('k')").blocked()
			atL := c.start("select lock.exclusive('l')").blocked()
			wantLines(t, who.blocked(t, e.pool),
				"b key k shared, behind a, held by a, root a idle in transaction a's: select lock.exclusive('k')",
				"c key l exclusive, behind b, held by b, root a idle in transaction a's: select lock.exclusive('k')",
			)
			// A second one in the queue is behind both, and the holder alone holds.
			behind := d.start("select lock.exclusive('k')").blocked()
			line := "d key k exclusive, behind a+b, held by a, root a idle in transaction a's: select lock.exclusive('k')"
			if e.engine == row {
				line = strings.Replace(line, "a+b", "b", 1) // the server lets one at a time look at the row
			}
			if got := who.blocked(t, e.pool); !strings.Contains(got, line) {
				t.Errorf("got\n%s\nwant\n%s", got, line)
			}
			rollback(atK, atL, behind)
		})
		t.Run("a root that runs, through locks that are not ours", func(t *testing.T) {
			super := e.sessionAs(t, e.super)
			super.exec("create table if not exists public.t as select 1 as n")
			super.exec("grant all on public.t to public")
			a.exec("begin")
			a.exec("select from t for update")
			b.exec("begin")
			b.exec("select lock.exclusive('k')")
			atRow := b.start("update t set n = 2").blocked()
			atTable := super.start("alter table t add column m integer").blocked()
			gate := c.start("select lock.shared('k')").blocked()
			wantLines(t, who.blocked(t, e.pool),
				"c key k shared, behind b, held by b, root a idle in transaction a's: select from t for update")
			a.exec("rollback")
			atRow.ends()
			b.exec("rollback")
			gate.ends()
			atTable.ends()
			rollback()
		})
		t.Run("a cycle that the server has not broken", func(t *testing.T) {
			x, y := e.sessionAs(t, e.super), e.sessionAs(t, e.super)
			who[int32(x.pid)], who[int32(y.pid)] = "x", "y"
			for _, s := range []*session{x, y} {
				s.exec("set deadlock_timeout = '1h'")
				s.exec("begin")
			}
			a.known("x", "y")
			x.exec("select lock.exclusive('x')")
			y.exec("select lock.exclusive('y')")
			one := x.start("select lock.exclusive('y')").blocked()
			other := y.start("select lock.exclusive('x')").blocked()
			super := e.sessionAs(t, e.super)
			super.exec("set deadlock_timeout = '1h'")
			super.exec("begin")
			who[int32(super.pid)] = "z"
			third := super.start("select lock.shared('x')").blocked()
			lines := strings.Split(who.blocked(t, e.pool), "\n")
			if len(lines) != 3 || slices.ContainsFunc(lines, func(line string) bool { return !strings.HasSuffix(line, "in a cycle") }) {
				t.Errorf("got %q", lines)
			}
			_, err := e.admin.Exec(ctx, "select pg_cancel_backend($1)", x.pid)
			must(t, err)
			if code(one.wait()) != "57014" {
				t.Error("not cancelled")
			}
			x.exec("rollback")
			other.ends()
			y.exec("rollback")
			third.ends()
			super.exec("rollback")
		})
		t.Run("a prepared transaction", func(t *testing.T) {
			if get[string](a, "select current_setting('max_prepared_transactions')") == "0" {
				t.Skip("max_prepared_transactions is 0")
			}
			gid := fmt.Sprintf("who's %d", a.pid)
			a.exec("begin")
			a.exec("select lock.exclusive('k')")
			a.exec("prepare transaction '" + strings.ReplaceAll(gid, "'", "''") + "'")
			waiter := b.start("select lock.exclusive('k')").blocked()
			behind := c.start("select lock.exclusive('k')").blocked()
			ahead := map[string]string{advisory: "b+prepared", row: "b"}[e.engine]
			root := "root prepared prepared : prepare transaction 'who''s " + fmt.Sprint(a.pid) + "'"
			wantLines(t, who.blocked(t, e.pool),
				"b key k exclusive, behind prepared, held by prepared, "+root,
				"c key k exclusive, behind "+ahead+", held by prepared, "+root)
			holders, err := db.New(e.pool).WhoName(ctx, "k")
			must(t, err)
			if len(holders) != 3 || *holders[0].PID != 0 || !*holders[0].Granted {
				t.Errorf("who: %+v", holders)
			} else if e.engine == advisory && (deref(holders[0].Query) != "prepare transaction 'who''s "+fmt.Sprint(a.pid)+"'" || holders[0].Since == nil || deref(holders[0].Owner) != "locks_app") {
				t.Errorf("who: %+v", holders[0])
			}
			d.exec("rollback prepared '" + strings.ReplaceAll(gid, "'", "''") + "'")
			waiter.ends()
			behind.ends()
			rollback()
		})
		if e.engine == row {
			t.Run("sharers, one at a time", func(t *testing.T) {
				for _, s := range []*session{a, b} {
					s.exec("begin")
					s.exec("select lock.shared('k')")
				}
				alone := c.start("select lock.exclusive('k')").blocked()
				got := who.blocked(t, e.pool)
				for _, first := range []string{"a", "b"} {
					if got == strings.ReplaceAll("c key k exclusive, behind ?, held by ?, root ? idle in transaction ?'s: select lock.shared('k')", "?", first) {
						got = ""
					}
				}
				wantLines(t, got)
				rollback(alone)
			})
		} else {
			t.Run("sharers", func(t *testing.T) {
				for _, s := range []*session{a, b} {
					s.exec("begin")
					s.exec("select lock.shared(9)")
				}
				alone := c.start("select lock.exclusive(9)").blocked()
				sharer := d.start("select lock.shared(9)").blocked()
				root := "held by a+b, root a idle in transaction a's: select lock.shared(9)"
				wantLines(t, who.blocked(t, e.pool), "c key 9 exclusive, behind a+b, "+root, "d key 9 shared, behind c, "+root)
				rollback(alone, sharer)
			})
			t.Run("another program's locks are none of ours", func(t *testing.T) {
				for _, call := range []string{"pg_advisory_xact_lock(5)", "pg_advisory_xact_lock(-5)", "pg_advisory_xact_lock(5, 5)"} {
					a.exec("begin")
					a.exec("select " + call)
					waiter := b.start("select " + call).blocked()
					wantLines(t, who.blocked(t, e.pool))
					rollback(waiter)
				}
			})
		}
	})
}

// What waits for a row shows with the row's id where the server tells its address.
func TestBlockedRows(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "pg_locks has no addresses of rows there")
	e := open(t, advisory)
	a, b, c := e.session(t), e.session(t), e.session(t)
	who := queueNames{int32(a.pid): "a", int32(b.pid): "b", int32(c.pid): "c"}
	a.exec("select lock.create_mutex('m'), lock.create_timeout('t', '1 hour'), lock.create_throttled_resource('r', '1 hour'), lock.acquire_time_slot('s', '1 day'), lock.create_task('id', 'q')")
	a.exec("select lock.take('b', 1, '1 microsecond')")
	a.exec("select lock.acquire_mutex('held'), lock.acquire_lease('l', 'me', '1 hour')")
	token := get[int64](a, "select token from lock.lease_holder where name = 'l'")
	for _, at := range []struct{ want, holder, waiter string }{
		{"mutex ?", "select lock.release_mutex('held')", "select lock.release_mutex('held')"},
		{"mutex ?", "select lock.acquire_mutex('m')", "select lock.acquire_mutex('m')"},
		{"mutex ?", "select lock.create_mutex('new')", "select lock.create_mutex('new')"},
		{"timeout ?", "select lock.create_timeout('t', '2 hours')", "select lock.create_timeout('t', '3 hours')"},
		{"throttle ?", "select lock.create_throttled_resource('r', '2 hours')", "select lock.create_throttled_resource('r', '3 hours')"},
		{"time_slot ?", "select lock.acquire_time_slot('new', '1 day')", "select lock.acquire_time_slot('new', '1 day')"},
		{"rate_limit ?", "select lock.take('new', 1, '1 day')", "select lock.take('new', 1, '1 day')"},
		{"rate_limit b", "select lock.take('b', 2, '1 day')", "select lock.take('b', 3, '1 day')"},
		{"lease l", fmt.Sprintf("select lock.release_lease('l', %d)", token), fmt.Sprintf("select lock.release_lease('l', %d)", token)},
		{"task q: id", "select lock.set_status('id', 'failed', queue_id => 'q')", "select lock.set_status('id', 'done', queue_id => 'q')"},
		{"request ?", "select lock.enqueue('create', 'e')", "select lock.enqueue('create', 'e')"},
	} {
		t.Run(at.want+": "+at.waiter, func(t *testing.T) {
			a.exec("begin")
			a.exec(at.holder)
			b.exec("begin")
			waiter := b.start(at.waiter).blocked()
			root := "held by a, root a idle in transaction : " + at.holder
			wantLines(t, who.blocked(t, e.pool), "b "+at.want+" exclusive, behind a, "+root)
			if !strings.HasSuffix(at.want, "?") {
				c.exec("begin")
				behind := c.start(at.waiter).blocked()
				wantLines(t, who.blocked(t, e.pool), "b "+at.want+" exclusive, behind a, "+root, "c "+at.want+" exclusive, behind b, "+root)
				a.exec("rollback")
				waiter.ends()
				b.exec("rollback")
				behind.ends()
				c.exec("rollback")
				return
			}
			a.exec("rollback")
			waiter.wait()
			b.exec("rollback")
		})
	}
	t.Run("a whole table", func(t *testing.T) {
		owner := e.sessionAs(t, e.owner)
		who[int32(owner.pid)] = "owner"
		a.exec("begin")
		a.exec("select lock.create_task('new', 'q')")
		owner.exec("begin")
		owner.exec("select lock.create_task('other', 'q')")
		waiter := owner.start("lock table lock.task").blocked()
		wantLines(t, who.blocked(t, e.pool), "owner task ? exclusive, behind a, held by a, root a idle in transaction : select lock.create_task('new', 'q')")
		a.exec("rollback")
		waiter.ends()
		owner.exec("rollback")
	})
	t.Run("a row of a table of the program's own is none of ours", func(t *testing.T) {
		e.sessionAs(t, e.super).exec("create table public.t as select 1 as n; grant all on public.t to public")
		a.exec("begin")
		a.exec("update t set n = 2")
		b.exec("begin")
		b.exec("select lock.create_task('another', 'q')")
		waiter := b.start("update t set n = 3").blocked()
		wantLines(t, who.blocked(t, e.pool))
		a.exec("rollback")
		waiter.ends()
		b.exec("rollback")
	})
}

// blockedPair has a holder and a waiter in a database, for a key and for a task's row, and returns what ends them.
func (e *env) blockedPair(t *testing.T) (release func()) {
	t.Helper()
	a, b := e.session(t), e.session(t)
	a.known("k")
	a.exec("select lock.create_task('id', 'q')")
	c := e.session(t)
	a.exec("begin")
	a.exec("select lock.exclusive('k'), lock.set_status('id', 'failed', queue_id => 'q')")
	atKey := b.start("select lock.exclusive('k')").blocked()
	atTask := c.start("select lock.set_status('id', 'done', queue_id => 'q')").blocked()
	return func() {
		a.exec("rollback")
		atKey.ends()
		atTask.ends()
	}
}

func TestBlockedDatabases(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "who waits shows after a second, and not the same")
	eachEngine(t, func(t *testing.T, e *env) {
		// A clone's tables have the numbers of its template's: only the database tells them apart.
		defer open(t, e.engine).blockedPair(t)()
		wantLines(t, queueNames{}.blocked(t, e.pool))
		mutate(t, e, "waiters", "and waiting.here", "", "and at.here", "")
		if got := strings.Count(queueNames{}.blocked(t, e.pool), "a stranger "); got < 2 {
			t.Errorf("the checker sees %d of another database's waiters", got)
		}
	})
}

func TestBlockedChecker(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "who waits shows after a second, and not the same")
	for name, pieces := range map[string][]string{
		"a chain that is not followed":          {"join edge on edge.behind = chain.node", "join edge on false"},
		"a waiter taken for the root":           {"where edge.behind not in (select waiting.node from waiting)", ""},
		"a sharer in its own way":               {"and seen.pid is distinct from waiting.pid", ""},
		"the first in the queue for the holder": {"and waiting.locktype = 'tuple'", "and false"},
		"an address that is looked for nowhere": {"at.locktype = 'tuple'", "false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b, c, d := e.session(t), e.session(t), e.session(t), e.session(t)
			who := queueNames{int32(a.pid): "a", int32(b.pid): "b", int32(c.pid): "c", int32(d.pid): "d"}
			a.exec("select lock.create_task('id', 'q')")
			for _, s := range []*session{b, a} { // The root's transaction is the younger one.
				s.exec("begin")
				s.exec("select lock.shared(1)")
			}
			b.exec("select lock.set_status('id', 'failed', queue_id => 'q')")
			upgrade := b.start("select lock.exclusive(1)").blocked()
			first := c.start("select lock.set_status('id', 'done', queue_id => 'q')").blocked()
			second := d.start("select lock.set_status('id', 'done', queue_id => 'q')").blocked()
			root := "root a idle in transaction : select lock.shared(1)"
			want := []string{
				"b key 1 exclusive, behind a, held by a, " + root,
				"c task q: id exclusive, behind b, held by b, " + root,
				"d task q: id exclusive, behind c, held by b, " + root,
			}
			wantLines(t, who.blocked(t, e.pool), want...)
			mutate(t, e, "waiters", pieces...)
			if got := who.blocked(t, e.pool); got == strings.Join(want, "\n") {
				t.Error("not seen")
			}
			a.exec("rollback")
			upgrade.ends()
			b.exec("rollback")
			first.ends()
			second.ends()
		})
	}
}

// The lock manager is asked after pg_locks was read: whoever has got the lock meanwhile waits no more.
func TestBlockedNoMore(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "who waits shows after a second, and not the same")
	e := open(t, advisory)
	defer e.blockedPair(t)()
	mutate(t, e, "waiters", "pg_blocking_pids(one.pid)", "'{}'::integer[]")
	wantLines(t, queueNames{}.blocked(t, e.pool))
	mutate(t, e, "waiters", "where asked.blocked_by <> '{}'", "")
	if (queueNames{}).blocked(t, e.pool) == "" {
		t.Error("the checker does not see a wait that is over")
	}
}

// What is read on YugabyteDB alone, from a table that has the columns which its pg_locks is documented to have.
func TestBlockedYugabyteBranch(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "this stands in for it")
	e := open(t, row)
	a, b, c := e.session(t), e.session(t), e.session(t)
	who := queueNames{int32(a.pid): "a", int32(b.pid): "b", int32(c.pid): "c"}
	a.known("k", "l")
	a.exec("begin")
	a.exec("select 'work'")
	super := e.sessionAs(t, e.super)
	super.exec(`create table public.fake (locktype text, database oid, relation oid, page integer, tuple smallint, virtualxid text, transactionid xid, classid oid,
		objid oid, objsubid smallint, virtualtransaction text, pid integer, mode text[], granted boolean, waitstart timestamptz, waitend timestamptz, ybdetails jsonb)`)
	super.exec("grant select on public.fake to public")
	for _, l := range []struct {
		pid       uint32
		name      string
		mode      string
		granted   bool
		own       string
		blockedBy string
	}{
		{a.pid, "k", "{STRONG_READ,STRONG_WRITE}", true, "t1", ""},
		{b.pid, "l", "{STRONG_READ,STRONG_WRITE}", true, "t2", ""},
		{b.pid, "k", "{STRONG_READ}", false, "t2", `"t1"`},
		{c.pid, "l", "{STRONG_READ,STRONG_WRITE}", false, "t3", `"t2"`},
	} {
		for _, columns := range []string{"", fmt.Sprintf("\"%d\"", get[int64](super, "select lock.key($1)", l.name))} {
			super.exec(`insert into public.fake (locktype, database, relation, pid, mode, granted, waitstart, ybdetails)
				select case when $1 = '' then 'relation' else 'row' end, pg_database.oid, 'lock.locked_keys'::regclass, $2, $3::text::text[], $4, clock_timestamp(),
					format('{"transactionid": "%s", "blocked_by": [%s], "keyrangedetails": {"cols": [%s]}}', $5::text, $6::text, $1)::jsonb
				from pg_database where datname = current_database()`, columns, l.pid, l.mode, l.granted, l.own, l.blockedBy)
		}
	}
	mutate(t, e, "waiters", "from pg_locks\n", "from public.fake as pg_locks\n", "version() like '%-YB-%'", "true")
	wantLines(t, who.blocked(t, e.pool),
		"b key k shared, behind a, held by a, root a idle in transaction : select 'work'",
		"c key l exclusive, behind b, held by b, root a idle in transaction : select 'work'")
	rows, err := db.New(e.pool).WhoName(ctx, "l")
	must(t, err)
	if len(rows) != 2 || *rows[0].PID != int32(b.pid) || *rows[1].PID != int32(c.pid) {
		t.Errorf("who: %+v", rows)
	}
	a.exec("rollback")
}

// Roles see of each other what pg_stat_activity shows them: neither view nor function may show more.
func TestBlockedRights(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "who waits shows after a second, and not the same")
	eachEngine(t, func(t *testing.T, e *env) {
		super := e.sessionAs(t, e.super)
		super.exec("do $$ begin create role locks_monitor login; grant pg_monitor to locks_monitor; exception when duplicate_object or unique_violation then null; end $$")
		owner, colleague, app, waiter := e.sessionAs(t, e.owner), e.sessionAs(t, e.owner), e.session(t), e.session(t)
		monitor := e.sessionAs(t, strings.Replace(e.url, "locks_app@", "locks_monitor@", 1))
		owner.exec("select lock.grant_to('locks_monitor')")
		owner.exec("set application_name = 'migrator'")
		app.known("k")
		owner.exec("begin")
		owner.exec("select lock.exclusive('k') /* secret */")
		blocked := waiter.start("select lock.exclusive('k') /* mine */").blocked()
		const (
			seesBlocked  = "select concat_ws(' ', root_owner, root_application, root_state, root_since is not null, root_query) from lock.blocked"
			seesWho      = "select concat_ws(' ', owner, application, state, transaction_since is not null, query) from lock.who('k') where granted"
			seesActivity = "select owner || ' ' || details from lock.activity where kind = 'key' and granted"
		)
		hidden, shown := "locks_owner migrator f <insufficient privilege>", "locks_owner migrator idle in transaction t select lock.exclusive('k') /* secret */"
		for _, sql := range []string{seesBlocked, seesWho} {
			answers(app, hidden, sql)
			answers(monitor, shown, sql)
			answers(colleague, shown, sql)
		}
		answers(app, "locks_owner migrator: <insufficient privilege>", seesActivity)
		// The owner of the schema is no superuser: others are hidden from it, too.
		answers(colleague, "<insufficient privilege>", "select query from lock.blocked")
		answers(app, "select lock.exclusive('k') /* mine */", "select query from lock.blocked")
		app.fails("42501", "select lock_internal.add_key(1, null, false)")

		// As the owner, functions would show the owner's queries to everybody.
		super.exec("alter function lock_internal.waiters() security definer; alter function lock.who(bigint) security definer")
		for _, sql := range []string{seesBlocked, seesWho} {
			answers(app, shown, sql)
		}
		owner.exec("rollback")
		blocked.ends()
	})
}

// whoLines are the rows of lock.who, a line each.
func (n queueNames) whoLines(t *testing.T, rows []db.KeySession, err error) string {
	t.Helper()
	must(t, err)
	var lines []string
	for _, row := range rows {
		if row.Hint != nil {
			if row.PID != nil || row.Granted != nil || row.Mode != nil {
				t.Errorf("%+v", row)
			}
			lines = append(lines, *row.Hint)
			continue
		}
		line := fmt.Sprintf("%s %s %s %s", row.Name, *row.Mode, map[bool]string{true: "held by", false: "waited for by"}[*row.Granted], n.of(*row.PID))
		if len(row.BlockedBy) > 0 {
			line += " behind " + n.of(row.BlockedBy...)
		}
		if row.Since == nil || row.TransactionSince == nil || deref(row.Owner) != "locks_app" || deref(row.Query) == "" || deref(row.State) == "" {
			t.Errorf("%+v", row)
		}
		lines = append(lines, line+" of "+deref(row.Application))
	}
	return strings.Join(lines, "\n")
}

func TestWho(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "who holds shows after a second, and not the same")
	open1 := func(t *testing.T, engine string) (e *env, a, b *session, name func(string) string, number func(int64) string) {
		t.Helper()
		e = open(t, engine)
		a, b = e.session(t), e.session(t)
		a.exec("set application_name = 'shop'")
		b.exec("set application_name = 'report'")
		who := queueNames{int32(a.pid): "a", int32(b.pid): "b"}
		q := db.New(e.pool)
		name = func(name string) string {
			rows, err := q.WhoName(ctx, name)
			return who.whoLines(t, rows, err)
		}
		number = func(key int64) string {
			rows, err := q.Who(ctx, key)
			return who.whoLines(t, rows, err)
		}
		return
	}
	t.Run("finds a name on its very first lock", func(t *testing.T) {
		t.Parallel()
		_, a, b, name, number := open1(t, advisory)
		wantLines(t, name("customer:42"))
		a.exec("begin")
		a.exec("select lock.shared('customer:42')")
		wantLines(t, name("customer:42"), "customer:42 shared held by a of shop")
		key := get[int64](b, "select lock.key('customer:42')")
		wantLines(t, number(key), fmt.Sprintf("%d shared held by a of shop", key))
		waiter := b.start("select lock.exclusive('customer:42')").blocked()
		for _, got := range []string{name("customer:42"), number(key)} {
			if want := "customer:42 shared held by a of shop\ncustomer:42 exclusive waited for by b behind a of report"; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		}
		a.exec("rollback")
		waiter.ends()
		wantLines(t, name("customer:42"))
	})
	t.Run("hints at the key that looks alike", func(t *testing.T) {
		t.Parallel()
		_, a, b, name, number := open1(t, advisory)
		a.exec("begin")
		a.exec("select lock.exclusive('42')")
		wantLines(t, name("42"), "42 exclusive held by a of shop")
		wantLines(t, number(42), "The name '42' is another key than the number 42, and is in use: see lock.who('42').")
		wantLines(t, number(43))
		b.exec("begin")
		b.exec("select lock.exclusive(42), lock.exclusive(-9223372036854775808)")
		for got, want := range map[string]string{
			name("42"):                   "42 exclusive held by a of shop\nThe number 42 is another key than the name '42', and is in use: see lock.who(42).",
			number(42):                   "42 exclusive held by b of report\nThe name '42' is another key than the number 42, and is in use: see lock.who('42').",
			name("-9223372036854775808"): "The number -9223372036854775808 is another key than the name '-9223372036854775808', and is in use: see lock.who(-9223372036854775808).",
		} {
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		}
		for _, other := range []string{"042", "+42", "42 ", "4 2", "-0", "9223372036854775808", strings.Repeat("9", 1024), "x"} {
			wantLines(t, name(other))
		}
	})
	t.Run("on the row engine while somebody waits", func(t *testing.T) {
		t.Parallel()
		_, a, b, name, number := open1(t, row)
		a.known("k", "42")
		a.exec("begin")
		a.exec("select lock.exclusive('k')")
		wantLines(t, name("k"))
		waiter := b.start("select lock.shared('k')").blocked()
		if got, want := name("k"), "k unknown held by a of shop\nk shared waited for by b behind a of report"; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		a.exec("rollback")
		waiter.ends()
		a.exec("begin")
		a.exec("select lock.exclusive('42')")
		waiter = b.start("select lock.shared('42')").blocked()
		wantLines(t, number(42), "The name '42' is another key than the number 42, and is in use: see lock.who('42').")
		a.exec("rollback")
		waiter.ends()
	})
	t.Run("says what is wrong with an argument", func(t *testing.T) {
		t.Parallel()
		s := open(t, advisory).session(t)
		for sql, state := range map[string]string{
			"select lock.who(null::bigint)": "22004", "select lock.who(null::text)": "22004", "select lock.who('')": "22023",
			"select lock.who(repeat('x', 1025))": "22023", "select lock.who(repeat('x', 10000000))": "22023",
		} {
			if err := s.fails(state, sql); err.Hint == "" {
				t.Errorf("%s: no hint", sql)
			}
		}
		s.fails("22021", "select lock.who($1::text)", "a\x00b")
	})
}
