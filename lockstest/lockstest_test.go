//go:build unix

package lockstest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/lockstest/server"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	if _, err := server.FindBinaries(); err != nil && os.Getenv("LOCKSTEST_BINARY") == "" {
		fmt.Println("lockstest: all tests skipped:", err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func get[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (value T) {
	t.Helper()
	must(t, pool.QueryRow(ctx, sql, args...).Scan(&value))
	return value
}

// A failing test is what a helper can fail without failing the test of the helper.
type failing struct {
	testing.TB
	text     string
	cleanups []func()
}

func (f *failing) Helper()           {}
func (f *failing) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *failing) Errorf(format string, args ...any) {
	f.text += fmt.Sprintf(format, args...)
}
func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(f)
}

// fails runs a test that must fail with a text.
func fails(t *testing.T, text string, run func(t testing.TB)) {
	t.Helper()
	f := &failing{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != f {
				panic(r)
			}
		}()
		run(f)
	}()
	for n := range f.cleanups {
		f.cleanups[len(f.cleanups)-1-n]()
	}
	if !strings.Contains(f.text, text) {
		t.Errorf("the test failed with %q, and not with %q", f.text, text)
	}
}

// other is a server that Pool does not know of.
var other = sync.OnceValues(func() (*server.Server, error) { return server.Start(ctx, server.Options{}) })

var runs atomic.Int64

// fresh is a name that no other run of a test has: they share the other server.
func fresh(name string) string { return fmt.Sprint(name, "_", runs.Add(1)) }

// creator is the address of another server for a new role that may create databases and nothing
// else.
func creator(t *testing.T, name string) string {
	t.Helper()
	s, err := other()
	must(t, err)
	role := fresh(name)
	conn := connect(t, s.URL("postgres", "postgres"))
	_, err = conn.Exec(ctx, "create role "+role+" login createdb")
	must(t, err)
	return s.URL(role, "postgres")
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, url)
	must(t, err)
	t.Cleanup(func() { conn.Close(ctx) })
	return conn
}

func databases(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, _ := conn.Query(ctx, "select datname from pg_database where not datistemplate and datname <> 'postgres' and pg_get_userbyid(datdba) = current_user order by 1")
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	return names
}

// TestBinary is a test binary of its own, which has a pool, says its address, and waits to be
// killed, or to be told to end.
func TestBinary(t *testing.T) {
	if os.Getenv("LOCKSTEST_BINARY") == "" {
		t.Skip("this is for the other tests to start")
	}
	pool := Pool(t)
	// What ends the server must not be taken for garbage.
	collected := make(chan bool)
	runtime.SetFinalizer(new([16]byte), func(*[16]byte) { close(collected) })
	runtime.GC()
	<-collected
	runtime.GC()
	fmt.Printf("pool %s\n", pool.Config().ConnString())
	io.Copy(io.Discard, os.Stdin)
}

type binary struct {
	*exec.Cmd
	end io.Closer
	url string
	out string // when it has no pool
}

func start(t *testing.T, env ...string) *binary {
	t.Helper()
	b := &binary{Cmd: exec.Command(os.Args[0], "-test.run=^TestBinary$")}
	b.Env = append(append(os.Environ(), "LOCKSTEST_BINARY=1", "LOCKSTEST_URL=", "LOCKSTEST_IMAGE="), env...)
	in, err := b.StdinPipe()
	must(t, err)
	out, err := b.StdoutPipe()
	must(t, err)
	must(t, b.Start())
	t.Cleanup(func() {
		b.Process.Kill()
		b.Wait()
	})
	b.end = in
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "pool "); ok {
			b.url = url
			return b
		}
		b.out += lines.Text() + "\n"
	}
	return b
}

