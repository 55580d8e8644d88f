//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks/lockstest/server"
)

func TestMain(m *testing.M) {
	Isolate()
	m.Run()
}

var ctx = context.Background()

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A cluster under test, with what its faults said.
type cluster struct {
	*Cluster
	mu   sync.Mutex
	said []string
}

func start(t *testing.T, opts Options) *cluster {
	t.Helper()
	c := &cluster{}
	opts.Logf = func(format string, a ...any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said = append(c.said, fmt.Sprintf(format, a...))
		t.Logf(format, a...)
	}
	opts.Database = "postgres"
	opts.Settings = append(opts.Settings, "fsync=off") // The machine itself does not fail.
	var err error
	c.Cluster, err = Start(ctx, t.TempDir(), opts)
	if errors.Is(err, server.ErrNoBinaries) || errors.Is(err, os.ErrNotExist) && opts.Standby != "" {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, c.exec(ctx, c.AdminURL(), "create table public.note (t text)"))
	return c
}

// saying is what the faults said since it was last asked.
func (c *cluster) saying() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := strings.Join(c.said, "\n")
	c.said = nil
	return text
}

func (c *cluster) fault(t *testing.T, name string) func(context.Context) error {
	t.Helper()
	for _, f := range c.Faults() {
		if f.Name == name {
			return f.Run
		}
	}
	why, known := c.Missing()[name]
	if !known {
		t.Fatalf("there is no fault %q", name)
	}
	t.Skip(name + ": " + why)
	return nil
}

// during runs a fault and, meanwhile, what observes it.
func (c *cluster) during(t *testing.T, name string, observe func()) {
	t.Helper()
	run := c.fault(t, name)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	observe()
	must(t, <-done)
}

func (c *cluster) client(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, c.URL())
	must(t, err)
	t.Cleanup(func() {
		closing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn.Close(closing)
	})
	return conn
}

func (c *cluster) ask(t *testing.T, sql string, args ...any) (answer string) {
	t.Helper()
	conn, err := c.connect(ctx, c.AdminURL())
	must(t, err)
	defer conn.Close(ctx)
	must(t, conn.QueryRow(ctx, sql, args...).Scan(&answer))
	return answer
}

// eventually waits for something that a fault brings about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func alive(conn *pgx.Conn) bool {
	trying, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := conn.Exec(trying, "select 1")
	return err == nil
}

// note writes a row as a client, within a time.
func note(conn *pgx.Conn, text string, within time.Duration) error {
	trying, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := conn.Exec(trying, "insert into note (t) values ($1)", pgx.QueryExecModeSimpleProtocol, text)
	return err
}

func (c *cluster) noted(t *testing.T, text string) bool {
	return c.ask(t, "select exists (select from public.note where t = $1)::text", text) == "true"
}

func TestBackendTerminated(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Standby: "sync", Silence: time.Second})
	t.Run("anywhere", func(t *testing.T) {
		conn := c.client(t)
		must(t, c.fault(t, "backend terminated")(ctx))
		if alive(conn) {
			t.Error("its connection lives")
		}
	})
	for name, sql := range map[string]string{
		"backend terminated in a lock":       "select pg_advisory_lock(1)",
		"backend terminated in a settlement": "select pg_sleep(60) as settle",
	} {
		t.Run(name, func(t *testing.T) {
			idle, busy := c.client(t), c.client(t)
			admin, err := c.connect(ctx, c.AdminURL())
			must(t, err)
			defer admin.Close(ctx)
			_, err = admin.Exec(ctx, "select pg_advisory_lock(1)")
			must(t, err)
			ended := make(chan error, 1)
			go func() {
				_, err := busy.Exec(ctx, sql)
				ended <- err
			}()
			must(t, c.fault(t, name)(ctx))
			if pg := (*pgconn.PgError)(nil); !errors.As(<-ended, &pg) || pg.Code != "57P01" {
				t.Error("it was not terminated")
			}
			if !alive(idle) {
				t.Error("another was terminated, too")
			}
		})
	}
	t.Run("backend terminated in a commit", func(t *testing.T) {
		idle, busy := c.client(t), c.client(t)
		pid, err := c.receiver(ctx)
		must(t, err)
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
		defer syscall.Kill(pid, syscall.SIGCONT)
		ended := make(chan error, 1)
		go func() { ended <- note(busy, "unknown", time.Minute) }()
		must(t, c.fault(t, "backend terminated in a commit")(ctx))
		if err := <-ended; err == nil {
			t.Error("the commit was answered")
		}
		must(t, syscall.Kill(pid, syscall.SIGCONT))
		if !c.noted(t, "unknown") {
			t.Error("what was committed locally is gone")
		}
		if !alive(idle) {
			t.Error("another was terminated, too")
		}
	})
}

