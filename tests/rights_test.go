package tests

import (
	"slices"
	"strings"
	"testing"

	"github.com/seed4787c507/locks/db"
)

// publicFunctions is what lock.grant_to gives, by name: a new function of schema lock has to be entered here or below.
var publicFunctions = strings.Fields(`
	await_request await_task list_tasks
	open_transactions start_idling stop_idling
	acquire_lease assert_lease await_lease release_lease renew_lease
	acquire_mutex create_mutex release_mutex acquire_timeout create_timeout acquire_time_slot
	create_throttled_resource lock_throttled_resource take
	capture_request enqueue request_history retry_request settle_request track_changes untrack_changes
	capture create_task create_tasks delete_task extend_task extend_tasks get_task limit_queue next_task_in retry_task retry_tasks set_status set_statuses settle_and_capture
	advisory_key check engine exclusive exclusive_all help key queue_sizes shared try_all try_exclusive try_shared unlock vacuum who
`)

// operatorFunctions are what lock.grant_operator_to gives and lock.grant_to does not.
var operatorFunctions = strings.Fields(`
	clean pause_queue purge_requests purge_tasks record_action resume_queue
	force_release_mutex force_release_timeout force_release_time_slot force_release_throttled_resource force_release_rate_limit force_release_lease cancel_request
	drop_unused_mutexes drop_unused_timeouts drop_unused_time_slots drop_unused_throttled_resources drop_unused_rate_limits drop_unused_leases
`)

// ownerFunctions stay with the owner of the schema.
var ownerFunctions = strings.Fields("grant_monitor_to grant_operator_to grant_to grant_tracking_to revoke_from")

// calledFunctions are internal, and called by functions that run with the caller's rights.
var calledFunctions = strings.Fields(`
	hold_key is_advisory row_at try_key waiters
`)

// monitorFunctions is what lock.grant_monitor_to gives, called ones included.
const monitorFunctions = "advisory_key check engine entity_number get_task help is_advisory key list_tasks queue_sizes request_history row_at waiters who"