func TestPool(t *testing.T) {
	t.Parallel()
	t.Run("gives every test its own database, and takes it away", func(t *testing.T) {
		t.Parallel()
		var first, second string
		t.Run("test", func(t *testing.T) {
			one, two := Pool(t), Pool(t)
			first, second = get[string](t, one, "select current_database()"), get[string](t, two, "select current_database()")
			if !get[bool](t, one, "select lock.create_mutex('m')") || !get[bool](t, two, "select lock.create_mutex('m')") {
				t.Error("the two have one schema")
			}
			if url := one.Config().ConnString(); get[string](t, one, "select current_database()") != connect(t, url).Config().Database {
				t.Errorf("%s is the address of something else", url)
			}
		})
		if n := get[int](t, Pool(t), "select count(*) from pg_database where datname = any ($1)", []string{first, second}); n > 0 || first == second {
			t.Errorf("%d of the databases %s and %s are left", n, first, second)
		}
	})
	t.Run("as a role that may create databases, from many binaries at once", func(t *testing.T) {
		t.Parallel()
		url := creator(t, "many")
		binaries := make([]*binary, 4)
		var group sync.WaitGroup
		for n := range binaries {
			group.Go(func() { binaries[n] = start(t, "LOCKSTEST_URL="+url) })
		}
		group.Wait()
		conn := connect(t, url)
		if names := databases(t, conn); len(names) != 5 {
			t.Errorf("the server has %q, and not 4 databases and their template", names)
		}
		for _, b := range binaries {
			b.end.Close()
			if err := b.Wait(); err != nil {
				t.Errorf("%v: %s", err, b.out)
			}
		}
		if names := databases(t, conn); len(names) != 1 {
			t.Errorf("%q are left", names)
		}
	})
	t.Run("drops what a killed binary left behind, and nothing else", func(t *testing.T) {
		t.Parallel()
		url := creator(t, "killed")
		killed := start(t, "LOCKSTEST_URL="+url)
		must(t, killed.Process.Kill())
		killed.Wait()
		conn := connect(t, url)
		eventually(t, "the server has noticed", func() bool {
			var n int
			must(t, conn.QueryRow(ctx, "select count(*) from pg_stat_activity where usename = current_user").Scan(&n))
			return n == 1
		})
		alive, next := start(t, "LOCKSTEST_URL="+url), start(t, "LOCKSTEST_URL="+url)
		names := strings.Join(databases(t, conn), " ")
		for _, b := range []*binary{killed, alive, next} {
			config, err := pgx.ParseConfig(b.url)
			must(t, err)
			if strings.Contains(names, config.Database) != (b != killed) {
				t.Errorf("%s: of %q", config.Database, names)
			}
		}
	})
	t.Run("says what is missing", func(t *testing.T) {
		t.Parallel()
		for env, text := range map[string]string{
			"LOCKS_PG_BIN=/nowhere":                          "LOCKS_PG_BIN",
			"LOCKSTEST_URL=postgres://127.0.0.1:1/x":         "LOCKSTEST_URL",
			"LOCKSTEST_IMAGE=x\x00PATH=" + t.TempDir():       "docker",
			"LOCKSTEST_URL=postgres://127.0.0.1:1/x?bad=%zz": "LOCKSTEST_URL",
		} {
			if b := start(t, strings.Split(env, "\x00")...); !strings.Contains(b.out, text) {
				t.Errorf("%s: %s", env, b.out)
			}
		}
		for _, text := range []string{"LOCKSTEST_URL", "LOCKSTEST_IMAGE", "LOCKS_PG_BIN"} {
			if !strings.Contains(errNone.Error(), text) {
				t.Errorf("%v: no %s", errNone, text)
			}
		}
	})
}

// Not parallel: they change how patient the package is.
func TestImpatience(t *testing.T) {
	patience = time.Second
	defer func() { patience = 10 * time.Second }()
	t.Run("a connection that is not given back fails the test", func(t *testing.T) {
		var conn *pgxpool.Conn
		fails(t, "still in use", func(t testing.TB) {
			var err error
			conn, err = Pool(t).Acquire(ctx)
			must(t, err)
		})
		conn.Release()
	})
	t.Run("a row that another transaction has fails the test", func(t *testing.T) {
		pool := Pool(t)
		get[bool](t, pool, "select lock.create_timeout('t', '1 hour')")
		tx, err := pool.Begin(ctx)
		must(t, err)
		defer tx.Rollback(ctx)
		_, err = tx.Exec(ctx, "select lock.acquire_timeout('t')")
		must(t, err)
		fails(t, "an open transaction", func(t testing.TB) { Rewind(t, pool, Timeout("t"), time.Hour) })
	})
}