func TestClientProcesses(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Stop: 500 * time.Millisecond})
	client := exec.Command("sleep", "1000")
	must(t, client.Start())
	defer client.Process.Kill()
	if c.Missing()["client killed"] == "" {
		t.Error("clients can be killed that nobody named")
	}
	c.SetClients(func() []int { return []int{client.Process.Pid} })
	state := func() string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", client.Process.Pid))
		_, rest, _ := strings.Cut(string(text), ") ")
		return rest[:min(1, len(rest))]
	}
	c.during(t, "client stopped", func() { eventually(t, "stopped", func() bool { return state() == "T" }) })
	eventually(t, "continued", func() bool { return state() == "S" })
	must(t, c.fault(t, "client killed")(ctx))
	client.Wait()
	if status := client.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Error(client.ProcessState)
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Silence: 2 * time.Second})
	t.Run("latency", func(t *testing.T) {
		conn := c.client(t)
		c.during(t, "latency", func() {
			eventually(t, "slow", func() bool {
				began := time.Now()
				return alive(conn) && time.Since(began) > 30*time.Millisecond
			})
		})
		if !alive(conn) {
			t.Error("the connection did not outlive it")
		}
	})
	for name, arrives := range map[string]bool{"black hole": false, "requests lost": false, "answers lost": true} {
		t.Run(name, func(t *testing.T) {
			var conns []*pgx.Conn
			for range 20 { // of which about half are hit
				conns = append(conns, c.client(t))
			}
			c.during(t, name, func() {
				silent, answered := 0, 0
				eventually(t, "a silent connection, and one that is not", func() bool {
					for i, conn := range conns {
						if conn.IsClosed() {
							continue
						}
						text := fmt.Sprintf("%s %d", name, i)
						err := note(conn, text, 100*time.Millisecond)
						switch {
						case err == nil:
							answered++
						case !pgconn.Timeout(err):
							t.Error(err)
						case name != "black hole" && c.noted(t, text) != arrives:
							t.Errorf("a write without an answer arrived: %v", !arrives)
						default:
							silent++
						}
						if silent > 0 && answered > 0 {
							return true
						}
					}
					return false
				})
			})
		})
	}
	t.Run("connections reset", func(t *testing.T) {
		var conns []*pgx.Conn
		for range 20 {
			conns = append(conns, c.client(t))
		}
		c.during(t, "connections reset", func() {
			eventually(t, "a connection lost", func() bool {
				for _, conn := range conns {
					if !alive(conn) {
						return true
					}
				}
				return false
			})
		})
	})
	t.Run("packets dropped", func(t *testing.T) {
		conn := c.client(t)
		c.during(t, "packets dropped", func() {
			eventually(t, "nothing is answered, and nothing fails", func() bool {
				began := time.Now()
				if err := note(conn, "late", time.Minute); err != nil {
					t.Fatal(err)
				}
				return time.Since(began) > 500*time.Millisecond
			})
		})
	})
}

func TestServerKilled(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Silence: time.Second})
	for name, times := range map[string]int{"server killed": 1, "server killed again and again": 4, "server's power cut": 1} {
		t.Run(name, func(t *testing.T) {
			c.saying()
			conn := c.client(t)
			must(t, note(conn, name, time.Minute))
			before := c.ask(t, "select pg_postmaster_start_time()::text")
			must(t, c.fault(t, name)(ctx))
			if c.ask(t, "select pg_postmaster_start_time()::text") == before {
				t.Error("it was not started again")
			}
			if n := strings.Count(c.saying(), "away for"); n != times {
				t.Errorf("killed %d times", n)
			}
			if alive(conn) {
				t.Error("a connection outlived it")
			}
			if !c.noted(t, name) {
				t.Error("what was committed is gone")
			}
		})
	}
	t.Run("disk full on WAL", func(t *testing.T) {
		c.saying()
		conn := c.client(t)
		must(t, note(conn, "full", time.Minute))
		must(t, c.fault(t, "disk full on WAL")(ctx))
		if alive(conn) {
			t.Error("a connection outlived it")
		}
		if log, err := os.ReadFile(c.primary().server.Dir + "/log"); err != nil || !strings.Contains(string(log), "No space left on device") {
			t.Errorf("there was space: %v", err)
		}
		if !c.noted(t, "full") {
			t.Error("what was committed is gone")
		}
		must(t, note(c.client(t), "room", time.Minute))
	})
	for name, direction := range map[string]time.Duration{"clock set forward": 1, "clock set back": -1} {
		t.Run(name, func(t *testing.T) {
			c.during(t, name, func() {
				eventually(t, name, func() bool {
					ahead, err := c.clockAhead(ctx)
					must(t, err)
					return ahead*direction > 20*time.Second
				})
			})
			if ahead, err := c.clockAhead(ctx); err != nil || ahead.Abs() > 5*time.Second {
				t.Errorf("the clock is still %v ahead: %v", ahead, err)
			}
		})
	}
}