func TestRights(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	super := e.sessionAs(t, e.super)
	names := func(sql string) string {
		return get[string](super, "select coalesce(string_agg(distinct name, ' ' order by name), '') from ("+sql+") x (name)")
	}
	t.Run("every function has its place", func(t *testing.T) {
		for _, c := range []struct{ what, filter, want string }{
			{"public", "pronamespace = 'lock'::regnamespace and has_function_privilege('locks_app', oid, 'execute')", strings.Join(publicFunctions, " ")},
			{"operators' and the owner's", "pronamespace = 'lock'::regnamespace and prorettype <> 'trigger'::regtype and not has_function_privilege('locks_app', oid, 'execute')", strings.Join(slices.Concat(operatorFunctions, ownerFunctions), " ")},
			{"internal but granted", "pronamespace = 'lock_internal'::regnamespace and has_function_privilege('locks_app', oid, 'execute')", strings.Join(calledFunctions, " ")},
		} {
			got := names("select proname::text from pg_proc where " + c.filter)
			if want := get[string](super, "select coalesce(string_agg(name, ' ' order by name), '') from unnest(string_to_array($1, ' ')) name", c.want); got != want {
				t.Errorf("%s functions:\n got %s\nwant %s", c.what, got, want)
			}
		}
	})
	for what, sql := range map[string]string{
		"functions without a comment":             "select oid::regprocedure::text from pg_proc where pronamespace = 'lock'::regnamespace and obj_description(oid, 'pg_proc') is null",
		"relations without a comment":             "select relname::text from pg_class where relnamespace = 'lock'::regnamespace and relkind in ('r', 'v', 'S') and relname !~ '_seq$' and obj_description(oid, 'pg_class') is null",
		"functions that PUBLIC may execute":       "select oid::regprocedure::text from pg_proc where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace) and has_function_privilege('public', oid, 'execute')",
		"relations that PUBLIC may read":          "select oid::regclass::text from pg_class where relnamespace = 'lock'::regnamespace and relkind in ('r', 'v') and has_table_privilege('public', oid, 'select, insert, update, delete, truncate, references, trigger')",
		"tables that the role may touch":          "select oid::regclass::text from pg_class where relnamespace = 'lock'::regnamespace and relkind in ('r', 'p') and has_table_privilege('locks_app', oid, 'select, insert, update, delete, truncate, references, trigger')",
		"definer functions without a search_path": "select oid::regprocedure::text from pg_proc where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace) and prosecdef and not coalesce(proconfig, '{}') @> '{\"search_path=pg_catalog, pg_temp\"}'",
		"indexes that an upgrade of the operating system can break": `select indexrelid::regclass::text from pg_index join pg_class on pg_class.oid = indexrelid
			where relnamespace = 'lock'::regnamespace and exists (select from unnest(indcollation) as used where used <> 0 and used <> '"C"'::regcollation)`,
		"strict functions": "select oid::regprocedure::text from pg_proc where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace) and proisstrict",
		"views that show a function what they leave out": "select oid::regclass::text from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'v' and not coalesce(reloptions, '{}') @> '{security_barrier=true}'",
		"views that the role may not read":               "select oid::regclass::text from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'v' and not has_table_privilege('locks_app', oid, 'select')",
		"schemas with tables or views that are internal": "select oid::regclass::text from pg_class where relnamespace = 'lock_internal'::regnamespace",
		"schemas that PUBLIC may use":                    "select 'lock' where has_schema_privilege('public', 'lock', 'usage')",
	} {
		if found := names(sql); found != "" {
			t.Errorf("%s: %s", what, found)
		}
	}
	t.Run("the checks above see a lapse", func(t *testing.T) {
		super.exec("begin")
		super.exec("create function lock.planted() returns integer language sql security definer as 'select 1'")
		if names("select proname::text from pg_proc where pronamespace = 'lock'::regnamespace and has_function_privilege('public', oid, 'execute')") != "planted" {
			t.Error("a function that PUBLIC may execute is not seen")
		}
		super.exec("rollback")
	})
	t.Run("grant_to and revoke_from", func(t *testing.T) {
		super.exec(`do $$ begin create role "locks odd ""role" login; exception when duplicate_object then null; end $$`)
		odd := e.sessionAs(t, strings.Replace(e.url, "locks_app@", "locks%20odd%20%22role@", 1))
		owner := e.sessionAs(t, e.owner)
		t.Cleanup(func() { e.admin.Exec(ctx, `select lock.revoke_from('locks odd "role')`) })
		odd.fails("42501", "select lock.exclusive(1)")
		owner.exec(`select lock.grant_to('locks odd "role')`)
		odd.exec("select lock.exclusive(1)")
		odd.fails("42501", "select lock.grant_to('locks_app')")
		odd.exec("table lock.activity")
		odd.fails("42501", "table lock.lease_floor")
		owner.exec(`select lock.revoke_from('locks odd "role')`)
		odd.fails("42501", "select lock.exclusive(1)")
		for _, nobody := range []string{"nobody at all", "public", ""} {
			owner.fails("42704", "select lock.grant_to($1)", nobody)
		}
		owner.fails("22004", "select lock.grant_to(null)")
		owner.fails("22004", "select lock.revoke_from(null)")
	})
	t.Run("a later migration's functions reach the roles that were granted before", func(t *testing.T) {
		owner := e.sessionAs(t, e.owner)
		app := e.session(t)
		owner.exec("create function lock.later() returns integer language sql as 'select 1'; revoke all on function lock.later() from public")
		app.fails("42501", "select lock.later()")
		latest := get[int](owner, "select max(version) from lock.migration")
		owner.exec("select lock_internal.end_migration($1, 'up')", latest)
		answers(app, 1, "select lock.later()")
	})
	t.Run("grant_monitor_to lets a role look and nothing else", func(t *testing.T) {
		const role = "locks_monitor_test"
		super.exec("do $$ begin create role " + role + " login; exception when duplicate_object then null; end $$")
		owner := e.sessionAs(t, e.owner)
		monitor := e.sessionAs(t, strings.Replace(e.url, "locks_app@", role+"@", 1))
		t.Cleanup(func() { e.admin.Exec(ctx, "select lock.revoke_from('"+role+"')") })
		monitor.fails("42501", "select * from lock.blocked")
		monitor.fails("42501", "select lock.grant_monitor_to('"+role+"')")
		owner.fails("22004", "select lock.grant_monitor_to(null)")
		owner.fails("42704", "select lock.grant_monitor_to('public')")
		may := func(want string) {
			t.Helper()
			got := names("select distinct proname::text from pg_proc where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace) " +
				"and has_function_privilege('" + role + "', oid, 'execute')")
			if got != want {
				t.Errorf("functions of a monitor:\n got %s\nwant %s", got, want)
			}
		}
		owner.exec("select lock.grant_monitor_to($1)", role)
		may(monitorFunctions)
		if found := names("select oid::regclass::text from pg_class where relnamespace = 'lock'::regnamespace and relkind in ('r', 'v') and not has_table_privilege('" + role +
			"', oid, 'select') or relnamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace) and relkind <> 'i' and case relkind when 'S' then has_sequence_privilege('" + role +
			"', oid, 'usage, update') else has_table_privilege('" + role + "', oid, 'insert, update, delete, truncate, references, trigger') end"); found != "" {
			t.Error("read wrongly, or written:", found)
		}
		for _, look := range []string{
			"table lock.blocked", "table lock.activity", "table lock.queue_depth", "table lock.task", "table lock.forced_release", "select * from lock.check()",
			"select * from lock.who('a')", "select * from lock.who(1)", "select * from lock.get_task('a')", "select * from lock.list_tasks()",
			"select * from lock.request_history('a')", "select * from lock.help()",
		} {
			monitor.exec("begin read only")
			monitor.exec(look)
			monitor.exec("commit")
		}
		monitor.fails("42501", "select from lock.mutex for key share")
		answers(monitor, "0", "select count(*)::text from lock.check() where subject = 'rights'")
		owner.exec("create function lock.who(wanted boolean) returns integer language sql as 'select 1'; revoke all on function lock.who(boolean) from public")
		monitor.fails("42501", "select lock.who(true)")
		owner.exec("select lock_internal.end_migration(max(version), 'up') from lock.migration")
		answers(monitor, 1, "select lock.who(true)")
		owner.exec("drop function lock.who(boolean)")
		owner.exec("select lock.revoke_from($1)", role)
		may("")
		monitor.fails("42501", "table lock.blocked")
		if found := names("select oid::regclass::text from pg_class where relnamespace = 'lock'::regnamespace and relkind in ('r', 'v') and has_table_privilege('" + role + "', oid, 'select')"); found != "" {
			t.Error("still read:", found)
		}
	})
	t.Run("an ordinary role calls through db", func(t *testing.T) {
		if _, err := db.New(e.pool).Engine(ctx); err != nil {
			t.Error(err)
		}
	})
}
