package tests

import (
	"strings"
	"testing"
)

// down goes back to the nth migration, or all the way with 0.
func down(url string, n int) error {
	provider, closeDB, err := gooseProvider(url)
	if err != nil {
		return err
	}
	defer closeDB()
	version := int64(0)
	if n > 0 {
		version = provider.ListSources()[n-1].Version
	}
	_, err = provider.DownTo(ctx, version)
	return err
}

// dropEverything is what a migrator sets that means it.
func dropEverything(url string) string { return url + "&options=-c%20lock.drop%3Deverything" }

// What is held or waits to be done is not dropped by accident.
func TestMigrateDownRefusesToDropWhatIsNeeded(t *testing.T) {
	t.Parallel()
	for _, engine := range engines() {
		for name, c := range map[string]struct{ need, loss, end string }{
			"a mutex":     {"select lock.acquire_mutex('a')", "1 mutexes that are acquired (lock.mutex)", "select lock.release_mutex('a')"},
			"a timeout":   {"select lock.create_timeout('a', '1 hour'), lock.acquire_timeout('a')", "1 timeouts that have not passed", "update lock.timeout set ts = '-infinity'"},
			"a time slot": {"select lock.acquire_time_slot('a', '100 days')", "1 time slots that are not over", "delete from lock.time_slot"},
			"a throttle": {"select lock.create_throttled_resource('a', '1 hour'), lock.lock_throttled_resource('a', 'me')", "1 resources that were granted",
				"delete from lock.throttled_resource"},
			"a rate limit": {"select lock.take('a', 1, '1 hour')", "1 rate limits that are not full again", "delete from lock.rate_limit"},
			"one permit of several": {"select lock.create_throttled_resource('a', '1 hour', 3), lock.lock_throttled_resource('a', 'me')", "1 resources that were granted",
				"delete from lock.throttled_resource; delete from lock.throttled_permit"},
			"a paused queue": {"select lock.pause_queue('task', 'q', 'why')", "1 queues that are paused (lock.queue_pause)", "select lock.resume_queue('task', 'q')"},
			"leases": {"select lock.acquire_lease(name, 'me', '1 hour') from unnest('{a,b}'::text[]) name", "2 leases that are held (lock.lease)",
				"select lock.release_lease('a', 1), lock.release_lease('b', 1)"},
			"a task":          {"select lock.create_task('a')", "1 tasks that are not done (lock.task)", "select lock.set_status('a', 'done')"},
			"a request":       {"select lock.enqueue('update', 'a')", "1 requests that are not settled (lock.request)", "update lock.request set request_status = 'complete', settled_at = now()"},
			"a tracked table": {"create table public.tracked (id integer); select lock.track_changes('public.tracked', 'id')", "triggers that record changes", "drop table public.tracked"},
		} {
			t.Run(engine+" "+name, func(t *testing.T) {
				t.Parallel()
				e := open(t, engine)
				e.sessionAs(t, e.super).exec("grant create on schema public to locks_owner")
				owner := e.sessionAs(t, e.owner)
				for _, sql := range strings.Split(c.need, "; ") {
					owner.exec(sql)
				}
				err := down(e.owner, 0)
				if code(err) != "55006" || !strings.Contains(err.Error(), c.loss) || !strings.Contains(err.Error(), "PGOPTIONS='-c lock.drop=everything'") {
					t.Fatalf("got %v", err)
				}
				if err := down(e.owner+"&options=-c%20lock.drop%3Dsomething", 0); code(err) != "55006" {
					t.Fatalf("with another value: %v", err)
				}
				must(t, migrate(e.owner, 0))
				owner.exec("begin")
				owner.exec(c.end)
				owner.exec("commit")
				must(t, down(e.owner, 0))
				must(t, migrate(e.owner, 0))
				for _, sql := range strings.Split(c.need, "; ") {
					owner.exec(sql)
				}
				must(t, down(dropEverything(e.owner), 0))
				if lines := snapshot(t, e); len(lines) > 0 {
					t.Errorf("left: %s", strings.Join(lines, "\n"))
				}
			})
		}
	}
}

