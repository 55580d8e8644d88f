package tests

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/seed4787c507/locks"
)

// outsider is a role that may connect, and was granted nothing.
func outsider(t *testing.T, e *env) *session {
	t.Helper()
	e.sessionAs(t, e.super).exec(`do $$ begin create role locks_outsider login; exception when duplicate_object or unique_violation then null; end $$`)
	return e.sessionAs(t, strings.Replace(e.url, "locks_app@", "locks_outsider@", 1))
}

// migrateFrom runs the migrations of files.
func migrateFrom(t *testing.T, url string, files fs.FS) error {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	must(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(versionTable))
	must(t, err)
	_, err = provider.Up(ctx)
	return err
}

// Whoever may create in public, as everybody may on PostgreSQL 14, plants what a migration might bind in place of the server's own.
func TestAttackBySearchPath(t *testing.T) {
	onlyPostgreSQL(t, "it looks into the catalogue for what was bound")
	t.Parallel()
	unpinned := fstest.MapFS{}
	must(t, fs.WalkDir(locks.Migrations(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(locks.Migrations(), name)
		const pin = "set local search_path = pg_catalog, pg_temp;\n"
		if strings.Count(string(text), pin) != 2 {
			t.Errorf("%s does not pin the search_path once in Up and once in Down", name)
		}
		unpinned[name] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(string(text), pin, ""))}
		return err
	}))
	// What views and defaults have bound that is neither the server's nor ours.
	const bound = `select count(*) from pg_depend
		left join pg_proc on refclassid = 'pg_proc'::regclass and pg_proc.oid = refobjid
		left join pg_operator on refclassid = 'pg_operator'::regclass and pg_operator.oid = refobjid
		where classid in ('pg_rewrite'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_class'::regclass, 'pg_proc'::regclass)
		and coalesce(pronamespace, oprnamespace) = 'public'::regnamespace and objid <> refobjid`
	for _, c := range []struct {
		name  string
		files fs.FS
		want  bool
	}{{"without a pinned search_path it succeeds", unpinned, true}, {"as deployed it fails", locks.Migrations(), false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := openEmpty(t, advisory)
			thief := outsider(t, e)
			e.sessionAs(t, e.super).exec("grant create on schema public to public")
			thief.exec(`create function public.to_jsonb(pg_catalog.name) returns jsonb language plpgsql as $$ begin return '{}'; end $$`)
			must(t, migrateFrom(t, e.owner, c.files))
			if got := get[int](e.sessionAs(t, e.super), bound) > 0; got != c.want {
				t.Errorf("a view runs what the outsider planted: %v", got)
			}
		})
	}
	t.Run("a planted operator is not run by the migration", func(t *testing.T) {
		t.Parallel()
		e := openEmpty(t, advisory)
		thief, owner := outsider(t, e), e.sessionAs(t, e.owner)
		e.sessionAs(t, e.super).exec("grant create on schema public to public")
		for _, types := range []string{"name, name", "text, text", "oid, regrole", "name, text"} {
			thief.exec(`do $$ begin create function public.planted(` + types + `) returns boolean language plpgsql as
				'begin raise exception ''run by %'', current_user; end'; end $$`)
			left, right, _ := strings.Cut(types, ", ")
			thief.exec("create operator public.<> (function = public.planted, leftarg = " + left + ", rightarg = " + right + ")")
		}
		owner.exec("create schema lock")
		must(t, migrate(e.owner, 0))
	})
}