func TestFailover(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Standby: "sync", Silence: 2 * time.Second})
	t.Run("standby frozen", func(t *testing.T) {
		conn := c.client(t)
		c.during(t, "standby frozen", func() {
			eventually(t, "a commit that waits", func() bool {
				began := time.Now()
				must(t, note(conn, "waits", time.Minute))
				return time.Since(began) > 200*time.Millisecond
			})
		})
	})
	for _, name := range []string{"failover", "failover", "host vanished, and failover"} {
		t.Run(name, func(t *testing.T) {
			run := c.fault(t, name)
			conn := c.client(t)
			before, stop := c.AdminURL(), make(chan struct{})
			written := make(chan []string)
			go func() { // acknowledged writes up to the crash
				var texts []string
				for i := 0; ; i++ {
					text := fmt.Sprint(before, name, i)
					if note(conn, text, 500*time.Millisecond) != nil {
						break
					}
					texts = append(texts, text)
				}
				<-stop
				written <- texts
			}()
			eventually(t, "a write", func() bool { return c.noted(t, fmt.Sprint(before, name, 3)) })
			must(t, run(ctx))
			close(stop)
			texts := <-written
			if len(texts) == 0 {
				t.Fatal("nothing was written")
			}
			if c.AdminURL() == before {
				t.Error("the primary is the same")
			}
			for _, text := range texts[len(texts)-1:] {
				if !c.noted(t, text) {
					t.Error("an acknowledged write is lost")
				}
			}
			if c.ask(t, "select string_agg(sync_state, ' ') from pg_stat_replication") != "sync" {
				t.Error("there is no new standby")
			}
			must(t, note(c.client(t), "again", time.Minute))
		})
	}
}

func TestAsynchronousFailover(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Standby: "async"})
	conn, run := c.client(t), c.fault(t, "failover")
	last := make(chan string, 1)
	go func() {
		text := ""
		for i := 0; ; i++ {
			next := fmt.Sprint("note ", i)
			if note(conn, next, time.Second) != nil {
				break
			}
			text = next
		}
		last <- text
	}()
	eventually(t, "notes", func() bool { return c.noted(t, "note 10") })
	must(t, run(ctx))
	if text := <-last; c.noted(t, text) || !c.noted(t, "note 10") {
		t.Errorf("the last acknowledged write, %q, is not lost, or too much is", text)
	}
}

func TestBeside(t *testing.T) {
	t.Parallel()
	c := start(t, Options{Silence: time.Second})
	if findGoose() == "" {
		t.Skip(c.Missing()["migrations down and up"])
	}
	if out, err := c.goose(ctx, c.AdminURL(), "up"); err != nil {
		t.Fatal(err, out)
	}
	client := c.client(t)
	for name, changes := range map[string]string{
		"vacuum full":          "select string_agg(relfilenode::text, ' ' order by oid) from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'r'",
		"reindex":              "select string_agg(relfilenode::text, ' ' order by oid) from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'i'",
		"reindex concurrently": "select string_agg(relfilenode::text, ' ' order by oid) from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'i'",
		"autovacuum":           "select (sum(autovacuum_count) > 0)::text from pg_stat_user_tables where schemaname = 'lock'",
	} {
		t.Run(name, func(t *testing.T) {
			before := c.ask(t, changes)
			run := c.fault(t, name)
			eventually(t, name, func() bool { // Autovacuum may need another second.
				for range 20 {
					_, err := client.Exec(ctx, "select lock.acquire_mutex('m'), lock.release_mutex('m')")
					must(t, err)
				}
				must(t, run(ctx))
				return c.ask(t, changes) != before
			})
			if n := c.ask(t, "select count(*)::text from pg_index where not indisvalid"); n != "0" {
				t.Errorf("%s invalid indexes are left", n)
			}
		})
	}
	t.Run("dump", func(t *testing.T) {
		c.saying()
		must(t, c.fault(t, "dump")(ctx))
		if said := c.saying(); !strings.HasPrefix(said, "pg_dump: ") {
			t.Error(said)
		}
	})
	t.Run("held snapshot", func(t *testing.T) {
		c.during(t, "held snapshot", func() {
			eventually(t, "an old snapshot", func() bool {
				return c.ask(t, "select exists (select from pg_stat_activity where application_name = $1 and backend_xid is not null and state_change < now() - interval '0.3 s')::text", myName) == "true"
			})
		})
	})
	t.Run("migrations down and up", func(t *testing.T) {
		version := "select max(version_id)::text from public.lock_goose_version"
		before := c.ask(t, version)
		c.saying()
		must(t, c.fault(t, "migrations down and up")(ctx))
		if said := c.saying(); !strings.Contains(said, "the next refused") || c.ask(t, version) != before {
			t.Error(said)
		}
	})
	t.Run("migrations down and up on a copy", func(t *testing.T) {
		must(t, c.fault(t, "migrations down and up on a copy")(ctx))
	})
}

// Every fault has been seen here or in the tests above, so none is new without a test.
func TestFaults(t *testing.T) {
	source, err := os.ReadFile("faults_test.go")
	must(t, err)
	for _, f := range (&Cluster{nodes: []*node{{server: &server.Server{}}}}).all() {
		if !strings.Contains(string(source), `"`+f.Name+`"`) && f.Name != "client killed" {
			t.Errorf("no test runs %q", f.Name)
		}
	}
}
