package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ybModule builds tests/yugabytesetting once, and returns the library or the reason why it cannot be had.
var ybModule = sync.OnceValues(func() (string, error) {
	if target.own == nil {
		return "", errors.New("the server is not one of our own: no library can be put beside it")
	}
	config := filepath.Join(target.own.BinDir, "pg_config")
	include, err := exec.Command(config, "--includedir-server").Output()
	if err != nil {
		return "", fmt.Errorf("no pg_config beside this server: %w", err)
	}
	headers := strings.TrimSpace(string(include))
	if _, err := os.Stat(filepath.Join(headers, "postgres.h")); err != nil {
		return "", fmt.Errorf("no server headers (Debian: postgresql-server-dev-%d): %w", target.number/10000, err)
	}
	library := filepath.Join(target.own.Dir, "yugabytesetting.so")
	out, err := exec.Command("gcc", "-O1", "-fPIC", "-shared", "-I", headers, "-o", library, "yugabytesetting/yugabytesetting.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return library, os.Chmod(library, 0o755)
})

// openYB is a database with the row engine whose new connections know YugabyteDB's settings.
func openYB(t *testing.T) *env {
	t.Helper()
	library, err := ybModule()
	if err != nil {
		t.Skip(err)
	}
	e := open(t, row)
	conn, err := pgx.Connect(ctx, e.super)
	must(t, err)
	defer conn.Close(ctx)
	e.writeInside(t)
	_, err = conn.Exec(ctx, "do $$ begin execute format('alter database %I set session_preload_libraries = %L', current_database(), '"+library+"'); end $$")
	must(t, err)
	return e
}

// The branch of the row engine that only YugabyteDB takes, run on PostgreSQL, where the setting has no effect: what is seen here is
// that it is switched on for the insert alone, and that the loop around it is right.
func TestKeyYugabyteBranch(t *testing.T) {
	t.Parallel()
	e := openYB(t)
	super := e.sessionAs(t, e.super)
	super.exec(`create table public.insertion (key bigint, outside boolean);
		create function public.note() returns trigger language plpgsql as $$ begin
			insert into public.insertion values (new.key, current_setting('yb_disable_transactional_writes')::boolean); return new;
		end $$;
		create trigger note after insert on lock.locked_keys for each row execute function public.note();
		grant all on public.insertion to public`)
	s := e.session(t)
	outside := func(t *testing.T, key int, want string) {
		t.Helper()
		answers(s, "off", "show yb_disable_transactional_writes")
		answers(s, want, "select coalesce(string_agg(outside::text, ' '), '') from public.insertion where key = $1", key)
	}
	for key, call := range map[int]string{
		1: "lock.exclusive(1)", 2: "lock.shared(2)", 3: "lock.try_exclusive(3)", 4: "lock.try_shared(4, '1 second')", 5: "lock.exclusive('a')",
	} {
		t.Run(call+" inserts outside the transaction, and nothing else does", func(t *testing.T) {
			if key == 5 {
				key = int(get[int64](s, "select lock.key('a')"))
			}
			s.exec("select " + call)
			outside(t, key, "true")
			s.exec("begin")
			s.exec("set local yb_disable_transactional_writes = on")
			s.exec("select " + strings.Replace(call, fmt.Sprint(key), fmt.Sprint(key+10), 1))
			answers(s, "on", "show yb_disable_transactional_writes")
			s.exec("commit")
		})
	}
	t.Run("a known key is not inserted", func(t *testing.T) {
		s.exec("select lock.exclusive(1)")
		outside(t, 1, "true")
	})
	t.Run("serializable inserts inside: its own read locks would be in the way", func(t *testing.T) {
		s.exec("begin isolation level serializable")
		s.exec("select lock.exclusive(20)")
		s.exec("commit")
		outside(t, 20, "false")
	})
	t.Run("a key that this transaction forgot is inserted inside: its own deletion would be in the way", func(t *testing.T) {
		s.exec("select lock.exclusive(30)")
		s.exec("begin")
		answers(s, true, "select lock.unlock(30)")
		s.exec("select lock.exclusive(31)")
		s.exec("select lock.exclusive(30)")
		s.exec("commit")
		outside(t, 30, "true false")
		outside(t, 31, "true")
		s.exec("select lock.unlock(30)")
		s.exec("select lock.exclusive(30)") // another transaction
		outside(t, 30, "true false true")
		s.exec("begin; savepoint a")
		answers(s, true, "select lock.unlock(31)")
		s.exec("rollback to savepoint a")
		answers(s, "", "select current_setting('lock.forgotten', true)")
		s.exec("rollback")
	})
	t.Run("and so is one that vacuum forgot", func(t *testing.T) {
		s.exec("begin")
		answers(s, true, "select lock.vacuum() > 3")
		s.exec("select lock.exclusive(2)")
		s.exec("commit")
		outside(t, 2, "true false")
	})
}

// Producers notify there when the server delivers that, and ask for no id of their transaction, which nothing would ever freeze.
func TestWakeYugabyteBranch(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"", "off", "on"} {
		t.Run("yb_enable_listen_notify "+setting, func(t *testing.T) {
			t.Parallel()
			e := (*env)(nil)
			if setting != "" {
				e = openYB(t)
			} else if onlyPostgreSQL(t, "it has the setting"); true {
				e = open(t, row)
			}
			if !target.yugabyte {
				mutate(t, e, "is_yugabyte", "version() like '%-YB-%'", "true")
			}
			listener, producer := e.session(t), e.sessionAs(t, e.super)
			if setting != "" {
				producer.exec("set yb_enable_listen_notify = " + setting)
			}
			listener.exec("listen lock_task")
			producer.exec("begin")
			producer.exec("select lock_internal.wake('lock_task', 'q')")
			answers(producer, true, "select pg_current_xact_id_if_assigned() is null")
			producer.exec("commit")
			producer.exec("select lock.create_task('a', 'q')")
			if got := notified(t, listener); got != (setting == "on") {
				t.Errorf("notified: %v", got)
			}
		})
	}
}

func TestKeyYugabyteBranchUnderTheHammer(t *testing.T) {
	t.Parallel()
	e := openYB(t)
	a := hammer(t, e, "lock", 4*time.Second, false)
	for _, violation := range a.violations {
		t.Error(violation)
	}
	if a.grants < 200 {
		t.Errorf("only %d grants", a.grants)
	}
	t.Logf("%d grants, %d violations", a.grants, len(a.violations))
}