// A version table or a schema that somebody else made beforehand could run what that one likes, with the migrator's rights.
func TestAttackByAPreparedPlace(t *testing.T) {
	t.Parallel()
	for what, plant := range map[string]string{
		"schema lock":          "create schema lock authorization locks_outsider",
		"schema lock_internal": "create schema lock_internal authorization locks_outsider",
		"goose's table": `create table public.lock_goose_version (id serial primary key, version_id bigint not null, is_applied boolean not null, tstamp timestamp default now());
			insert into public.lock_goose_version (version_id, is_applied) values (0, true);
			grant all on public.lock_goose_version to public; grant all on all sequences in schema public to public;
			alter table public.lock_goose_version owner to locks_outsider`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := openEmpty(t, advisory)
			outsider(t, e)
			e.sessionAs(t, e.super).exec(plant)
			if err := migrate(e.owner, 0); code(err) != "42501" || !strings.Contains(err.Error(), "belongs to another role") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A superuser who goes on with what an ordinary role began would leave that role functions to replace, which then run as the superuser.
func TestAttackByASecondMigrator(t *testing.T) {
	t.Parallel()
	e := openEmpty(t, advisory)
	must(t, migrate(e.owner, 3))
	before := snapshot(t, e)
	if err := migrate(e.super, 0); code(err) != "42501" || !strings.Contains(err.Error(), "and this migrator is") {
		t.Errorf("got %v", err)
	}
	if lines := differences(before, snapshot(t, e)); len(lines) > 0 {
		t.Errorf("changed: %s", strings.Join(lines, "\n"))
	}
	must(t, migrate(e.owner, 0))
}

// Anybody who may connect can hold any advisory lock.
func TestAttackByHoldingTheMigratorsLock(t *testing.T) {
	onlyPostgreSQL(t, "migrators do not take turns there")
	t.Parallel()
	e := openEmpty(t, advisory)
	must(t, migrate(e.owner, 3))
	outsider(t, e).exec("select pg_advisory_lock(1819239275, 0)")
	err := migrate(e.owner+"&options=-c%20lock_timeout%3D50ms", 0)
	if code(err) != "55P03" || !strings.Contains(err.Error(), "another session holds the lock of the migrators") {
		t.Errorf("got %v", err)
	}
}

// A restore without ACLs gives PUBLIC what functions have by default.
func TestAttackAfterARestoreWithoutACLs(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner, thief := e.sessionAs(t, e.owner), outsider(t, e)
	const attack = "select lock.drop_unused_mutexes('1 day', 1)"
	for what, mend := range map[string]string{
		"grant_to":            "select lock.grant_to('locks_app')",
		"the next migration":  "select lock_internal.end_migration((select max(version) from lock.migration), 'up')",
		"grant_to of another": "select lock.grant_to('locks_outsider'), lock.revoke_from('locks_outsider')",
	} {
		owner.exec("grant all on all functions in schema lock, lock_internal to public; grant usage on schema lock, lock_internal to public; grant select, insert on all tables in schema lock to public")
		thief.exec(attack)
		if found := get[string](owner, "select string_agg(finding, '; ') from lock.check() where subject = 'rights' and severity = 'error'"); !strings.Contains(found, "public has execute on function lock.") {
			t.Errorf("lock.check() says %q", found)
		}
		owner.exec(mend)
		thief.fails("42501", attack)
		answers(owner, 0, "select count(*)::int from lock.check() where subject = 'rights'")
		for _, sql := range []string{"select lock_internal.utc(now())", "table lock.mutex", "insert into lock.mutex (task_id) values ('x')", "select lock.check()"} {
			thief.fails("42501", sql)
		}
		if t.Failed() {
			t.Fatalf("after %s", what)
		}
	}
	owner.exec("grant update on lock.mutex to locks_app")
	answers(owner, 1, "select count(*)::int from lock.check() where subject = 'rights' and finding like '%locks_app has update on table lock.mutex%'")
}

// A right to one function is not a wish for all.
func TestAttackByOneRight(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner, thief := e.sessionAs(t, e.owner), outsider(t, e)
	owner.exec("grant usage on schema lock to locks_outsider; grant execute on function lock.key(text) to locks_outsider")
	thief.exec("select lock.key('a')")
	owner.exec("select lock_internal.end_migration((select max(version) from lock.migration), 'up')")
	thief.fails("42501", "select lock.acquire_mutex('m')")
}

// Whoever owns a type can give it a cast to json, which to_jsonb runs: the triggers of a tracked table must not, as the schema's owner.
func TestAttackByAType(t *testing.T) {
	t.Parallel()
	eachTrigger(t, func(t *testing.T, e *env, super *session, partition string) {
		super.exec("create schema shop authorization locks_app")
		app := e.session(t)
		for _, sql := range []string{
			"create table shop.seen (who text)",
			"create type shop.mood as enum ('good', 'bad')",
			"create type shop.pair as (a integer, b text)",
			"create domain shop.amount as integer",
			"create domain shop.sum as shop.amount",
			`create function shop.steal(value shop.mood) returns json language plpgsql as $$
				begin insert into shop.seen values (current_user); return '"stolen"'; end $$`,
			"create cast (shop.mood as json) with function shop.steal(shop.mood)",
			"create cast (shop.mood as text) with inout",
			`create table shop.orders (id integer, mood shop.mood, moods shop.mood[], pair shop.pair, amount shop.amount, sum shop.sum, n numeric, gone text, "odd ""name" shop.mood) ` +
				strings.Replace(partition, "region", "id", 1),
			"alter table shop.orders drop column gone",
		} {
			app.exec(sql)
		}
		if partition != "" {
			app.exec("create table shop.orders_all partition of shop.orders default")
		}
		// A superuser may do it, and would do it for somebody who may not.
		refused := super.fails("42501", "select lock.track_changes('shop.orders', 'id')")
		if !strings.Contains(refused.Hint, "lock.grant_tracking_to('locks_app')") {
			t.Errorf("hint: %s", refused.Hint)
		}
		super.exec("select lock.grant_tracking_to('locks_app')")
		super.exec("select lock.track_changes('shop.orders', 'id')")
		app.exec(`insert into shop.orders values (1, 'good', '{good,bad}', (1, 'x'), 2, 3, 4.5, 'bad'); insert into shop.orders values (2)`)
		app.exec("update shop.orders set mood = 'bad' where id = 1")
		app.exec("delete from shop.orders where id = 1")
		app.exec("insert into shop.orders select n from generate_series(101, 300) n")
		if who := get[string](super, "select coalesce(string_agg(distinct who, ' '), '') from shop.seen"); who != "" {
			t.Errorf("the cast ran as %s", who)
		}
		for _, c := range []struct{ operation, image, want string }{
			{"INSERT", "new", `{"n": 4.5, "id": 1, "sum": 3, "mood": "good", "pair": "(1,x)", "moods": "{good,bad}", "amount": 2, "odd \"name": "bad"}`},
			{"UPDATE", "old", `{"n": 4.5, "id": 1, "sum": 3, "mood": "good", "pair": "(1,x)", "moods": "{good,bad}", "amount": 2, "odd \"name": "bad"}`},
			{"UPDATE", "new", `{"n": 4.5, "id": 1, "sum": 3, "mood": "bad", "pair": "(1,x)", "moods": "{good,bad}", "amount": 2, "odd \"name": "bad"}`},
			{"DELETE", "old", `{"n": 4.5, "id": 1, "sum": 3, "mood": "bad", "pair": "(1,x)", "moods": "{good,bad}", "amount": 2, "odd \"name": "bad"}`},
		} {
			answers(super, c.want, "select payload ->> $1 from lock.request where entity_id = '1' and payload ->> 'operation' = $2", c.image, c.operation)
		}
		answers(super, `{"n": null, "id": 2, "sum": null, "mood": null, "pair": null, "moods": null, "amount": null, "odd \"name": null}`,
			"select payload ->> 'new' from lock.request where entity_id = '2'")
		answers(super, 200, "select count(*)::int from lock.request where entity_id::int > 100")

		// A column that the transaction's snapshot does not show yet.
		old := e.session(t)
		for _, level := range []string{"repeatable read", "serializable"} {
			app.exec("create table shop.young (id integer) " + strings.Replace(partition, "region", "id", 1))
			if partition != "" {
				app.exec("create table shop.young_all partition of shop.young default")
			}
			app.exec("select lock.track_changes('shop.young', 'id', 'young')")
			old.exec("begin isolation level " + level)
			old.exec("select 1")
			app.exec("alter table shop.young add column mood shop.mood")
			old.exec("insert into shop.young values (1, 'bad'); update shop.young set mood = 'good'; delete from shop.young")
			old.exec("commit")
			app.exec("drop table shop.young")
			if who := get[string](super, "select coalesce(string_agg(distinct who, ' '), '') from shop.seen"); who != "" {
				t.Errorf("under %s the cast ran as %s", level, who)
			}
			answers(super, 3, "select count(*)::int from lock.request where queue_id = 'young' and entity_id = '1'")
			super.exec("delete from lock.request where queue_id = 'young'")
		}
	})
}

// The owner of a table may make the triggers by hand, without transition tables: their names would be those of temporary views.
func TestAttackByATemporaryView(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	super, app := e.sessionAs(t, e.super), e.session(t)
	super.exec("create schema shop authorization locks_app; select lock.grant_tracking_to('locks_app')")
	for _, sql := range []string{
		"create table shop.t (id text)", "create table shop.seen (who text)", "grant all on schema shop to public", "grant all on shop.seen to public",
		`create function shop.steal() returns boolean language plpgsql as $$ begin insert into shop.seen values (current_user); return true; end $$`,
	} {
		app.exec(sql)
	}
	for _, side := range []string{"new", "old"} {
		app.exec("create temp view lock_" + side + "_rows as select '1' as id where shop.steal()")
		app.exec("grant select on lock_" + side + "_rows to public")
	}
	for _, trigger := range []string{"after insert or update or delete on shop.t for each statement", "after insert or update or delete on shop.t for each row",
		"before insert or update or delete on shop.t for each statement", "before insert or update or delete on shop.t for each row"} {
		app.exec("create trigger t " + trigger + " execute function lock.record_changes('id', 'q')")
		app.fails("55000", "insert into shop.t values ('1')")
		app.exec("drop trigger t on shop.t")
	}
	app.exec("drop view lock_new_rows; drop view lock_old_rows")
	app.exec("create trigger t after insert on shop.t for each statement execute function lock.record_changes('id', 'q')")
	app.fails("42P01", "insert into shop.t values ('1')")
	app.exec("drop trigger t on shop.t")
	app.exec("create trigger t after insert on shop.t referencing new table as lock_new_rows for each statement execute function lock.record_changes('id', '')")
	app.fails("22023", "insert into shop.t values ('1')")
	app.fails("22023", "insert into shop.t select n from generate_series(1, 200) n")
	answers(super, "", "select coalesce(string_agg(distinct who, ' '), '') from shop.seen")
}

// What is ours cannot be tracked, whatever the setting makes of its name.
func TestAttackByQuotingNames(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner := e.sessionAs(t, e.owner)
	owner.exec("set quote_all_identifiers = on")
	for _, table := range []string{"lock.request", "lock.mutex"} {
		owner.fails("42809", "select lock.track_changes($1::text::regclass, 'queue_id')", table)
	}
}

// What an application has built on a view of ours is named when goose goes down over it.
func TestMigrateDownNamesWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner := e.sessionAs(t, e.owner)
	owner.exec("create schema app; create view app.depth as select * from lock.queue_depth; create view app.mutexes as select task_id from lock.mutex_status")
	provider, closeDB, err := gooseProvider(e.owner)
	must(t, err)
	defer closeDB()
	if _, err := provider.Down(ctx); code(err) != "2BP01" || !strings.Contains(err.Error(), "app.depth is built on lock.queue_depth") {
		t.Errorf("got %v", err)
	}
	owner.exec("drop view app.depth")
	_, err = provider.Down(ctx)
	must(t, err)
	if _, err := provider.DownTo(ctx, 0); code(err) != "2BP01" || !strings.Contains(err.Error(), "app.mutexes is built on lock.mutex_status") {
		t.Errorf("got %v", err)
	}
	must(t, migrate(e.owner, 0))
}

// An argument of megabytes is refused with its own SQLSTATE, and does not come back in the message.
func TestAttackBySize(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s, owner := e.session(t), e.sessionAs(t, e.owner)
	long, id := strings.Repeat("x", 10<<20), strings.Repeat("i", 1024)
	for _, sql := range []string{
		"select lock.exclusive($1::text)", "select lock.try_shared($1::text)", "select lock.exclusive_all(array[$1::text])", "select lock.unlock($1::text)", "select lock.key($1)",
		"select lock.acquire_mutex($1)", "select lock.acquire_mutex('m', $1)", "select lock.release_mutex($1)", "select lock.create_mutex($1)",
		"select lock.create_timeout($1, '1 s')", "select lock.acquire_timeout($1)", "select lock.acquire_time_slot($1, '1 s')",
		"select lock.create_throttled_resource($1, '1 s')", "select lock.lock_throttled_resource($1, 'x')", "select lock.lock_throttled_resource('r', $1)", "select lock.take($1, 1, '1 s')",
		"select lock.acquire_lease($1, 'me', '1 s')", "select lock.acquire_lease('l', $1, '1 s')", "select lock.await_lease($1, 'me', '1 s')", "select lock.renew_lease($1, 1, '1 s')",
		"select lock.create_task($1)", "select lock.create_task('t', $1)", "select lock.create_tasks(array[$1::text])", "select lock.capture(1, $1)", "select lock.capture(1, statuses => array[$1::text])",
		"select lock.capture(1, owner => $1)", "select lock.set_status($1, 'done')", "select lock.set_statuses(array[$1::text], '{1}', 'done')",
		"select lock.settle_and_capture('{t}', '{1}', array[$1::text], 1)", "select lock.extend_task($1, 1, '1 s')", "select lock.retry_task($1, 1)", "select lock.next_task_in($1)",
		"select lock.enqueue('update', $1)", "select lock.enqueue($1, 'e')", "select lock.enqueue('update', 'e', queue_id => $1)",
		"select lock.capture_request(gen_random_uuid(), 0, $1)", "select lock.settle_request(gen_random_uuid(), $1)", "select lock.request_history($1)",
		"select lock.start_idling($1, 'q', 'w', '1 s')", "select lock.start_idling('lock_task', $1, 'w', '1 s')", "select lock.start_idling('lock_task', 'q', $1, '1 s')",
	} {
		if pg := s.fails("22023", sql, long); len(pg.Message)+len(pg.Hint)+len(pg.Detail) > 1000 {
			t.Errorf("%s: %d bytes of message", sql, len(pg.Message)+len(pg.Hint)+len(pg.Detail))
		}
	}
	for _, sql := range []string{
		"select lock.start_idling($1, $1, $1, '1 s')",
		"select lock.settle_and_capture('{t}', '{{1}}', '{done}', 1) where $1 <> ''", "select lock.settle_and_capture('{t}', '{1}', '{{done}}', 1) where $1 <> ''",
		"select lock.settle_and_capture('{t,u}', '{1,2}', '{done,done}', 1, delays => '{{1 s},{1 s}}') where $1 <> ''",
		"select lock.set_statuses('{{t}}', '{{1}}', 'done') where $1 <> ''",
	} {
		s.fails("22023", sql, id)
	}
	// The longest that are allowed fit into every index.
	for _, sql := range []string{
		"select lock.start_idling('lock_task', $1, $1, '1 s')", "select lock.create_task($1, $1)", "select lock.enqueue('create', $1, queue_id => $1)",
		"select lock.acquire_lease($1, $1, '1 min')", "select lock.acquire_mutex($1, $1)",
	} {
		s.exec(sql, id)
	}
	owner.exec("select lock.force_release_mutex($1, $1)", id)
}

// A function that costs nothing is called for rows that a view leaves out, unless the view is a barrier.
func TestAttackByACheapFunction(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner, app := e.sessionAs(t, e.owner), e.session(t)
	app.exec("select lock.create_task('secret', retries_left => 5), lock.create_task('dead', status => 'failed')")
	taskOwner(t, e, "update lock.task set retries_left = 0 where id = 'dead'")
	app.exec(`create function pg_temp.peek(id text) returns boolean language plpgsql cost 0.0000001 as $$
		begin perform set_config('test.seen', current_setting('test.seen', true) || ' ' || id, false); return true; end $$`)
	for barrier, want := range map[string]bool{"false": true, "true": false} {
		owner.exec("alter view lock.dead_letter set (security_barrier = " + barrier + ")")
		app.exec("set test.seen = ''")
		app.exec("set enable_indexscan = off; set enable_bitmapscan = off")
		app.exec("select * from lock.dead_letter where pg_temp.peek(id)")
		if got := strings.Contains(get[string](app, "select current_setting('test.seen')"), "secret"); got != want {
			t.Errorf("with a barrier %s the function sees what is left out: %v", barrier, got)
		}
	}
}

// What a client leaves behind on a pooled connection changes nothing for the next one.
func TestAttackBySettings(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.sessionAs(t, e.super)
		s.exec(`set array_nulls = off; set quote_all_identifiers = on; set datestyle = 'German'; set intervalstyle = 'iso_8601'; set timezone = 'Asia/Kolkata'; set extra_float_digits = -15`)
		s.exec(`set standard_conforming_strings = on; set xmloption = document; set search_path = pg_temp, public; set enable_indexscan = off; set row_security = off`)
		for _, setting := range []string{"woken", "forgotten", "heads_kept", "engine", "task_0", "task_63"} {
			s.exec("select set_config('lock.' || $1, $2, false)", setting, `}{ "',`)
		}
		other := open(t, e.engine)
		undisturbed := other.sessionAs(t, other.super)
		for call := range strings.SplitSeq(planCalls, ";") {
			_, want := undisturbed.conn.Exec(ctx, call)
			if _, err := s.conn.Exec(ctx, call); code(err) != code(want) {
				t.Errorf("%s: %v instead of %v", call, err, want)
			}
		}
		answers(s, e.engine, "select lock.engine()")
	})
}