// The way that the message and docs/upgrading.md name reaches the server from the stock CLI.
func TestMigrateDownWithTheStockCLI(t *testing.T) {
	tool(t, "goose")
	e := open(t, engines()[0])
	e.sessionAs(t, e.owner).exec("select lock.create_task('a')")
	out, err := gooseCLI(t, e.owner, "down-to", "0")
	if err == nil || !strings.Contains(out, "1 tasks that are not done (lock.task); run it with PGOPTIONS='-c lock.drop=everything' to drop it all the same") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("PGOPTIONS", "-c lock.drop=everything")
	if out, err := gooseCLI(t, e.owner, "down-to", "0"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if lines := snapshot(t, e); len(lines) > 0 {
		t.Errorf("left: %s", strings.Join(lines, "\n"))
	}
}

// A task that is being created while goose goes down is counted too.
func TestMigrateDownWaitsForWhatIsBeingAdded(t *testing.T) {
	onlyPostgreSQL(t, "no table can be locked there")
	t.Parallel()
	try := func(t *testing.T, e *env) error {
		t.Helper()
		s := e.session(t)
		s.exec("begin")
		s.exec("select lock.create_task('a')")
		super := e.sessionAs(t, e.super)
		done := make(chan error, 1)
		go func() { done <- down(e.owner, 8) }()
		eventually(t, "goose waits for the task", func() bool {
			return get[bool](super, `select exists (select from pg_stat_activity
				where datname = current_database() and usename = 'locks_owner' and wait_event_type = 'Lock')`)
		})
		s.exec("commit")
		return <-done
	}
	if err := try(t, open(t, advisory)); code(err) != "55006" || !strings.Contains(err.Error(), "1 tasks that are not done") {
		t.Errorf("got %v", err)
	}
	t.Run("an old snapshot is refused", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.sessionAs(t, e.super).exec("alter role locks_owner in database " + e.pool.Config().ConnConfig.Database + " set default_transaction_isolation = 'repeatable read'")
		err := down(e.owner, 8)
		if code(err) != "25001" || !strings.Contains(err.Error(), `PGOPTIONS='-c default_transaction_isolation=read\ committed'`) {
			t.Errorf("got %v", err)
		}
		mutate(t, e, "refuse_loss", "not in ('read committed', 'read uncommitted')", "is null")
		must(t, try(t, e)) // It is lost.
	})
	t.Run("without the lock it is lost", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "refuse_loss", "execute 'lock table '", "perform 'lock table '")
		must(t, try(t, e))
	})
}

// Somebody who has read a table in an open transaction stops goose, and nobody else for long.
func TestMigrateDownKeepsNobodyWaiting(t *testing.T) {
	onlyPostgreSQL(t, "no table can be locked there")
	t.Parallel()
	e := open(t, advisory)
	monitor, app := e.sessionAs(t, e.super), e.session(t)
	monitor.exec("begin; select from lock.dead_letter")
	done := make(chan error, 1)
	go func() { done <- down(e.owner, 8) }()
	eventually(t, "goose waits for the monitor", func() bool {
		return get[bool](monitor, `select exists (select from pg_locks where relation = 'lock.task'::regclass and mode = 'AccessExclusiveLock' and not granted)`)
	})
	app.exec("set statement_timeout = '20 s'")
	app.exec("select lock.create_task('a')")
	if err := <-done; code(err) != "55P03" {
		t.Errorf("got %v", err)
	}
}

// The grants of a schema that goose drops are back when it makes the schema again.
func TestMigrateDownKeepsGrants(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	e.writeInside(t)
	super, owner := e.sessionAs(t, e.super), e.sessionAs(t, e.owner)
	for _, role := range []string{`locks odd, "down" {role}`, "locks_down_gone", "locks_down_revoked"} {
		super.exec("do $$ begin execute format('create role %I login', '" + role + "'); exception when duplicate_object then null; end $$")
		owner.exec("select lock.grant_to($1)", role)
	}
	owner.exec("select lock.grant_monitor_to('locks_down_gone'), lock.grant_monitor_to('locks_app'), lock.grant_operator_to('locks_app'), lock.grant_tracking_to('locks_app')")
	t.Cleanup(func() {
		for _, role := range []string{`"locks odd, ""down"" {role}"`, "locks_down_gone", "locks_down_revoked"} {
			e.admin.Exec(ctx, "drop owned by "+role)
			e.admin.Exec(ctx, "drop role if exists "+role)
		}
	})
	owner.exec("select lock.revoke_from('locks_down_revoked')")
	granted := func() string {
		return get[string](owner, "select string_agg(role || ' ' || level, '; ' order by role, level) from lock.granted_role")
	}
	const odd = `locks odd, "down" {role} application`
	const left = odd + "; locks_app application; locks_app monitor; locks_app operator; locks_app tracking"
	const all = left + "; locks_down_gone application; locks_down_gone monitor"
	if got := granted(); got != all {
		t.Fatalf("at first %s", got)
	}
	full := snapshot(t, e)
	must(t, down(e.owner, 1))
	must(t, migrate(e.owner, 0))
	if lines := differences(full, snapshot(t, e)); len(lines) > 0 {
		t.Errorf("after most of the way: %s", strings.Join(lines, "\n"))
	}
	must(t, down(e.owner, 0))
	super.exec("drop role locks_down_gone")
	must(t, migrate(e.owner, 0))
	if got := granted(); got != left {
		t.Errorf("after all the way: %s", got)
	}
	e.session(t).exec("select lock.exclusive(1), lock.create_task('a')")
	owner.exec("select lock.revoke_from('locks_app')")
	must(t, down(dropEverything(e.owner), 0))
	must(t, migrate(e.owner, 0))
	if got := granted(); got != odd {
		t.Errorf("a role that was revoked in between: %s", got)
	}
	answers(owner, true, "select obj_description('public.lock_goose_version'::regclass, 'pg_class') is null")
}
