package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/tests/migrations"
)

// catalogue describes everything in the schema "lock", one object a line.
const catalogue = `
select 'function ' || p.oid::regprocedure || E'\n' || pg_get_functiondef(p.oid)
    || coalesce((select string_agg('acl ' || acl, ' ' order by acl::text) from unnest(p.proacl) acl), 'acl default')
    || ' comment ' || coalesce(obj_description(p.oid, 'pg_proc'), 'none')
from pg_proc p where p.pronamespace in (select oid from pg_namespace where nspname in ('lock', 'lock_internal'))
union all
select 'relation ' || c.relname || ' ' || c.relkind::text || c.relpersistence::text || ' acl ' || coalesce((select string_agg(acl::text, ' ' order by acl::text) from unnest(c.relacl) acl), 'default')
    || ' comment ' || coalesce(obj_description(c.oid, 'pg_class'), 'none')
    || case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) when c.relkind = 'i' then pg_get_indexdef(c.oid) else '' end
from pg_class c where c.relnamespace in (select oid from pg_namespace where nspname in ('lock', 'lock_internal'))
union all
select 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull::text || a.attidentity::text || a.attgenerated::text
    || ' default ' || coalesce(pg_get_expr(d.adbin, d.adrelid), 'none') || ' comment ' || coalesce(col_description(c.oid, a.attnum), 'none')
    || ' acl ' || coalesce(a.attacl::text, 'default')
from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relnamespace in (select oid from pg_namespace where nspname in ('lock', 'lock_internal')) and c.relkind in ('r', 'p', 'v') and a.attnum > 0 and not a.attisdropped
union all
select 'constraint ' || c.conrelid::regclass || ' ' || c.conname || ' ' || pg_get_constraintdef(c.oid) from pg_constraint c where c.connamespace in (select oid from pg_namespace where nspname in ('lock', 'lock_internal'))
union all
select 'trigger ' || pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text
from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace in (select oid from pg_namespace where nspname in ('lock', 'lock_internal')) and not t.tgisinternal
union all
select 'type ' || t.typname || ' ' || (select coalesce(string_agg(e.enumlabel, ',' order by e.enumsortorder), '') from pg_enum e where e.enumtypid = t.oid)
    || ' comment ' || coalesce(obj_description(t.oid, 'pg_type'), 'none')
from pg_type t where t.typnamespace in (select oid from pg_namespace where nspname in ('lock', 'lock_internal')) and t.typtype in ('e', 'd')
union all
select 'schema ' || n.nspname || ' acl ' || coalesce((select string_agg(acl::text, ' ' order by acl::text) from unnest(n.nspacl) acl), 'default') || ' comment ' || coalesce(obj_description(n.oid, 'pg_namespace'), 'none')
from pg_namespace n where n.nspname in ('lock', 'lock_internal')
order by 1`

func snapshot(t *testing.T, e *env) []string {
	t.Helper()
	return snapshotBy(t, e.admin)
}

func snapshotBy(t *testing.T, by db.DBTX) []string {
	t.Helper()
	rows, err := by.Query(ctx, catalogue)
	must(t, err)
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var line string
		must(t, rows.Scan(&line))
		lines = append(lines, line)
	}
	must(t, rows.Err())
	return lines
}

// differences lists what is in only one of two snapshots.
func differences(a, b []string) []string {
	var lines []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			lines = append(lines, "+ "+line)
		}
	}
	return lines
}

