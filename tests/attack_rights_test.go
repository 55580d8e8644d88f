package tests

import (
	"strings"
	"testing"
)

// planted is what an owner may do by the way, and forget: whoever is named here gets a right on
// everything that the owner makes later.
const planted = `alter default privileges grant execute on functions to locks_outsider with grant option;
	alter default privileges grant all on tables to locks_outsider;
	alter default privileges grant all on sequences to locks_outsider;
	alter default privileges grant all on schemas to locks_outsider`

// thefts are what a role that was granted nothing would like to do.
var thefts = map[string]string{
	"capture tasks":               "select * from lock.capture(1)",
	"read a table":                "select * from lock.task",
	"write a table":               "insert into lock.mutex (task_id) values ('x')",
	"forge a record":              "insert into lock.forced_release (kind, id, reason, released_by, previous) values ('mutex', 'm', 'why', 'boss', '{}')",
	"record an action":            "select lock.record_action('task', 'q', 'why', '{}')",
	"name itself":                 "insert into lock.granted_role (role, level) values ('locks_outsider', 'operator')",
	"release by force":            "select lock.force_release_mutex('m', 'why')",
	"grant itself":                "select lock.grant_to('locks_outsider')",
	"make something in schema":    "create table lock.planted (x integer)",
	"draw from a sequence":        "select nextval('lock.forced_release_release_id_seq')",
	"pass its rights on":          "grant execute on function lock.capture(integer, text, text[], text, timestamptz, integer) to locks_app",
	"run a view as the owner":     "select lock_internal.await_row('rep.bait', 'id', 'x', 2)",
	"call what nobody should see": "select lock_internal.wake('lock_task', 'q')",
}

func try(s *session, sql string) error {
	_, err := s.conn.Exec(ctx, sql)
	return err
}

