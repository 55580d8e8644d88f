package tests

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

func TestMutexWinner(t *testing.T) {
	contest{
		sql: "select lock.acquire_mutex($1, 'round ' || $2::integer)",
		again: func(t *testing.T, e *env, id string) {
			admin(t, e, "update lock.mutex set acquired = false where task_id = $1", id)
		},
		mutate: func(t *testing.T, e *env) {
			mutate(t, e, "acquire_mutex", "case when not mutex.acquired then lock_internal.uncontended(mutex.task_id) or grabbed end",
				"exists (select from lock.mutex as seen where seen.task_id = acquire_mutex.task_id and not seen.acquired)")
		},
	}.run(t)
}

// The statements of the SQL page, in its order.
func TestMutexSQLPage(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	for _, id := range []string{"task_a", "task_b", "task_c"} {
		answers(s, true, "select lock.create_mutex($1)", id)
		answers(s, false, "select lock.create_mutex($1)", id)
	}
	answers(s, true, "select lock.acquire_mutex('task_a')")
	answers(e.session(t), false, "select lock.acquire_mutex('task_a')")
	answers(s, true, "select lock.acquire_mutex('task_b')")
	answers(s, true, "select lock.release_mutex('task_a')")
	answers(s, false, "select lock.release_mutex('task_a')")
	answers(s, true, "select lock.acquire_mutex('task_a')")
	answers(s, false, "select lock.release_mutex('task_c')")
	answers(s, false, "select lock.release_mutex('never made')")
	answers(s, false, "select exists (select from lock.mutex_status where task_id = 'never made')")
}

func TestMutexStays(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	t.Run("acquired when its holder's connection dies", func(t *testing.T) {
		answers(s, true, "select lock.acquire_mutex('crash')")
		s.conn.Close(ctx)
		answers(e.session(t), false, "select lock.acquire_mutex('crash')")
	})
	t.Run("free when the grant rolls back", func(t *testing.T) {
		s := e.session(t)
		s.exec("begin")
		answers(s, true, "select lock.acquire_mutex('rolled back')")
		answers(s, false, "select lock.acquire_mutex('rolled back')")
		s.exec("rollback")
		answers(e.session(t), true, "select lock.acquire_mutex('rolled back')")
	})
	t.Run("acquired when the release rolls back", func(t *testing.T) {
		s := e.session(t)
		answers(s, true, "select lock.acquire_mutex('kept')")
		s.exec("begin")
		answers(s, true, "select lock.release_mutex('kept')")
		answers(e.session(t), false, "select lock.acquire_mutex('kept')")
		s.exec("rollback")
		answers(s, false, "select lock.acquire_mutex('kept')")
	})
}

func TestMutexOwner(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.acquire_mutex('a', 'one')")
	answers(s, false, "select lock.acquire_mutex('a', 'one')")
	answers(s, false, "select lock.release_mutex('a', 'two')")
	answers(s, false, "select lock.release_mutex('a')")
	answers(s, true, "select owner = 'one' and acquired and held_for between '0' and '1 hour' from lock.mutex_status where task_id = 'a'")
	answers(s, true, "select lock.release_mutex('a', 'one')")
	answers(s, true, "select owner is null and acquired_at is null and held_for is null and not acquired from lock.mutex_status where task_id = 'a'")
	answers(s, true, "select lock.acquire_mutex('a')")
	answers(s, false, "select lock.release_mutex('a', 'one')")
	answers(s, true, "select lock.release_mutex('a')")
}

