package tests

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/lockstest/server"
)

// subjects are severity and subject of every finding, in order.
func subjects(t *testing.T, findings []db.Finding) string {
	t.Helper()
	var all []string
	for _, f := range findings {
		if f.Finding == "" || f.Remedy == "" || !slices.Contains([]string{"error", "warning", "notice"}, f.Severity) {
			t.Errorf("a finding without its parts: %+v", f)
		}
		all = append(all, f.Severity+" "+f.Subject)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const sound = "set idle_in_transaction_session_timeout = '1min'"
	// ask runs the check behind some settings. Left out is what is the server's: fsync is off in tests, and another test makes a standby.
	ask := func(t *testing.T, url, query, settings string) string {
		t.Helper()
		conn, err := pgx.Connect(ctx, url)
		must(t, err)
		defer conn.Close(ctx)
		for _, sql := range []string{sound, settings} {
			_, err = conn.Exec(ctx, sql)
			must(t, err)
		}
		rows, err := conn.Query(ctx, query)
		must(t, err)
		findings, err := pgx.CollectRows(rows, pgx.RowToStructByPos[db.Finding])
		must(t, err)
		return subjects(t, slices.DeleteFunc(findings, func(f db.Finding) bool { return f.Subject == "fsync" || f.Subject == "synchronous_standby_names" }))
	}
	expect := func(t *testing.T, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	t.Run("YugabyteDB", func(t *testing.T) {
		if !target.yugabyte {
			t.Skip("this target is PostgreSQL")
		}
		got := ask(t, open(t, row).url, "select * from lock.check()", "set statement_timeout = '1min'")
		t.Logf("found: %s", got)
		if strings.Contains(got, "error") {
			t.Errorf("found %q", got)
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		onlyPostgreSQL(t, "what it finds there depends on the server's flags")
		t.Parallel()
		e := open(t, advisory)
		for settings, want := range map[string]string{
			"": "",
			"set default_transaction_isolation = 'serializable'":    "warning default_transaction_isolation",
			"set default_transaction_isolation = 'repeatable read'": "warning default_transaction_isolation",
			"set default_transaction_read_only = on":                "error default_transaction_read_only",
			"set synchronous_commit = off":                          "warning synchronous_commit",
			"set idle_in_transaction_session_timeout = 0":           "notice idle_in_transaction_session_timeout",
		} {
			expect(t, ask(t, e.url, "select * from lock.check()", settings), want)
		}
		findings, err := db.New(e.pool).Check(ctx)
		must(t, err)
		if got := subjects(t, findings); !strings.Contains(got, "notice idle_in_transaction_session_timeout") {
			t.Errorf("through db: %q", got)
		}
		expect(t, ask(t, open(t, row).url, "select * from lock.check()", ""), "warning engine")
	})
	t.Run("what it says of other versions", func(t *testing.T) {
		t.Parallel()
		e := openYB(t)
		const good = "set yb_enable_read_committed_isolation = on; set yb_enable_listen_notify = on; set statement_timeout = '1min'; "
		const version = "PostgreSQL 15.2-YB-2025.2.3.0-b136 on x86_64-pc-linux-gnu"
		for _, c := range []struct{ version, settings, want string }{
			{version, good, ""},
			{"PostgreSQL 15.2-YB-2026.1.0.0-b118 on x86_64", good, ""},
			{"PostgreSQL 11.2-YB-2024.2.2.0-b1 on x86_64", good, "error version"},
			{version, good + "set yb_enable_read_committed_isolation = off", "warning isolation"},
			{version, good + "set yb_enable_read_committed_isolation = off; set default_transaction_isolation = 'serializable'", "warning isolation"},
			{version, good + "set yb_enable_listen_notify = off", "warning notifications"},
			{version, good + "set statement_timeout = 0", "warning statement_timeout"},
			{version, good + "set yb_disable_transactional_writes = on", "error yb_disable_transactional_writes"},
		} {
			expect(t, ask(t, e.super, "select * from lock_internal.findings('"+c.version+"')", c.settings), c.want)
		}
		if !target.yugabyte {
			expect(t, ask(t, open(t, advisory).super, "select * from lock_internal.findings('"+version+"')", "set statement_timeout = '1min'"),
				"error engine, warning notifications")
		}
	})
}

// openPair starts a migrated server, and returns it with a way to make its standby.
func openPair(t *testing.T) (primary *server.Server, replicate func() *server.Server) {
	t.Helper()
	if target.own == nil {
		t.Skip("needs servers of its own")
	}
	if _, err := os.Stat(target.own.BinDir + "/pg_basebackup"); err != nil {
		t.Skip("pg_basebackup is not installed beside the server")
	}
	primary, err := server.Start(ctx, server.Options{})
	must(t, err)
	t.Cleanup(func() { primary.Stop() })
	boss, err := pgx.Connect(ctx, primary.URL("postgres", "postgres"))
	must(t, err)
	defer boss.Close(ctx)
	for _, sql := range []string{"create role locks_owner login", "create role locks_app login", "grant create on database postgres to locks_owner", "grant create on schema public to locks_owner"} {
		_, err = boss.Exec(ctx, sql)
		must(t, err)
	}
	owner := primary.URL("locks_owner", "postgres")
	must(t, migrate(owner, 0))
	conn, err := pgx.Connect(ctx, owner)
	must(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "select lock.grant_to('locks_app')")
	must(t, err)
	return primary, func() *server.Server {
		t.Helper()
		standby, err := primary.Standby(ctx)
		must(t, err)
		t.Cleanup(func() { standby.Stop() })
		return standby
	}
}

// Neither the role that asks nor the owner may see more than everybody.
func TestCheckStandby(t *testing.T) {
	t.Parallel()
	primary, replicate := openPair(t)
	e := &env{}
	app, boss := e.sessionAs(t, primary.URL("locks_app", "postgres")), e.sessionAs(t, primary.URL("postgres", "postgres"))
	warned := func() bool {
		t.Helper()
		return get[bool](app, "select exists (select from lock.check() where subject = 'synchronous_standby_names' and severity = 'warning')")
	}
	expect := func(want bool, when string) {
		t.Helper()
		if warned() != want {
			t.Errorf("%s: warned is %v", when, !want)
		}
	}
	expect(false, "a server without standbys")
	standby := replicate()
	eventually(t, "the standby streams", func() bool {
		return get[bool](boss, "select exists (select from pg_stat_replication where state = 'streaming' and application_name <> 'pg_basebackup')")
	})
	answers(e.sessionAs(t, standby.URL("locks_app", "postgres")), false, "select exists (select from lock.check() where subject = 'synchronous_standby_names')")
	expect(true, "an asynchronous standby")
	set := func(value string) {
		t.Helper()
		boss.exec("alter system set synchronous_standby_names = '" + value + "'")
		boss.exec("select pg_reload_conf()")
		eventually(t, "the setting is read", func() bool { return get[string](app, "show synchronous_standby_names") == value })
	}
	set("*")
	expect(false, "a synchronous standby")
	app.exec("set synchronous_commit = local")
	expect(true, "a session that does not wait for the synchronous standby")
	app.exec("reset synchronous_commit")
	set("")
	must(t, standby.Kill())
	eventually(t, "the standby is gone", func() bool { return !get[bool](boss, "select exists (select from pg_stat_replication)") })
	expect(false, "the standby has gone, and left no slot")
	boss.exec("select pg_create_physical_replication_slot('away')")
	expect(true, "a slot that waits for a standby")
}

// TestFailoverLoss cuts an asynchronous standby off, makes grants of every kind, and promotes it, with the old primary at work:
// docs/failover.md says what happens then, and what to do.
func TestFailoverLoss(t *testing.T) {
	t.Parallel()
	blocks := docsBlocks(t, "sql")["failover.md"]
	if len(blocks) != 1 {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	primary, replicate := openPair(t)
	standby := replicate()
	e := &env{}
	before, boss, cut := e.sessionAs(t, primary.URL("locks_app", "postgres")), e.sessionAs(t, primary.URL("postgres", "postgres")), e.sessionAs(t, standby.URL("postgres", "postgres"))
	before.exec("select lock.create_task('t', timeout => '1 hour'), lock.create_task('recurring', status => 'done'), lock.create_timeout('t', '1 day'), lock.create_throttled_resource('r', '1 day')")
	before.exec("select lock.acquire_lease('known', 'a', '1 hour')")
	before.exec("select lock.release_lease('known', 1), lock.enqueue('update', 'known')")
	written := get[string](boss, "select pg_current_wal_lsn()::text")
	eventually(t, "the standby has it", func() bool {
		return get[bool](cut, "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written)
	})
	cut.exec("alter system set primary_conninfo = ''")
	cut.exec("select pg_reload_conf()")
	eventually(t, "the standby is cut off", func() bool { return !get[bool](cut, "select exists (select from pg_stat_wal_receiver)") })

	// grants are made in the order of this list; key is the lock that needs no standby.
	grants := func(s *session) (got []string) {
		t.Helper()
		for _, sql := range []string{
			"select string_agg(id || ' ' || attempt, ', ' order by id) from lock.capture(2, statuses => '{new,done}')",
			"select 'known ' || token from lock.acquire_lease('known', 'worker', '1 hour')",
			"select 'new ' || token from lock.acquire_lease('new', 'worker', '1 hour')",
			"select 'mutex ' || lock.acquire_mutex('m', 'worker')", "select 'timeout ' || lock.acquire_timeout('t')",
			"select 'slot ' || lock.acquire_time_slot('t', '36500 days')", "select 'throttle ' || lock.lock_throttled_resource('r', 'worker')",
			"select 'request ' || request_id from lock.capture_request(" + oneProcess + ")", "select 'settled ' || lock.settle_request(" + oneProcess + ")",
			"select 'key ' || lock.try_exclusive('k')",
		} {
			got = append(got, get[string](s, sql))
		}
		return got
	}
	before.exec("begin")
	want := []string{"recurring 1, t 1", "known 2", "new 1", "mutex true", "timeout true", "slot true", "throttle true", "request 1", "settled 1", "key true"}
	if got := grants(before); !slices.Equal(got, want) {
		t.Fatalf("granted %q, want %q", got, want)
	}
	before.exec("commit")
	before.exec("begin; select lock.exclusive('k')")

	answers(cut, true, "select pg_promote()")
	eventually(t, "it is a primary", func() bool { return !get[bool](cut, "select pg_is_in_recovery()") })
	// With what the page says, no number is given again.
	owner := e.sessionAs(t, standby.URL("locks_owner", "postgres"))
	owner.exec("begin;" + blocks[0])
	if got := grants(owner); !slices.Equal(got[:3], []string{"recurring 1000001, t 1000001", "known 1000002", "new 1000001"}) {
		t.Errorf("behind the page's statements granted: %q", got)
	}
	owner.exec("rollback")
	// Without, all of it is granted again, the key while its first holder is at work.
	after := e.sessionAs(t, standby.URL("locks_app", "postgres"))
	after.exec("begin")
	if got := grants(after); !slices.Equal(got, want) {
		t.Errorf("granted again: %q, want %q", got, want)
	}
	after.exec("commit")
	before.exec("commit")
}