func TestDriftOfFrozenCopies(t *testing.T) {
	t.Parallel()
	drift, err := migrations.Drift(root(t))
	must(t, err)
	for _, line := range drift {
		t.Errorf("%s: run make migration", line)
	}
	for name, plant := range map[string]func(t *testing.T, path string){
		"differs from its last frozen copy": func(t *testing.T, path string) {
			text, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, []byte(strings.Replace(string(text), "begin\n", "begin\n    null;\n", 1)), 0o644))
		},
		"is gone, and the migrations still make it": func(t *testing.T, path string) { must(t, os.Remove(path)) },
		"is in no migration": func(t *testing.T, path string) {
			text, err := os.ReadFile(path)
			must(t, err)
			other := filepath.Join(filepath.Dir(path), "planted.sql")
			must(t, os.WriteFile(other, []byte(strings.ReplaceAll(string(text), "unlock", "planted")), 0o644))
		},
	} {
		t.Run("sees a function that "+name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			must(t, os.CopyFS(filepath.Join(dir, "sql"), os.DirFS(filepath.Join(root(t), "sql"))))
			plant(t, filepath.Join(dir, "sql/functions/key/unlock.sql"))
			drift, err := migrations.Drift(dir)
			must(t, err)
			if len(drift) != 1 || !strings.HasSuffix(drift[0], name) {
				t.Errorf("drift: %q", drift)
			}
			// The next migration takes the drift away, and its Down brings the old text back.
			before, err := migrations.Migrations(dir)
			must(t, err)
			state, err := migrations.Replay(before)
			must(t, err)
			path, err := migrations.Write(dir, "planted", false)
			must(t, err)
			drift, err = migrations.Drift(dir)
			must(t, err)
			if len(drift) != 0 {
				t.Errorf("after make migration: %q", drift)
			}
			text, err := os.ReadFile(path)
			must(t, err)
			_, down, _ := strings.Cut(string(text), "-- +goose Down")
			reverted, err := migrations.Replay(append(before, migrations.Migration{Text: string(text)}, migrations.Migration{Text: down + "\n-- +goose Down"}))
			must(t, err)
			if len(reverted) != len(state) || reverted["sql/functions/key/unlock.sql"] != state["sql/functions/key/unlock.sql"] {
				t.Error("Down does not bring back the text before")
			}
		})
	}
}

// replay runs every function file as psql would.
func replay(t *testing.T, s *session, extra string) {
	t.Helper()
	files, err := migrations.Functions(root(t))
	must(t, err)
	s.exec("set plpgsql.extra_errors = 'all'")
	for path, text := range files {
		if _, err := s.conn.Exec(ctx, text); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if extra != "" {
		s.exec(extra)
	}
}

func TestDriftOfTheCatalogue(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		owner := e.sessionAs(t, e.owner)
		owner.exec("select lock.revoke_from('locks_app')")
		migrated := snapshot(t, e)
		replay(t, owner, "")
		for _, line := range differences(migrated, snapshot(t, e)) {
			t.Errorf("differs after replaying the files: %s", line)
		}
		files, err := migrations.Functions(root(t))
		must(t, err)
		inFiles := map[string]bool{}
		for path := range files {
			name := strings.TrimSuffix(filepath.Base(path), ".sql")
			if inFiles[name] {
				t.Errorf("two files define %s", name)
			}
			inFiles[name] = true
		}
		// The first migration writes it, differently for each engine.
		inFiles["is_advisory"] = true
		inCatalogue := map[string]bool{}
		for _, line := range migrated {
			if m := regexp.MustCompile(`^function lock(?:_internal)?\."?(\w+)"?\(`).FindStringSubmatch(line); m != nil {
				inCatalogue[m[1]] = true
				if !inFiles[m[1]] {
					t.Errorf("%s has no file", m[1])
				}
			}
		}
		for name := range inFiles {
			if !inCatalogue[name] {
				t.Errorf("%s has a file and is not in the catalogue", name)
			}
		}
		for _, planted := range []string{
			"create or replace function lock.advisory_key(key bigint) returns bigint language sql immutable parallel safe as 'select 1::bigint'",
			"comment on function lock.advisory_key(bigint) is 'planted'",
			"grant execute on function lock.advisory_key(bigint) to public",
			"create function lock.planted() returns integer language sql as 'select 1'",
			"alter table lock.migration add planted integer",
		} {
			if len(differences(migrated, func() []string { owner.exec(planted); return snapshot(t, e) }())) == 0 {
				t.Errorf("not seen: %s", planted)
			}
			replay(t, owner, "drop function if exists lock.planted()")
			owner.exec("alter table lock.migration drop column if exists planted")
		}
	})
}

func TestDriftOfDown(t *testing.T) {
	t.Parallel()
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			e := openEmpty(t, engine)
			provider, closeDB, err := gooseProvider(e.owner)
			must(t, err)
			defer closeDB()
			all, err := migrations.Migrations(root(t))
			must(t, err)
			states := [][]string{snapshot(t, e)}
			for range all {
				_, err := provider.UpByOne(ctx)
				must(t, err)
				states = append(states, snapshot(t, e))
				if len(differences(states[len(states)-2], states[len(states)-1])) == 0 {
					t.Errorf("migration %d changes nothing", len(states)-1)
				}
			}
			for n := len(all) - 1; n >= 0; n-- {
				_, err := provider.Down(ctx)
				must(t, err)
				for _, line := range differences(states[n], snapshot(t, e)) {
					t.Errorf("at %d on the way down: %s", n, line)
				}
			}
		})
	}
}