func tryThefts(t *testing.T, thief *session) {
	t.Helper()
	for what, attack := range thefts {
		if err := try(thief, attack); code(err) != "42501" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A default privilege is not a grant: not before the first migration, not between two, and not behind a grant to somebody else.
func TestAttackByDefaultPrivileges(t *testing.T) {
	t.Parallel()
	e := openEmpty(t, advisory)
	super, owner := e.sessionAs(t, e.super), e.sessionAs(t, e.owner)
	thief := outsider(t, e)
	super.exec("create schema rep; grant all on schema rep to locks_outsider; grant usage on schema rep to public")
	thief.exec(`create table rep.loot (as_whom text); grant all on rep.loot to public;
		create function rep.steal() returns text language plpgsql as 'begin insert into rep.loot values (current_user); return ''x''; end';
		create view rep.bait as select rep.steal() as id; grant all on rep.bait to public`)
	owner.exec(planted)
	t.Cleanup(func() { e.admin.Exec(ctx, "drop owned by locks_outsider") })
	safe := func(when string) {
		t.Helper()
		tryThefts(t, thief)
		answers(super, 0, "select count(*) from rep.loot")
		answers(owner, "", "select coalesce(string_agg(finding, '; '), '') from lock.check() where subject = 'rights'")
		answers(owner, 0, "select count(*) from lock.granted_role where role = 'locks_outsider'")
		if t.Failed() {
			t.Fatal(when)
		}
	}
	must(t, migrate(e.owner, 3))
	answers(owner, 0, "select count(*) from lock_internal.actual_rights()")
	must(t, migrate(e.owner, 0))
	safe("after goose up")
	owner.exec("select lock.grant_to('locks_app')")
	safe("after a grant to another")
	must(t, down(e.owner, 1))
	must(t, migrate(e.owner, 0))
	safe("after a way down and up")
	must(t, down(e.owner, 0))
	must(t, migrate(e.owner, 0))
	safe("after all the way down and up")
	e.session(t).exec("select lock.create_task('a')")
	// An application gets what applications have, and not what its default privileges say.
	owner.exec("select lock.grant_to('locks_outsider')")
	for _, attack := range []string{"forge a record", "name itself", "release by force", "record an action", "read a table", "run a view as the owner", "pass its rights on"} {
		err := try(thief, thefts[attack])
		if attack == "pass its rights on" { // without the option to, PostgreSQL warns and grants nothing
			answers(owner, "", "select coalesce(string_agg(finding, '; '), '') from lock.check() where subject = 'rights'")
		} else if code(err) != "42501" {
			t.Errorf("%s: %v", attack, err)
		}
	}
	// The view runs as the owner where a helper has the owner's rights, and the default privileges their way.
	owner.exec(`create or replace function lock_internal.await_row(target regclass, id_column name, id text, round integer) returns void language plpgsql security definer
		as $$ begin execute format('select from %s where %I = $1', target, id_column) using id; end $$; grant execute on function lock_internal.await_row to locks_outsider`)
	thief.exec(thefts["run a view as the owner"])
	answers(super, "locks_owner", "select as_whom from rep.loot")
}

// lock.check names each right that no call gave, and every such call takes it away.
func TestAttackByAPlantedRight(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner := e.sessionAs(t, e.owner)
	outsider(t, e)
	for right, want := range map[string]string{
		"execute on function lock.key(text)":            "locks_outsider has execute on function lock.key(text)",
		"execute on function lock_internal.check_id":    "locks_outsider has execute on function lock_internal.check_id(text,text)",
		"select on lock.task":                           "locks_outsider has select on table lock.task",
		"select (payload) on lock.task":                 "locks_outsider has select (payload) on table lock.task",
		"truncate on lock.granted_role":                 "locks_outsider has truncate on table lock.granted_role",
		"select on lock.blocked":                        "locks_outsider has select on table lock.blocked",
		"usage on schema lock_internal":                 "locks_outsider has usage on schema lock_internal",
		"create on schema lock":                         "locks_outsider has create on schema lock",
		"usage on sequence lock.request_request_id_seq": "locks_outsider has usage on sequence lock.request_request_id_seq",
		"execute on function lock.record_change()":      "locks_outsider has execute on function lock.record_change()",
		"execute on function lock.force_release_mutex":  "locks_outsider has execute on function lock.force_release_mutex(text,text)",
		"execute on all functions in schema lock":       " more",
		"select on lock.task with grant option":         "locks_outsider has select with grant option on table lock.task",
	} {
		grant, option, _ := strings.Cut(right, " with ")
		if option != "" {
			option = " with " + option
		}
		for _, mend := range []string{
			"select lock.grant_to('locks_app')", "select lock.grant_monitor_to('locks_app')", "select lock.revoke_from('locks_outsider')",
			"select lock_internal.end_migration(max(version), 'up') from lock.migration",
		} {
			owner.exec("grant " + grant + " to locks_outsider" + option)
			if found := get[string](owner, "select coalesce(string_agg(finding, '; '), '') from lock.check() where subject = 'rights' and severity = 'error'"); !strings.Contains(found, want) {
				t.Errorf("%s: lock.check() says %q", right, found)
			}
			owner.exec(mend)
			answers(owner, 0, "select count(*) from lock.check() where subject = 'rights'")
			if t.Failed() {
				t.Fatal("after ", mend)
			}
		}
	}
	owner.exec("revoke execute on function lock.exclusive(bigint) from locks_app")
	answers(owner, 1, "select count(*) from lock.check() where subject = 'rights' and finding = 'locks_app was granted, and lacks execute on function lock.exclusive(bigint)'")
	owner.exec("select lock.grant_to('locks_app')")
	answers(owner, 0, "select count(*) from lock.check() where subject = 'rights'")
	// A role that is gone does not leave its rights to another of its name.
	owner.exec("insert into lock.granted_role (role, level) values ('locks_gone', 'operator')")
	answers(owner, 1, "select count(*) from lock.check() where subject = 'rights' and finding = 'role \"locks_gone\" was granted, and is gone'")
	owner.exec("select lock.revoke_from('locks_outsider')")
	answers(owner, 0, "select count(*) from lock.check() where subject = 'rights'")
	answers(owner, 0, "select count(*) from lock.granted_role where role = 'locks_gone'")
}

// An internal function that nobody may call is called by what runs as the owner already. With the owner's rights of its own it would be
// one right away from giving them to anybody.
func TestLintDefiners(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		owner := e.sessionAs(t, e.owner)
		owner.exec("select lock.grant_to('locks_app'), lock.grant_monitor_to('locks_app'), lock.grant_operator_to('locks_app')")
		const needless = `select coalesce(string_agg(oid::regprocedure::text, ' ' order by oid), '') from pg_proc
			where pronamespace = 'lock_internal'::regnamespace and prosecdef and not has_function_privilege('locks_app', oid, 'execute')`
		answers(owner, "", needless)
		owner.exec("create or replace function lock_internal.give_up(kind text, id text) returns void language plpgsql security definer as 'begin end'")
		answers(owner, "lock_internal.give_up(text,text)", needless)
	})
}

