package tests

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

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
	s.denied("select lock.create_mutex('held')")
	s.denied("select lock.release_mutex('held', 'two')")
	s.denied("select lock.release_mutex('idle')")
	s.denied("select lock.release_mutex('unknown')")
	deniedAfterCommit(t, e, "select lock.create_mutex('made twice')")

	// Who has waited to release it, and lost, keeps nobody from it.
	answers(s, true, "select lock.acquire_mutex('released twice')")
	grantedAfterRollback(t, e, "select lock.release_mutex('released twice')")
	answers(s, true, "select lock.acquire_mutex('released twice')")
	waiter := deniedAfterCommit(t, e, "select lock.release_mutex('released twice')")
	s.exec("set statement_timeout = '5s'")
	answers(s, true, "select lock.acquire_mutex('released twice')")
	waiter.exec("commit")
}

func TestMutexRefusesOwners(t *testing.T) {
	t.Parallel()
	s := open(t, advisory).session(t)
	s.fails("22023", "select lock.acquire_mutex('a', '')")
	s.fails("22023", "select lock.release_mutex('a', repeat('x', 1025))")
	answers(s, true, "select lock.acquire_mutex('a', repeat('x', 1024))")
}

// A held one that was met is out of the way until it is released, and can be dropped after that.
func TestMutexDropUnusedSetsAside(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	old := func() {
		admin(t, e, "update lock.mutex set released_at = released_at - interval '40 days', unused_since = unused_since - interval '40 days'")
	}
	owner.exec("insert into lock.mutex (task_id, acquired, acquired_at) select 'held ' || n, true, now() from generate_series(1, 25) n")
	old()
	answers(owner, int64(0), "select lock.drop_unused_mutexes('30 days', 7)")
	answers(owner, 25, "select count(*)::integer from lock.mutex where set_aside")
	answers(s, true, "select lock.release_mutex('held 3')")
	answers(owner, int64(0), "select lock.drop_unused_mutexes('30 days')")
	old()
	answers(owner, int64(1), "select lock.drop_unused_mutexes('30 days')")
	answers(s, true, "select lock.acquire_mutex('held 3')")
}

func TestMutexGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	one, two, nobody := locks.NewDurableMutex(e.pool, "one"), locks.NewDurableMutex(e.pool, "two"), locks.NewDurableMutex(e.pool, "")
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
	_, err = locks.NewDurableMutex(tx, "").Acquire(ctx, "b")
	wantCode(t, err, "40001", "stale snapshot")
	if !locks.IsRetryable(err) {
		t.Fatal(err)
	}
	must(t, tx.Rollback(ctx))
}