func TestMutexDenialWritesNothing(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, true, "select lock.acquire_mutex('held', 'one')")
	answers(s, true, "select lock.create_mutex('idle')")
	s.denied("select lock.acquire_mutex('held')")
	s.denied("select lock.create_mutex('held')")
	s.denied("select lock.release_mutex('held', 'two')")
	s.denied("select lock.release_mutex('idle')")
	s.denied("select lock.release_mutex('unknown')")
	for _, id := range []string{"idle", "new"} {
		grantedAfterRollback(t, e, fmt.Sprintf("select lock.acquire_mutex('%s')", id))
		admin(t, e, "update lock.mutex set acquired = false")
		deniedAfterCommit(t, e, fmt.Sprintf("select lock.acquire_mutex('%s')", id))
	}
	deniedAfterCommit(t, e, "select lock.acquire_mutex('new and committed')")
	deniedAfterCommit(t, e, "select lock.release_mutex('new and committed')")
	deniedAfterCommit(t, e, "select lock.create_mutex('made twice')")

	t.Run("the checker catches a grab that waits in the update", func(t *testing.T) {
		mutate(t, e, "acquire_mutex", "lock_internal.uncontended(mutex.task_id) or grabbed", "true")
		answers(s, true, "select lock.create_mutex('mutated')")
		holder, waiter := e.session(t), e.session(t)
		holder.exec("begin")
		answers(holder, true, "select lock.acquire_mutex('mutated')")
		waiter.exec("begin")
		p := waiter.start("select lock.acquire_mutex('mutated')").blocked()
		holder.exec("commit")
		p.ends()
		answers(waiter, false, "select pg_current_xact_id_if_assigned() is null")
	})
}

// A snapshot that is older than the answer may be denied, or told to try again; it never gets a second grant.
func TestMutexStaleSnapshot(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	for _, level := range levels[1:] {
		for _, known := range []bool{true, false} {
			id := fmt.Sprintf("%s %v", level, known)
			a, b := e.session(t), e.session(t)
			if known {
				answers(a, true, "select lock.create_mutex($1)", id)
			}
			b.exec("begin isolation level " + level + "; select 1")
			answers(a, true, "select lock.acquire_mutex($1)", id)
			b.fails("40001", "select lock.acquire_mutex($1)", id)
			b.exec("rollback")
			answers(b, false, "select lock.acquire_mutex($1)", id)
		}
	}
}

func TestMutexRefuses(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	for _, function := range []string{"create_mutex(%s)", "acquire_mutex(%s)", "release_mutex(%s)"} {
		call := "select lock." + function
		s.fails("22004", fmt.Sprintf(call, "null"))
		s.fails("22023", fmt.Sprintf(call, "''"))
		s.fails("22023", fmt.Sprintf(call, "repeat('x', 1025)"))
	}
	s.fails("22023", "select lock.acquire_mutex('a', '')")
	s.fails("22023", "select lock.release_mutex('a', repeat('x', 1025))")
	answers(s, true, "select lock.acquire_mutex(repeat('ü', 512), repeat('x', 1024))")
	s.exec("set default_transaction_read_only = on")
	s.fails("25006", "select lock.acquire_mutex('read only')")
	s.fails("25006", "select lock.acquire_mutex(repeat('ü', 512))")
	s.exec("reset default_transaction_read_only")
	s.fails("42501", "select lock.force_release_mutex('a', 'why')")
	s.fails("42501", "select lock.drop_unused_mutexes('1 day')")
	s.fails("42501", "select * from lock.mutex")
	s.fails("42501", "select * from lock.forced_release")
	owner := e.sessionAs(t, e.owner)
	owner.fails("22004", "select lock.force_release_mutex('a', null)")
	owner.fails("22023", "select lock.force_release_mutex('a', '  ')")
	owner.fails("22004", "select lock.drop_unused_mutexes(null)")
	owner.fails("22004", "select lock.drop_unused_mutexes('1 day', null)")
	owner.fails("22023", "select lock.drop_unused_mutexes('1 day', 0)")
	owner.fails("22023", "select lock.drop_unused_mutexes('-1 day')")
	owner.fails("22023", "select lock.drop_unused_mutexes('0')")
	answers(owner, 1, "select count(*)::integer from lock.mutex")
}

func TestMutexForcedRelease(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	answers(s, true, "select lock.acquire_mutex('nightly', 'host 7')")
	answers(owner, true, "select lock.force_release_mutex('nightly', 'host 7 burnt down')")
	answers(owner, false, "select lock.force_release_mutex('nightly', 'again')")
	answers(owner, false, "select lock.force_release_mutex('unknown', 'again')")
	answers(s, true, "select lock.acquire_mutex('nightly', 'host 8')")
	answers(s, false, "select lock.release_mutex('nightly', 'host 7')")
	answers(owner, `mutex nightly host 7 burnt down locks_owner host 7 t`, `
		select concat_ws(' ', kind, id, reason, released_by, previous ->> 'owner', (previous ->> 'acquired_at')::timestamptz <= released_at)
		from lock.forced_release`)
}

