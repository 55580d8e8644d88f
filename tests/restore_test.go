package tests

import (
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// dumpTool is pg_dump or pg_restore, of a version that knows this server.
func dumpTool(t *testing.T, name string) string {
	t.Helper()
	path := ""
	if target.own != nil {
		path = filepath.Join(target.own.BinDir, name)
	}
	if _, err := exec.LookPath(path); err != nil {
		if path, err = exec.LookPath(name); err != nil {
			t.Skipf("%s is not here: %v", name, err)
		}
	}
	out, err := exec.Command(path, "--version").Output()
	must(t, err)
	major, err := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(string(out)))
	must(t, err)
	if major < target.number/10000 {
		t.Skipf("%s is of version %d, and the server of %d", name, major, target.number/10000)
	}
	return path
}

// A dump is restored into an empty database of its owner or of another role, whole or the two schemas alone, with and without rights.
func TestRestore(t *testing.T) {
	onlyPostgreSQL(t, "it has tools of its own")
	t.Parallel()
	dump, restore := dumpTool(t, "pg_dump"), dumpTool(t, "pg_restore")
	for _, engine := range engines() {
		e := open(t, engine)
		app := e.session(t)
		for _, sql := range []string{
			"select lock.acquire_mutex('m', 'me')", "select lock.acquire_lease('l', 'me', '1 hour')", "select lock.create_task('t')",
			"select lock.enqueue('create', 'e')", "select lock.create_throttled_resource('r', '1 hour')",
			"select lock.create_throttled_resource('p', '36000 days', 2), lock.lock_throttled_resource('p', 'x')",
			"select lock.acquire_time_slot('s', '36000 days')", "select lock.take('b', 1, '36000 days')",
		} {
			app.exec(sql)
		}
		want := snapshot(t, e)
		for _, who := range []string{"locks_owner", "locks_app"} {
			for _, what := range []string{"whole", "by schema"} {
				for _, rights := range []string{"with rights", "without rights"} {
					t.Run(strings.Join([]string{engine, who, what, rights}, " "), func(t *testing.T) {
						t.Parallel()
						file := filepath.Join(t.TempDir(), "dump")
						arguments := []string{"-Fc", "-f", file}
						if what == "by schema" {
							arguments = append(arguments, "-n", "lock", "-n", "lock_internal")
						}
						if out, err := exec.Command(dump, append(arguments, e.owner)...).CombinedOutput(); err != nil {
							t.Fatalf("%v\n%s", err, out)
						}
						copied := openEmpty(t, engine)
						// The role that restores owns the database, and the application has a role of another name.
						address, err := url.Parse(copied.owner)
						must(t, err)
						owner, granted := as(copied.owner, who, strings.TrimPrefix(address.Path, "/")), "locks_app"
						if who == "locks_app" {
							granted = "locks_owner"
							super := copied.sessionAs(t, copied.super)
							super.exec("do $$ begin execute format('alter database %I owner to locks_app', current_database()); end $$")
						}
						arguments = []string{"-d", owner, "--no-owner", "--exit-on-error"}
						if rights == "without rights" {
							arguments = append(arguments, "--no-acl")
						}
						arguments = append(arguments[:len(arguments):len(arguments)], file)
						if out, err := exec.Command(restore, arguments...).CombinedOutput(); err != nil {
							t.Fatalf("%v\n%s", err, out)
						}
						boss := copied.sessionAs(t, owner)
						boss.exec("select lock.grant_to($1)", granted)
						if findings := get[int](boss, "select count(*)::int from lock.check() where subject = 'rights'"); findings > 0 {
							t.Errorf("%d findings about rights", findings)
						}
						acl := regexp.MustCompile(`\bacl \S+( \S+=\S+)*`)
						strip := func(lines []string) (kept []string) {
							for _, line := range lines {
								if who != "locks_owner" {
									line = acl.ReplaceAllString(line, "")
								}
								kept = append(kept, line)
							}
							return kept
						}
						for _, line := range differences(strip(want), strip(snapshot(t, copied))) {
							t.Errorf("differs: %s", line)
						}
						user := copied.sessionAs(t, strings.Replace(owner, who+"@", granted+"@", 1))
						answers(user, engine, "select lock.engine()")
						answers(user, false, "select lock.acquire_mutex('m', 'you')")
						answers(user, 0, "select count(*)::int from lock.acquire_lease('l', 'you', '1 hour')")
						answers(user, "t", "select id from lock.capture(1)")
						answers(user, false, "select lock.acquire_time_slot('s', '36000 days')")
						answers(user, false, "select granted from lock.take('b', 1, '36000 days')")
						answers(user, 1, "select count(*) filter (where lock.lock_throttled_resource('p', 'y'))::int from generate_series(1, 3)")
						user.exec("begin; select lock.exclusive('customer:42'); commit")
						tx, err := user.conn.Begin(ctx)
						must(t, err)
						var entity string
						must(t, tx.QueryRow(ctx, "select entity_id from lock.capture_request('00000000-0000-4000-8000-000000000001')").Scan(&entity))
						_, err = tx.Exec(ctx, "select lock.settle_request('00000000-0000-4000-8000-000000000001')")
						must(t, err)
						must(t, tx.Commit(ctx))
						user.fails("42501", "table lock.mutex")
						if what == "whole" {
							if err := migrate(owner, 0); err != nil {
								t.Errorf("goose up: %v", err)
							}
						}
					})
				}
			}
		}
	}
}

