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
	must(t, fs.WalkDir(locks.Migrations, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(locks.Migrations, name)
		const pin = "set local search_path = pg_catalog, pg_temp;\n"
		if strings.Count(string(text), pin) != 2 {
			t.Errorf("%s does not pin the search_path once in Up and once in Down", name)
		}
		unpinned[name] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(string(text), pin, ""))}
		return err
	}))
	// What views and defaults have bound that is neither the server's nor ours.
	const bound = `select count(*) from pg_depend
		join pg_proc on refclassid = 'pg_proc'::regclass and pg_proc.oid = refobjid
		where classid in ('pg_rewrite'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass)
		and pronamespace = 'public'::regnamespace`
	for _, c := range []struct {
		name  string
		files fs.FS
		want  bool
	}{{"without a pinned search_path it succeeds", unpinned, true}, {"as deployed it fails", locks.Migrations, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := openEmpty(t, advisory)
			thief := outsider(t, e)
			e.sessionAs(t, e.super).exec("grant create on schema public to public")
			thief.exec(`create function public.to_jsonb(pg_catalog.pg_stat_activity) returns jsonb language plpgsql as $$ begin return '{}'; end $$`)
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
		"the next migration":  "select lock_internal.end_migration((select max(number) from lock.migration), 'up')",
		"revoke_from_public":  "select lock_internal.revoke_from_public()",
		"grant_to of another": "select lock.grant_to('locks_outsider'), lock.revoke_from('locks_outsider')",
	} {
		owner.exec("grant all on all functions in schema lock, lock_internal to public; grant usage on schema lock, lock_internal to public; grant select, insert on all tables in schema lock to public")
		thief.exec(attack)
		if found := get[string](owner, "select string_agg(finding, '; ') from lock.check() where subject = 'rights' and severity = 'error'"); !strings.Contains(found, "PUBLIC may execute functions of lock") {
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
	answers(owner, 1, "select count(*)::int from lock.check() where subject = 'rights' and finding like '%locks_app may update lock.mutex%'")
}

// A right to one function is not a wish for all.
func TestAttackByOneRight(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner, thief := e.sessionAs(t, e.owner), outsider(t, e)
	owner.exec("grant usage on schema lock to locks_outsider; grant execute on function lock.key(text) to locks_outsider")
	thief.exec("select lock.key('a')")
	owner.exec("select lock_internal.end_migration((select max(number) from lock.migration), 'up')")
	thief.fails("42501", "select lock.acquire_mutex('m')")
}