func TestMutexDropUnused(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	old := func(where string) {
		admin(t, e, "update lock.mutex set released_at = released_at - interval '40 days', unused_since = unused_since - interval '40 days' where "+where)
	}
	owner.exec("insert into lock.mutex (task_id, acquired, acquired_at) select 'idle ' || n, false, null from generate_series(1, 25) n")
	owner.exec("insert into lock.mutex (task_id, acquired, acquired_at) select 'held ' || n, true, now() from generate_series(1, 25) n")
	answers(owner, int64(0), "select lock.drop_unused_mutexes('30 days')")
	old("true")
	answers(owner, true, "select lock.create_mutex('young')")

	// Whoever is acquiring one is passed over, and not waited for.
	s.exec("begin")
	answers(s, true, "select lock.acquire_mutex('idle 1')")
	dropped := int64(0)
	for range 100 {
		n := get[int64](owner, "select lock.drop_unused_mutexes('30 days', 7)")
		if n > 7 {
			t.Fatalf("dropped %d", n)
		}
		if n == 0 {
			break
		}
		dropped += n
	}
	if dropped != 24 {
		t.Fatalf("dropped %d in all", dropped)
	}
	s.exec("commit")
	answers(owner, 27, "select count(*)::integer from lock.mutex where acquired or task_id = 'young'")
	answers(owner, 27, "select count(*)::integer from lock.mutex")

	// A held one that was met is out of the way until it is released, and can be dropped after that.
	answers(owner, 25, "select count(*)::integer from lock.mutex where set_aside")
	answers(s, true, "select lock.release_mutex('held 3')")
	answers(owner, int64(0), "select lock.drop_unused_mutexes('30 days')")
	old("task_id = 'held 3'")
	answers(owner, int64(1), "select lock.drop_unused_mutexes('30 days')")
	answers(s, true, "select lock.acquire_mutex('held 3')")

	// One that is dropped while somebody waits to acquire it is made again, once.
	answers(s, true, "select lock.create_mutex('contended')")
	old("task_id = 'contended'")
	owner.exec("begin")
	answers(owner, int64(1), "select lock.drop_unused_mutexes('30 days')")
	a, b := e.session(t), e.session(t)
	pa, wonA := startGet[bool](a, "select lock.acquire_mutex('contended')")
	pb, wonB := startGet[bool](b, "select lock.acquire_mutex('contended')")
	pa.blocked()
	pb.blocked()
	owner.exec("commit")
	pa.ends()
	pb.ends()
	if *wonA == *wonB {
		t.Fatalf("both callers got %v", *wonA)
	}
}

func TestMutexGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	one, two, nobody := locks.NewMutex(e.pool, "one"), locks.NewMutex(e.pool, "two"), locks.NewMutex(e.pool, "")
	check := func(want bool) func(bool, error) {
		return func(got bool, err error) {
			t.Helper()
			must(t, err)
			if got != want {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
	check(true)(one.Acquire(ctx, "a"))
	check(false)(two.Acquire(ctx, "a"))
	check(false)(two.Release(ctx, "a"))
	check(false)(nobody.Release(ctx, "a"))
	status, err := db.New(e.pool).GetMutexStatus(ctx, "a")
	must(t, err)
	if !status.Acquired || *status.Owner != "one" || *status.HeldFor < 0 {
		t.Fatalf("%+v", status)
	}
	check(true)(one.Release(ctx, "a"))
	status, err = db.New(e.pool).GetMutexStatus(ctx, "a")
	must(t, err)
	if status.Acquired || status.HeldFor != nil {
		t.Fatalf("%+v", status)
	}
	check(true)(nobody.Acquire(ctx, "a"))
	_, err = one.Acquire(ctx, "")
	wantCode(t, err, "22023", "empty id")

	// On a transaction the grant is the transaction's, and 40001 is the caller's to handle.
	tx, err := e.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must(t, err)
	_, err = tx.Exec(ctx, "select 1")
	must(t, err)
	check(true)(one.Acquire(ctx, "b"))
	_, err = locks.NewMutex(tx, "").Acquire(ctx, "b")
	wantCode(t, err, "40001", "stale snapshot")
	if !locks.Retryable(err) {
		t.Fatal(err)
	}
	must(t, tx.Rollback(ctx))
}
