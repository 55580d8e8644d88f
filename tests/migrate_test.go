package tests

import (
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/seed4787c507/locks"
)

// gooseCLI runs the stock goose as a pipeline does.
func gooseCLI(t *testing.T, url string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"-dir", root(t) + "/sql/schema", "-table", versionTable, "postgres", url}, args...)
	out, err := exec.Command(tool(t, "goose"), args...).CombinedOutput()
	return string(out), err
}

func TestMigrateWithTheStockCLI(t *testing.T) {
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			tool(t, "goose")
			e := openEmpty(t, engine)
			empty := snapshot(t, e)
			var full []string
			for _, step := range []string{"up", "up", "down-to 0", "up", "redo", "down-to 0", "up"} {
				if out, err := gooseCLI(t, e.owner, strings.Fields(step)...); err != nil {
					t.Fatalf("goose %s: %v\n%s", step, err, out)
				}
				now := snapshot(t, e)
				if full == nil {
					full = now
				}
				want := full
				if step == "down-to 0" {
					want = empty
				}
				if lines := differences(want, now); len(lines) > 0 {
					t.Fatalf("after goose %s: %s", step, strings.Join(lines, "\n"))
				}
			}
			answers(e.sessionAs(t, e.owner), engine, "select lock.engine()")
			e.sessionAs(t, e.owner).exec("select lock.exclusive(1)")
		})
	}
}

func TestMigrateTwoAtOnce(t *testing.T) {
	onlyPostgreSQL(t, "migrators do not take turns there")
	t.Parallel()
	tool(t, "goose")
	reference := openEmpty(t, advisory)
	must(t, migrate(reference.owner, 0))
	want := snapshot(t, reference)
	for round := range 5 {
		e := openEmpty(t, advisory)
		for _, state := range []string{"an empty", "an up-to-date"} {
			results := make([]string, 3)
			failed := make([]bool, len(results))
			var wg sync.WaitGroup
			for i := range results {
				wg.Go(func() {
					out, err := gooseCLI(t, e.owner, "up")
					results[i], failed[i] = out, err != nil
				})
			}
			wg.Wait()
			if !slices.Contains(failed, false) {
				t.Fatalf("round %d: all failed on %s database:\n%s", round, state, strings.Join(results, "\n"))
			}
			for i, out := range results {
				// goose itself makes its version table without a guard; the loser of that race has done nothing yet.
				known := strings.Contains(out, "Another migrator is at work") || strings.Contains(out, "migration") && strings.Contains(out, "cannot go up now") ||
					strings.Contains(out, "lock_goose_version") || strings.Contains(out, "pg_type_typname_nsp_index")
				if failed[i] && (state == "an up-to-date" || !known) {
					t.Errorf("round %d: on %s database: %s", round, state, out)
				}
			}
			if out, err := gooseCLI(t, e.owner, "up"); err != nil {
				t.Fatalf("once more: %v\n%s", err, out)
			}
			if lines := differences(want, snapshot(t, e)); len(lines) > 0 {
				t.Fatalf("round %d: after %s database: %s", round, state, strings.Join(lines, "\n"))
			}
		}
	}
}

// A migrator that fell behind must not bring older functions back.
func TestMigrateRefusesOneThatFellBehind(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	owner := e.sessionAs(t, e.owner)
	for _, call := range []string{"(1, 'up')", "(1, 'down')"} {
		owner.exec("insert into lock.migration (number) values (1000)")
		pg := owner.fails("55006", "select lock_internal.start_migration"+call)
		if !strings.Contains(pg.Hint, "run goose again") {
			t.Errorf("hint: %q", pg.Hint)
		}
		owner.exec("delete from lock.migration where number = 1000")
	}
	latest := get[int](owner, "select max(number) from lock.migration")
	owner.exec("select lock_internal.start_migration($1, 'up'), lock_internal.start_migration($1 + 1, 'up'), lock_internal.start_migration($1, 'down')", latest)
	out, err := gooseCLI(t, e.owner, "version")
	if err != nil || !strings.Contains(out, "version") {
		t.Fatalf("%v\n%s", err, out)
	}
	owner.exec("insert into lock.migration (number) values (1000)")
	owner.exec("delete from " + versionTable + " where version_id > 0")
	out, err = gooseCLI(t, e.owner, "up")
	if err == nil || !strings.Contains(out, "the schema is at 1000") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMigrateWithAProviderAndALocker(t *testing.T) {
	t.Parallel()
	e := openEmpty(t, advisory)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			config, err := pgx.ParseConfig(e.owner)
			if err != nil {
				t.Error(err)
				return
			}
			db := stdlib.OpenDB(*config)
			defer db.Close()
			locker, err := lock.NewPostgresSessionLocker()
			if err != nil {
				t.Error(err)
				return
			}
			provider, err := goose.NewProvider(goose.DialectPostgres, db, locks.Migrations,
				goose.WithTableName(versionTable), goose.WithSessionLocker(locker))
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := provider.Up(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.sessionAs(t, e.owner).exec("select lock.exclusive(1)")
}

func TestMigrateChoosesTheEngineOnce(t *testing.T) {
	onlyPostgreSQL(t, "there is one engine")
	t.Parallel()
	e := openEmpty(t, "nonsense")
	if err := migrate(e.owner, 0); code(err) != "22023" {
		t.Fatalf("got %v, want 22023", err)
	}
	super := e.sessionAs(t, e.super)
	super.exec("do $$ begin execute format('alter database %I reset lock.engine', current_database()); end $$")
	must(t, migrate(e.owner, 0))
	answers(e.sessionAs(t, e.owner), advisory, "select lock.engine()")
	super.exec("do $$ begin execute format('alter database %I set lock.engine = row', current_database()); end $$")
	answers(e.sessionAs(t, e.owner), advisory, "select lock.engine()")
	owner := e.sessionAs(t, e.owner)
	owner.exec("set lock.engine = 'row'")
	answers(owner, advisory, "select lock.engine()")
	for chosen, other := range map[string]string{advisory: row, row: advisory} {
		e := openEmpty(t, chosen)
		must(t, migrate(e.owner, 1))
		e.sessionAs(t, e.super).exec("do $$ begin execute format('alter database %I set lock.engine = " + other + "', current_database()); end $$")
		owner := e.sessionAs(t, e.owner)
		owner.exec("delete from " + versionTable + " where version_id > 0")
		must(t, migrate(e.owner, 0)) // the first migration once more
		answers(owner, chosen, "select lock.engine()")
		replay(t, owner, "")
		answers(owner, chosen, "select lock.engine()")
		answers(owner, map[string]string{advisory: "v", row: "r"}[chosen], "select relkind::text from pg_class where oid = 'lock.locked_keys'::regclass")
	}
}
