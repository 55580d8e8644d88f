package tests

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks/lockstest/server"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	tool(t, "goose")
	program := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.Command("go", "build", "-o", program, "./cmd/demo").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	demo := func(address string, arguments ...string) *exec.Cmd {
		cmd := exec.Command(program, arguments...)
		cmd.Env = append(os.Environ(), "LOCKS_DEMO_URL="+address)
		return cmd
	}

	t.Run("proves exclusion on an empty database, and leaves the schema lock only", func(t *testing.T) {
		t.Parallel()
		if target.disguised {
			t.Skip("it migrates by itself: so no write happens outside its transaction, and a second sharer of a new key waits")
		}
		e := openEmpty(t, advisory)
		out := demoOutput(t, demo(e.owner), 0)
		for _, line := range []string{
			"  writer 2  waits for  .* exclusive  behind ", `  demo +asks lock\.blocked: \d+ wait, and the root of it is `, "  reader 2  has  .* shared ", "  writer 1  is killed ",
			`-42 +\d+ visits: +[1-9]\d* pairs of shared ones overlapped, and 0 pairs`, `demo:customer:42 +\d+ visits: +[1-9]\d* pairs of shared ones overlapped, and 0 pairs`,
			"all or nothing, and is told false",
			"  A         takes 1 x create red", "  B         takes 2 x update blue", "  worker    calls the handler once, with 50 requests for blue",
			"  worker    gets 4 changes of Ada's orders",
			"  worker 2  has stopped, and finished what it was at", `  worker \d  try 4 of poison fails: no antidote`, `  demo      it is a dead letter after 4 tries: "no antidote"`,
			"  Nobody was inside together with an exclusive holder.", `  psql "\$LOCKS_DEMO_URL" -c 'begin' -c "select lock\.exclusive\('customer:42'\)"`,
		} {
			if !regexp.MustCompile(line).MatchString(out) {
				t.Errorf("no line %q in:\n%s", line, out)
			}
		}
		demoLeaves(t, e, "")
	})

	t.Run("leaves the keys that were known before", func(t *testing.T) {
		t.Parallel()
		e := open(t, row)
		e.session(t).exec("select lock.exclusive('demo:customer:42')")
		demoOutput(t, demo(e.owner), 0)
		demoLeaves(t, e, "demo:customer:42")
	})

	t.Run("fails when the locks do not exclude", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, "create or replace function lock.exclusive(key bigint) returns void language sql as ''")
		must(t, err)
		out := demoOutput(t, demo(e.owner), 1)
		if !strings.Contains(out, "the locks failed: -42 was held exclusively while somebody else had it") {
			t.Errorf("the failure is not named:\n%s", out)
		}
		demoLeaves(t, e, "")
	})

	t.Run("cleans up when interrupted", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		cmd := demo(e.owner)
		stdout, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		granted := false
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if !granted && strings.Contains(lines.Text(), "  has  ") {
				granted = true
				must(t, cmd.Process.Signal(os.Interrupt))
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !granted || !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Fatalf("granted: %v, then %v", granted, err)
		}
		demoLeaves(t, e, "")
	})

	t.Run("starts a server, and keeps it when asked", func(t *testing.T) {
		t.Parallel()
		if _, err := server.FindBinaries(); err != nil {
			t.Skip(err)
		}
		out := demoOutput(t, demo("", "-keep"), 0)
		address := regexp.MustCompile(`(?m)^The server is up: (\S+)$`).FindStringSubmatch(out)
		stop := regexp.MustCompile(`(?m)^To stop it .*\n  (.*; rm -r (\S+))$`).FindStringSubmatch(out)
		if address == nil || stop == nil {
			t.Fatalf("no address or no way to stop it:\n%s", out)
		}
		conn, err := pgx.Connect(ctx, address[1])
		must(t, err)
		_, err = conn.Exec(ctx, "select lock.exclusive('customer:42')")
		must(t, err)
		conn.Close(ctx)
		if out, err := exec.Command("sh", "-c", stop[1]).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", stop[1], err, out)
		}
		demoStopped(t, address[1], stop[2])
	})

	t.Run("starts a server, and stops it", func(t *testing.T) {
		t.Parallel()
		if _, err := server.FindBinaries(); err != nil {
			t.Skip(err)
		}
		out := demoOutput(t, demo(""), 0)
		address := regexp.MustCompile(`(?m)^The server, (\S+), is stopped now`).FindStringSubmatch(out)
		if address == nil {
			t.Fatalf("it is not said to be stopped:\n%s", out)
		}
		demoStopped(t, address[1], "")
	})

	t.Run("says in one sentence that there is no PostgreSQL", func(t *testing.T) {
		t.Parallel()
		// A mount namespace hides the binaries and Docker's socket, the address of no engine any other, and an empty PATH hides apt-get.
		hide := "for dir in /usr/lib/postgresql /usr/pgsql-*; do if test -d $dir; then mount -t tmpfs none $dir || exit 9; fi; done; " +
			"if test -S /var/run/docker.sock; then mount --bind /dev/null /var/run/docker.sock || exit 9; fi; "
		probe := exec.Command("unshare", "--mount", "--map-root-user", "sh", "-c", hide)
		if out, err := probe.CombinedOutput(); err != nil {
			t.Skipf("no mount namespaces here: %v: %s", err, bytes.TrimSpace(out))
		}
		cmd := exec.Command("unshare", "--mount", "--map-root-user", "sh", "-c", hide+`PATH=/nonexistent exec "$0"`, program)
		cmd.Env = append(os.Environ(), "LOCKS_DEMO_URL=", "LOCKS_PG_BIN=", "DOCKER_HOST=tcp://127.0.0.1:1")
		out := demoOutput(t, cmd, 1)
		if !regexp.MustCompile(`(?m)^demo: there is no PostgreSQL here: set LOCKS_DEMO_URL .*, or install .*, or start a Docker engine$`).MatchString(out) {
			t.Errorf("not one sentence:\n%s", out)
		}
	})
}

// demoOutput runs the demo to its end and returns all that it prints.
func demoOutput(t *testing.T, cmd *exec.Cmd, exitCode int) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != exitCode {
		t.Fatalf("%v, wanted exit code %d\n%s", err, exitCode, out)
	}
	return string(out)
}

// demoLeaves fails when the demo left anything in the database but the schema lock with these keys.
func demoLeaves(t *testing.T, e *env, names string) {
	t.Helper()
	eventually(t, "the demo's sessions end", func() bool {
		var sessions int
		must(t, e.admin.QueryRow(ctx, `select count(*) from pg_stat_activity where datname = current_database() and application_name like 'locks\_demo%'`).Scan(&sessions))
		return sessions == 0
	})
	var schemas, known, version string
	must(t, e.admin.QueryRow(ctx, `
		select coalesce((select string_agg(nspname, ', ') from pg_namespace where nspname !~ '^(pg_|information_schema$)' and nspname not in ('public', 'lock', 'lock_internal')), ''),
			coalesce((select string_agg(coalesce(name, key::text), ', ') from lock.locked_keys), ''),
			coalesce((select max(version_id)::text from public.lock_goose_version), '')`).Scan(&schemas, &known, &version))
	if schemas != "" || known != names || version == "" {
		t.Errorf("left over: schemas %q, keys %q (wanted %q), version %q", schemas, known, names, version)
	}
}

// demoStopped fails when a server of the demo still answers, or its directory is still there.
func demoStopped(t *testing.T, address, dir string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, address)
	if err == nil {
		conn.Close(ctx)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s: %v", address, err)
	}
	if _, err := os.Stat(dir); dir != "" && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}