// What each sort of role may do, tried by those roles.
func TestAttackByAnotherSort(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner, thief := e.sessionAs(t, e.owner), outsider(t, e)
	owner.exec("select lock.acquire_mutex('m', 'me'), lock.create_task('a'), lock.enqueue('update', 'e')")
	granted := func(grant string) {
		owner.exec("select lock.revoke_from('locks_outsider')")
		thief.fails("42501", "select lock.engine()")
		owner.exec("select lock." + grant + "('locks_outsider')")
	}
	operators := []string{
		"select lock.force_release_mutex('m', 'why')", "select lock.pause_queue('task', 'q', 'why')", "select lock.resume_queue('task', 'q')",
		"select lock.purge_tasks('1 day')", "select lock.purge_requests('1 day')", "select lock.drop_unused_mutexes('1 day')",
		"select lock.cancel_request(1, 'why')", "select lock.record_action('task', 'q', 'why', '{}')",
	}
	shared := []string{"select lock.set_status('a', 'new')", "select lock.retry_tasks()", "select lock.vacuum()"}
	programs := []string{"select lock.capture(1)", "select lock.exclusive(1)", "select lock.create_task('b')", "select lock.enqueue('update', 'e')", "select lock.acquire_mutex('n')"}
	looks := []string{"select * from lock.task", "select * from lock.check()", "select * from lock.blocked", "select * from lock.forced_release"}
	for grant, may := range map[string][][]string{
		"grant_to":          {programs, shared},
		"grant_monitor_to":  {looks},
		"grant_operator_to": {looks, operators, shared},
		"grant_tracking_to": {},
	} {
		granted(grant)
		allowed := map[string]bool{}
		for _, calls := range may {
			for _, call := range calls {
				allowed[call] = true
			}
		}
		for _, calls := range [][]string{operators, shared, programs, looks} {
			for _, call := range calls {
				if call == "select * from lock.check()" || call == "select * from lock.blocked" {
					allowed[call] = allowed[call] || grant == "grant_to" // these are for programs, too
				}
				thief.exec("begin")
				if err := try(thief, call); (err == nil) != allowed[call] || err != nil && code(err) != "42501" {
					t.Errorf("%s: %s: %v", grant, call, err)
				}
				thief.exec("rollback")
			}
		}
	}
	granted("grant_operator_to")
	thief.exec("select lock.force_release_mutex('m', 'it hangs'), lock.record_action('task', 'q', 'me: again', '{\"action\": \"retry\"}')")
	answers(owner, "mutex m it hangs locks_outsider; task q me: again locks_outsider",
		"select string_agg(concat_ws(' ', kind, id, reason, released_by), '; ' order by release_id) from lock.forced_release")
	owner.exec("select lock.revoke_from('locks_outsider')")
}