func TestServerEnds(t *testing.T) {
	t.Parallel()
	gone := func(t *testing.T, url string) {
		t.Helper()
		config, err := pgx.ParseConfig(url)
		must(t, err)
		eventually(t, "the server is gone", func() bool {
			conn, err := net.Dial("tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
	}
	for name, end := range map[string]func(b *binary) error{
		"with a test binary that ends":      func(b *binary) error { return b.end.Close() },
		"with a test binary that is killed": func(b *binary) error { return b.Process.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			temporary, err := os.MkdirTemp("", "lockstest-") // t.TempDir() lets no other user in
			must(t, err)
			defer os.RemoveAll(temporary)
			must(t, os.Chmod(temporary, 0o777))
			b := start(t, "TMPDIR="+temporary)
			if files, _ := os.ReadDir(temporary); len(files) == 0 {
				t.Fatalf("there is no server in %s: %s", temporary, b.out)
			}
			must(t, end(b))
			gone(t, b.url)
			eventually(t, "its directory is gone", func() bool {
				files, err := os.ReadDir(temporary)
				return err == nil && len(files) == 0
			})
		})
	}
	t.Run("while it is being made", func(t *testing.T) {
		t.Parallel()
		binaries, err := server.FindBinaries()
		must(t, err)
		temporary, err := os.MkdirTemp("", "lockstest-")
		must(t, err)
		defer os.RemoveAll(temporary)
		must(t, os.Chmod(temporary, 0o777))
		// Another initdb waits until it is read, and then for ever.
		must(t, os.Mkdir(filepath.Join(temporary, "bin"), 0o755))
		must(t, os.Mkdir(filepath.Join(temporary, "tmp"), 0o777))
		must(t, os.Chmod(filepath.Join(temporary, "tmp"), 0o777))
		must(t, os.Symlink(filepath.Join(binaries, "postgres"), filepath.Join(temporary, "bin", "postgres")))
		must(t, os.WriteFile(filepath.Join(temporary, "bin", "initdb"), []byte("#!/bin/sh\necho $$ >pid; exec sleep 1000\n"), 0o755))
		b := exec.Command(os.Args[0], "-test.run=^TestBinary$")
		b.Env = append(os.Environ(), "LOCKSTEST_BINARY=1", "LOCKSTEST_URL=", "LOCKSTEST_IMAGE=", "TMPDIR="+filepath.Join(temporary, "tmp"), "LOCKS_PG_BIN="+filepath.Join(temporary, "bin"))
		must(t, b.Start())
		eventually(t, "initdb is at work", func() bool {
			pids, _ := filepath.Glob(filepath.Join(temporary, "tmp", "*", "pid"))
			return len(pids) == 1
		})
		must(t, b.Process.Kill())
		b.Wait()
		eventually(t, "its directory is gone", func() bool {
			files, err := os.ReadDir(filepath.Join(temporary, "tmp"))
			return err == nil && len(files) == 0
		})
	})
	t.Run("a container, too", func(t *testing.T) {
		t.Parallel()
		s, err := other()
		must(t, err)
		// A stand-in for docker, whose container is the other server.
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "docker"), []byte(fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s/log\n[ $1 != port ] || echo 127.0.0.1:%d\n", dir, s.Port)), 0o755))
		b := start(t, "LOCKSTEST_IMAGE=postgres:0", "PATH="+dir+":"+os.Getenv("PATH"))
		if b.url == "" {
			t.Fatal(b.out)
		}
		// A moment, in which a wrong removal would come.
		_, err = connect(t, b.url).Exec(ctx, "select pg_sleep(0.1)")
		must(t, err)
		if log, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || strings.Contains(string(log), "\nrm ") {
			t.Fatalf("the container is removed too early: %v, %s", err, log)
		}
		must(t, b.Process.Kill())
		eventually(t, "the container is removed", func() bool {
			log, err := os.ReadFile(filepath.Join(dir, "log"))
			must(t, err)
			_, rest, _ := strings.Cut(string(log), "--name ")
			name, _, _ := strings.Cut(rest, " ")
			return name != "" && strings.Contains(string(log), "\nrm --force --volumes "+name+"\n")
		})
	})
}

func TestTemplate(t *testing.T) {
	t.Parallel()
	s, err := server.Start(ctx, server.Options{}) // its names are fixed
	must(t, err)
	t.Cleanup(func() { s.Stop() })
	url := s.URL("postgres", "postgres")
	create := func(conn *pgx.Conn, name string) error {
		_, err := conn.Exec(ctx, "create database "+name)
		return err
	}
	t.Run("is made once", func(t *testing.T) {
		t.Parallel()
		first, second, watch := connect(t, url), connect(t, url), connect(t, url)
		gate, entered := make(chan bool), make(chan bool)
		done := []chan error{make(chan error, 1), make(chan error, 1)}
		go func() {
			done[0] <- server.Template(ctx, first, "template_once", "scratch_1", func() error {
				close(entered)
				<-gate
				return create(first, "scratch_1")
			})
		}()
		<-entered
		go func() {
			done[1] <- server.Template(ctx, second, "template_once", "scratch_2", func() error {
				return errors.New("it is made a second time")
			})
		}()
		eventually(t, "the second waits for the first", func() bool {
			select {
			case err := <-done[1]:
				t.Fatalf("it did not wait: %v", err)
			default:
			}
			var waits bool
			must(t, watch.QueryRow(ctx, "select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')", second.PgConn().PID()).Scan(&waits))
			return waits
		})
		close(gate)
		for _, err := range done {
			must(t, <-err)
		}
	})
	t.Run("may be made by another meanwhile", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, url)
		must(t, server.Template(ctx, conn, "template_other", "scratch_3", func() error {
			return errors.Join(create(conn, "scratch_3"), create(conn, "template_other"))
		}))
		if names := strings.Join(databases(t, conn), " "); strings.Contains(names, "scratch_3") || !strings.Contains(names, "template_other") {
			t.Errorf("the databases are %s", names)
		}
	})
	t.Run("is never half filled", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, url)
		err := server.Template(ctx, conn, "template_half", "scratch_4", func() error {
			return errors.Join(create(conn, "scratch_4"), errors.New("the rest"))
		})
		if names := strings.Join(databases(t, conn), " "); err == nil || strings.Contains(names, "template_half") {
			t.Errorf("%v, and the databases are %s", err, names)
		}
	})
}