// The data alone are restored into a database that has been migrated, once and again.
func TestRestoreData(t *testing.T) {
	onlyPostgreSQL(t, "it has tools of its own")
	t.Parallel()
	dump, restore := dumpTool(t, "pg_dump"), dumpTool(t, "pg_restore")
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			e, copied := open(t, engine), open(t, engine)
			app, owner := e.session(t), e.sessionAs(t, e.owner)
			app.exec("select lock.release_lease('forgotten', (lock.acquire_lease('forgotten', 'me', '1 hour')).token) from generate_series(1, 5)")
			owner.exec("update lock.lease_name set granted_at = granted_at - interval '1 day'")
			answers(owner, 1, "select lock.drop_unused_leases('1 hour')::int")
			for _, sql := range []string{
				"select lock.acquire_lease('l', 'me', '1 hour')", "select lock.acquire_mutex('m', 'me')", "select lock.create_task('t')",
				"select lock.enqueue('create', 'e')",
			} {
				app.exec(sql)
			}
			owner.exec("select lock.pause_queue('task', 'q', 'why')")
			file := filepath.Join(t.TempDir(), "dump")
			if out, err := exec.Command(dump, "-Fc", "-a", "-n", "lock", "-f", file, e.owner).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			user, there := copied.session(t), copied.sessionAs(t, copied.owner)
			data := func() {
				if out, err := exec.Command(restore, "-d", copied.owner, "--exit-on-error", file).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			data()
			answers(there, get[string](owner, "select string_agg(m::text, ' ') from lock.migration m"), "select string_agg(m::text, ' ') from lock.migration m")
			answers(user, true, "select token > 5 from lock.acquire_lease('forgotten', 'me', '1 hour')")
			answers(user, 0, "select count(*)::int from lock.acquire_lease('l', 'you', '1 hour')")
			answers(user, false, "select lock.acquire_mutex('m', 'you')")
			answers(user, "t", "select id from lock.capture(1)")
			answers(there, "e", "select string_agg(entity_id, ' ') from lock.request where settled_at is null")
			// The floor of a database that has forgotten more stays.
			there.exec("update lock.lease_floor set token = 100")
			there.exec("delete from lock.lease; delete from lock.lease_name; delete from lock.mutex; delete from lock.task; delete from lock.request; delete from lock.queue_pause")
			data()
			answers(user, int64(101), "select token from lock.acquire_lease('forgotten', 'me', '1 hour')")
			must(t, migrate(copied.owner, 0))
		})
	}
}
