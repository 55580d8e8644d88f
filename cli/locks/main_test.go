package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seed4787c507/locks/lockstest/server"
)

var (
	testServer *server.Server
	databases  atomic.Int64
)

func TestMain(m *testing.M) { os.Exit(withServer(m)) }

func withServer(m *testing.M) int {
	for _, variable := range os.Environ() { // A test says which database it means.
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PG") || name == "DATABASE_URL" {
			os.Unsetenv(name)
		}
	}
	var err error
	if testServer, err = server.Start(context.Background(), server.Options{Durable: true}); err != nil {
		fmt.Println(err)
		return 1
	}
	defer testServer.Stop()
	return m.Run()
}

// empty is the address of a database with nothing in it.
func empty(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("cli_%d", databases.Add(1))
	execute(t, testServer.URL("postgres", "postgres"), "create database "+name)
	return testServer.URL("postgres", name)
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// call runs the program, and fails the test when it does not end with this code.
func call(t *testing.T, code int, args ...string) (out, problems string) {
	t.Helper()
	var o, p bytes.Buffer
	if got := run(t.Context(), args, &o, &p); got != code {
		t.Errorf("locks %s ends with %d, want %d\n%s%s", strings.Join(args, " "), got, code, &o, &p)
	}
	return o.String(), p.String()
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// From nothing to the first lock, and back.
func TestWalk(t *testing.T) {
	url := empty(t)
	out, _ := call(t, exitFound, "status", "-d", url)
	contains(t, out, "20261101000100_common.sql", "pending")
	out, _ = call(t, 0, "up", "--dry-run", "-d", url)
	contains(t, out, "20261101000100_common.sql", "up")
	contains(t, func() string { out, _ := call(t, exitFound, "status", "-d", url); return out }(), "pending")
	out, _ = call(t, 0, "up", "-d", url)
	contains(t, out, "20261101000100_common.sql")
	out, _ = call(t, 0, "up", "--database="+url)
	contains(t, out, "nothing to do")
	out, _ = call(t, 0, "status", "-d", url)
	contains(t, out, "applied")

	execute(t, url, "create role cli_app login")
	call(t, 0, "grant", "cli_app", "-d", url)
	call(t, 0, "grant", "--monitor", "cli_app", "-d", url)
	_, problems := call(t, exitFailed, "grant", "cli_nobody", "-d", url)
	contains(t, problems, "cli_nobody", "hint: ")
	call(t, exitUsage, "grant", "--monitor", "--operator", "cli_app", "-d", url)
	call(t, exitUsage, "grant", "-d", url)

	out, _ = call(t, 0, "who", "customer:42", "-d", url)
	contains(t, out, "nobody has this key")
	holder, err := pgx.Connect(t.Context(), url+"&application_name=shop-7")
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(context.Background())
	if _, err := holder.Exec(t.Context(), "begin; select lock.exclusive('customer:42'); select lock.create_task('a', 'mail')"); err != nil {
		t.Fatal(err)
	}
	out, _ = call(t, 0, "who", "customer:42", "-d", url)
	contains(t, out, "shop-7", "customer:42", fmt.Sprint(holder.PgConn().PID()))
	out, _ = call(t, 0, "who", "customer:42", "-d", url, "--json")
	var row map[string]any
	if err := json.Unmarshal([]byte(out), &row); err != nil || row["pid"] != float64(holder.PgConn().PID()) || row["granted"] != true {
		t.Errorf("%v: %s", err, out)
	}
	out, _ = call(t, 0, "blocked", "-d", url)
	contains(t, out, "nobody waits")
	if _, err := holder.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	out, _ = call(t, 0, "queues", "-d", url)
	contains(t, out, "mail", "ready")
	call(t, 0, "clean", "-d", url)
	t.Setenv("DATABASE_URL", url)
	call(t, 0, "queues")

	out, _ = call(t, 0, "check")
	contains(t, out, "notice", "idle_in_transaction_session_timeout")
	execute(t, url, "grant delete on lock.task to cli_app")
	out, _ = call(t, exitFound, "check")
	contains(t, out, "cli_app")

	_, problems = call(t, exitFailed, "down", "--all")
	contains(t, problems, "would drop what is needed")
	out, _ = call(t, 0, "down", "--dry-run", "--json")
	contains(t, out, `"direction":"down"`)
	call(t, 0, "down", "--all", "--drop-everything")
	out, _ = call(t, 0, "down")
	contains(t, out, "nothing to do")
	call(t, exitFound, "status")
}

// What is wrong is said, and told by the code.
func TestMistakes(t *testing.T) {
	_, problems := call(t, exitUsage, "upp")
	contains(t, problems, `unknown command "upp"`, "locks --help")
	_, problems = call(t, exitUsage, "up", "--now")
	contains(t, problems, "--now")
	call(t, exitUsage, "up", "now")
	call(t, exitUsage, "queues", "-d", "postgres://%zz")
	_, problems = call(t, exitFailed, "queues", "-d", "postgres://127.0.0.1:1/x?sslmode=disable")
	contains(t, problems, "127.0.0.1")
	_, problems = call(t, exitFailed, "queues", "-d", empty(t))
	contains(t, problems, "lock.queue_depth")
	out, _ := call(t, 0, "--help")
	contains(t, out, "up", "console", "--json")
}

// dump is the schema of a database as pg_dump writes it.
func dump(t *testing.T, url string) string {
	t.Helper()
	dir, err := server.FindBinaries()
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(dir, "pg_dump")
	if _, err := os.Stat(tool); err != nil {
		t.Skip("no pg_dump beside the server's programs")
	}
	text, err := exec.CommandContext(t.Context(), tool, "--schema-only", "--dbname", url).Output()
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, `\restrict`) && !strings.HasPrefix(line, `\unrestrict`) { // random, each time
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// file runs a file as a person does, by psql.
func file(t *testing.T, url, text string) (string, error) {
	t.Helper()
	dir, err := server.FindBinaries()
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(dir, "psql")
	if _, err := os.Stat(tool); err != nil {
		t.Skip("no psql beside the server's programs")
	}
	name := filepath.Join(t.TempDir(), "locks.sql")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tool, "--quiet", "-v", "ON_ERROR_STOP=1", "-1", "-f", name, url).CombinedOutput()
	return string(out), err
}

// The file makes what goose makes, and goose goes on from there.
func TestOneFile(t *testing.T) {
	whole, _ := call(t, 0, "sql")
	byGoose, byFile := empty(t), empty(t)
	call(t, 0, "up", "-d", byGoose)
	if out, err := file(t, byFile, whole); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if one, other := dump(t, byGoose), dump(t, byFile); one != other {
		t.Error("the file makes another schema than goose does")
	}
	out, _ := call(t, 0, "up", "-d", byFile)
	contains(t, out, "nothing to do")
	// Once more it changes nothing, and says why.
	before := dump(t, byFile)
	if out, err := file(t, byFile, whole); err == nil || !strings.Contains(out, "the schema lock is here already") {
		t.Errorf("%v: %s", err, out)
	}
	if dump(t, byFile) != before {
		t.Error("a second run changed something")
	}
	// An older file: goose, and this program, go on from its version.
	at := strings.Index(whole, "\n-- 20261101000700_lease.sql\n")
	if at < 0 {
		t.Fatal("there is no migration of leases")
	}
	for name, up := range map[string]func(url string){
		"locks": func(url string) { call(t, 0, "up", "-d", url) },
		"goose": func(url string) {
			config, err := pgx.ParseConfig(url)
			if err != nil {
				t.Fatal(err)
			}
			handle := stdlib.OpenDB(*config)
			defer handle.Close()
			provider, err := newProvider(handle)
			if err != nil {
				t.Fatal(err)
			}
			if results, err := provider.Up(t.Context()); err != nil || len(results) == 0 {
				t.Errorf("%d migrations, %v", len(results), err)
			}
		},
	} {
		older := empty(t)
		if out, err := file(t, older, whole[:at]); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		up(older)
		if dump(t, older) != dump(t, byGoose) {
			t.Errorf("%s does not go on from an older file", name)
		}
	}
	// After a whole way down it installs again.
	call(t, 0, "down", "--all", "-d", byFile)
	if out, err := file(t, byFile, whole); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