// The functions of key locks run with the caller's search_path. What it finds first is called by none of them.
func TestAttackByTheCallersSearchPath(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.sessionAs(t, e.super)
		s.exec(`create schema thief; create function thief.steal(integer, integer) returns boolean language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create function thief.steal(bigint, bigint) returns bigint language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create function thief.steal(interval, interval) returns boolean language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create operator thief.# (function = thief.steal, leftarg = bigint, rightarg = bigint);
			create function thief.octet_length(text) returns integer language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create function thief.hashtextextended(text, bigint) returns bigint language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create function thief.pg_is_in_recovery() returns boolean language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create function thief.pg_try_advisory_xact_lock(bigint) returns boolean language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create function thief.pg_try_advisory_xact_lock_shared(bigint) returns boolean language plpgsql as $$ begin raise exception 'stolen'; end $$;
			create domain thief.interval as text; create domain thief.bigint as text; create collation thief."C" (locale = 'C')`)
		for _, operator := range []string{"=", "<>", "<", "<=", ">", ">="} {
			s.exec("create operator thief." + operator + " (function = thief.steal, leftarg = integer, rightarg = integer)")
			s.exec("create operator thief." + operator + " (function = thief.steal, leftarg = pg_catalog.interval, rightarg = pg_catalog.interval)")
		}
		s.exec("set search_path = thief, pg_catalog")
		s.fails("P0001", "select 1 = 1") // the trap works
		for _, call := range []string{"exclusive(1::pg_catalog.int8)", "exclusive('n'::text)", "shared(2::pg_catalog.int8)", "shared('m'::text)", "try_exclusive(3::pg_catalog.int8)", "try_exclusive('o'::text)",
			"try_shared(4::pg_catalog.int8)", "try_shared('p'::text)", "try_shared('p'::text, '1 s')", "exclusive_all('{a,b}')", "try_all('{a,b}', '{5}', '{q}', '{6}', '1 s')", "key('n')", "unlock('n'::text)", "engine()"} {
			s.exec("select lock." + call)
		}
	})
}
