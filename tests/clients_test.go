package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed4787c507/locks/lockstest/server"
)

// A client is one of clients/, copied into a directory beside the programs of testdata/clients.
type client struct {
	name, ending string
	// run starts a program there; why says what is missing, if anything.
	run func(dir, program string, arguments ...string) *exec.Cmd
	why func() error
}

func clients() []client {
	const python = "/usr/bin/python3"
	needsPython := func() error {
		if out, err := exec.Command(python, "-c", "import psycopg").CombinedOutput(); err != nil {
			return fmt.Errorf("python3-psycopg: %w: %s", err, out)
		}
		return nil
	}
	runPython := func(more ...string) func(dir, program string, arguments ...string) *exec.Cmd {
		return func(dir, program string, arguments ...string) *exec.Cmd {
			return exec.Command(python, slices.Concat([]string{"-u", filepath.Join(dir, program+".py")}, arguments, more)...)
		}
	}
	return []client{
		{
			"mjs", ".mjs",
			func(dir, program string, arguments ...string) *exec.Cmd {
				return exec.Command("node", append([]string{filepath.Join(dir, program+".mjs")}, arguments...)...)
			},
			func() error {
				_, err := nodeWorker() // installs pg
				return err
			},
		},
		{"py", ".py", runPython(), needsPython},
		{"py, async", ".py", runPython("async"), needsPython},
	}
}

// install copies the client as its user would.
func (c client) install(t *testing.T) (dir string) {
	t.Helper()
	if err := c.why(); err != nil {
		t.Skip(err)
	}
	dir = t.TempDir()
	for _, from := range []string{"clients", "tests/testdata/clients"} {
		files, err := filepath.Glob(filepath.Join(root(t), from, "*"+c.ending))
		must(t, err)
		if len(files) == 0 {
			t.Fatalf("%s has no *%s", from, c.ending)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600))
		}
	}
	must(t, os.Symlink(filepath.Join(root(t), ".bin", "node", "node_modules"), filepath.Join(dir, "node_modules")))
	return dir
}

// How a worker of testdata/clients is started. Times are in milliseconds.
type clientOptions struct {
	Concurrency int    `json:"concurrency,omitempty"`
	Grace       int    `json:"grace,omitempty"`
	Call        int    `json:"call,omitempty"`  // at most
	Poll        int    `json:"poll,omitempty"`  // where notifications arrive
	Blind       int    `json:"blind,omitempty"` // where they do not
	Shortest    int    `json:"shortest,omitempty"`
	Listen      string `json:"listen,omitempty"`
	NoExtend    bool   `json:"no_extend,omitempty"`
}

// hour is a poll that no test lives to see.
const hour = 3_600_000

func (c client) worker(t *testing.T, dir, address string, options clientOptions) *program {
	t.Helper()
	text, err := json.Marshal(options)
	must(t, err)
	return launch(t, c.run(dir, "worker", address, string(text)))
}

// lines are those of what a program said that match.
func (p *program) lines(pattern string) []string {
	return regexp.MustCompile("(?m)^"+pattern+"$").FindAllString(p.said(), -1)
}

func (p *program) says(pattern string) {
	p.t.Helper()
	eventually(p.t, "it says "+pattern, func() bool { return len(p.lines(pattern)) > 0 })
}

// stops ends a worker as an operator does.
func (p *program) stops() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	p.succeeds()
	if !strings.HasSuffix(p.said(), "over\n") {
		p.t.Errorf("it ended with %s", p.said())
	}
}

// clientIdles waits until so many workers sleep until they are told.
func clientIdles(t *testing.T, e *env, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " workers idle"), func() bool {
		var idle int
		must(t, e.admin.QueryRow(ctx, "select count(*) from lock.idle_worker where until > clock_timestamp() + interval '10 minutes' and horizon is not null").Scan(&idle))
		return idle == n
	})
}

func clientTask(t *testing.T, e *env, id, timeout, payload string) {
	t.Helper()
	_, err := e.admin.Exec(ctx, "select lock.create_task($1, timeout => $2::interval, payload => $3::jsonb)", id, timeout, payload)
	must(t, err)
}

// clientState is what became of a task: status, attempt and tries.
func clientState(t *testing.T, e *env, id string) (state string) {
	t.Helper()
	must(t, e.admin.QueryRow(ctx, "select concat_ws(' ', status, attempt, tries) from lock.task where id = $1", id).Scan(&state))
	return state
}

func clientBecomes(t *testing.T, e *env, id, state string) {
	t.Helper()
	eventually(t, id+" is "+state, func() bool { return clientState(t, e, id) == state })
}

// clientSessions ends all sessions of a database but those that look.
func clientSessions(t *testing.T, e *env) (ended int) {
	t.Helper()
	must(t, e.admin.QueryRow(ctx, `select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
		where datname = current_database() and usename = 'locks_app'`).Scan(&ended))
	return ended
}

var clientCases = []struct {
	name string
	run  func(t *testing.T, c client, dir string)
}{
	{"each task is done once", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		var workers []*program
		for range 2 {
			workers = append(workers, c.worker(t, dir, e.url, clientOptions{Concurrency: 2, Poll: hour}))
		}
		clientIdles(t, e, 2)
		for n := range 10 {
			clientTask(t, e, fmt.Sprint("task", n), "6 s", `{"ms": 2000}`)
		}
		var said []string
		for n := range 10 {
			clientBecomes(t, e, fmt.Sprint("task", n), "done 1 0")
		}
		for _, worker := range workers {
			worker.stops()
			said = append(said, worker.lines("began .*")...)
			if len(worker.lines("began .*")) != len(worker.lines("settled .* done")) {
				t.Errorf("it was not told of each: %s", worker.said())
			}
		}
		slices.Sort(said)
		if len(said) != 10 || len(slices.Compact(said)) != 10 {
			t.Errorf("10 tasks: %v", said)
		}
		answers(e.sessionAs(t, e.super), 0, "select count(*) from lock.idle_worker")
	}},
	{"it is woken, and does not poll", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		worker := c.worker(t, dir, e.url, clientOptions{Poll: hour})
		for n := range 3 {
			clientIdles(t, e, 1)
			clientTask(t, e, fmt.Sprint("task", n), "1 minute", "{}")
			clientBecomes(t, e, fmt.Sprint("task", n), "done 1 0")
		}
		worker.stops()
	}},
	{"its sessions are killed", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		worker := c.worker(t, dir, e.url, clientOptions{Poll: hour})
		clientTask(t, e, "works", "3 s", `{"ms": 4000}`)
		worker.says("began works 1")
		if clientSessions(t, e) == 0 {
			t.Error("there was none")
		}
		clientBecomes(t, e, "works", "done 1 0")
		clientIdles(t, e, 1)
		clientSessions(t, e)
		clientTask(t, e, "next", "3 s", "{}")
		clientBecomes(t, e, "next", "done 1 0")
		worker.stops()
	}},
	{"the server restarts", func(t *testing.T, c client, dir string) {
		if target.own == nil {
			t.Skip("needs a server of its own")
		}
		s, err := server.Start(ctx, server.Options{Durable: true})
		must(t, err)
		defer s.Stop()
		must(t, migrate(s.URL("postgres", "postgres"), 0))
		e := &env{url: s.URL("postgres", "postgres")}
		e.admin = openPool(t, e.url, 2)
		defer e.admin.Close()
		worker := c.worker(t, dir, e.url, clientOptions{Poll: hour})
		clientTask(t, e, "works", "1 minute", `{"ms": 2000}`)
		worker.says("began works 1")
		must(t, s.Kill())
		worker.says("ended works 1")
		must(t, s.Restart(ctx))
		e.admin.Reset()
		clientBecomes(t, e, "works", "done 1 0")
		clientIdles(t, e, 1)
		clientTask(t, e, "next", "1 minute", "{}")
		clientBecomes(t, e, "next", "done 1 0")
		worker.stops()
	}},
	{"the network swallows all", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		b := newBlackHole(t, e.url)
		worker := c.worker(t, dir, b.address, clientOptions{Poll: 2000, Call: 1000})
		clientTask(t, e, "works", "4 s", `{"ms": 6000}`)
		worker.says("began works 1")
		b.swallow(false)
		clientBecomes(t, e, "works", "done 1 0")
		b.swallow(false)
		clientTask(t, e, "next", "1 minute", "{}")
		clientBecomes(t, e, "next", "done 1 0")
		worker.stops()
	}},
	{"a slow handler keeps its task", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		worker := c.worker(t, dir, e.url, clientOptions{Poll: hour, Concurrency: 2})
		clientTask(t, e, "slow", "900 ms", `{"ms": 3000}`)
		clientBecomes(t, e, "slow", "done 1 0")
		worker.stops()
	}},
	{"a task that is lost is told", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		worker := c.worker(t, dir, e.url, clientOptions{NoExtend: true, Poll: hour, Concurrency: 2})
		clientTask(t, e, "deaf", "500 ms", `{"ms": 1500, "deaf": true, "first": true}`)
		worker.says("settled deaf 1 stale")
		clientBecomes(t, e, "deaf", "done 2 0")
		clientTask(t, e, "hears", "500 ms", `{"ms": 3600000, "first": true}`)
		worker.says("settled hears 1 (retry|stale)")
		clientBecomes(t, e, "hears", "done 2 0")
		worker.stops()
	}},
	{"poison", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		worker := c.worker(t, dir, e.url, clientOptions{Poll: hour, Shortest: 10})
		_, err := e.admin.Exec(ctx, `select lock.create_task('fails', retries_left => 3, payload => '{"fail": "no\tpaper"}')`)
		must(t, err)
		clientTask(t, e, "permanent", "1 minute", `{"permanent": "never"}`)
		clientTask(t, e, "snoozes", "1 minute", `{"snooze": 20}`)
		clientBecomes(t, e, "snoozes", "done 2 0")
		worker.says("settled fails 3 dead")
		worker.says("settled permanent 1 dead")
		worker.says("settled snoozes 1 snoozed")
		if retries := worker.lines("settled fails . retry"); len(retries) != 2 {
			t.Errorf("%v", retries)
		}
		answers(e.session(t), "fails no\tpaper, permanent never", "select string_agg(id || ' ' || message, ', ' order by id) from lock.dead_letter where queue_id = 'default'")
		worker.stops()
	}},
	{"it is stopped", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		worker := c.worker(t, dir, e.url, clientOptions{Poll: hour, Grace: 3000, Concurrency: 2})
		clientTask(t, e, "ends", "1 minute", `{"ms": 1000}`)
		clientTask(t, e, "hears", "1 minute", `{"ms": 3600000}`)
		worker.says("began ends 1")
		worker.says("began hears 1")
		clientTask(t, e, "waits", "1 minute", `{}`)
		worker.stops()
		for id, want := range map[string]string{"ends": "done 1 0", "hears": "new 1 0", "waits": "new 0 0"} {
			if got := clientState(t, e, id); got != want {
				t.Errorf("%s is %s, and not %s", id, got, want)
			}
		}
		if worker.lines("settled hears 1 returned") == nil {
			t.Error("it was not told")
		}
	}},
	{"it cannot settle", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		b := newBlackHole(t, e.url)
		worker := c.worker(t, dir, b.address, clientOptions{Poll: hour, Grace: 2000, Call: 500})
		clientTask(t, e, "works", "1 minute", `{"ms": 1000}`)
		worker.says("began works 1")
		b.swallow(true)
		worker.signal(syscall.SIGTERM)
		worker.says("over Unsettled")
		worker.says("settled works 1 unknown")
		worker.ended()
	}},
	{"it is behind a pooler", func(t *testing.T, c client, dir string) {
		e := open(t, advisory)
		pooled := strings.Replace(startPgbouncer(t, e.url), "default_query_exec_mode=exec&", "", 1) // a word of pgx
		// Nothing arrives, which it finds out by itself.
		worker := c.worker(t, dir, pooled, clientOptions{Poll: hour, Blind: 200})
		clientTask(t, e, "first", "1 minute", "{}")
		clientBecomes(t, e, "first", "done 1 0")
		for n := range 5 {
			clientTask(t, e, fmt.Sprint("polled", n), "1 minute", "{}")
			clientBecomes(t, e, fmt.Sprint("polled", n), "done 1 0")
		}
		worker.stops()
		worker = c.worker(t, dir, pooled, clientOptions{Poll: hour, Listen: e.app})
		clientIdles(t, e, 1)
		clientTask(t, e, "told", "1 minute", "{}")
		clientBecomes(t, e, "told", "done 1 0")
		worker.stops()
	}},
}

// TestClients works with the workers of clients/, and lets go wrong what can.
func TestClients(t *testing.T) {
	t.Parallel()
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := c.install(t)
			for _, fault := range clientCases {
				t.Run(fault.name, func(t *testing.T) {
					t.Parallel()
					onlyPostgreSQL(t, "the workers are told, and sessions are counted")
					fault.run(t, c, dir)
				})
			}
		})
	}
}

// TestClientHelpers locks keys, and holds, hands on and loses leases.
func TestClientHelpers(t *testing.T) {
	t.Parallel()
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := c.install(t)
			e := opened(t, "create table counter (n integer not null); insert into counter values (0)")
			want := "Held\nboth\nHeld\nkept false\nnext\nhanded on\nLK001\ntrue false\n"
			if said := launch(t, c.run(dir, "helpers", e.url)).succeeds(); said != want {
				t.Errorf("it said %q", said)
			}
			answers(e.session(t), 20, "select n from counter")
			answers(e.session(t), 0, "select count(*) from lock.lease_holder")
		})
	}
}

// TestClientTypes checks clients/locks.d.mts, and a program that uses it, with TypeScript.
func TestClientTypes(t *testing.T) {
	t.Parallel()
	dir := clients()[0].install(t)
	tools, err := filepath.Abs("../.bin/typescript")
	must(t, err)
	if _, err := os.Stat(filepath.Join(tools, "node_modules", "typescript")); err != nil {
		installing, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		install := exec.CommandContext(installing, "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", tools, "typescript@5", "@types/node@20", "@types/pg@8")
		if out, err := install.CombinedOutput(); err != nil {
			t.Skipf("npm install typescript: %v: %s", err, out)
		}
	}
	must(t, os.Remove(filepath.Join(dir, "node_modules")))
	must(t, os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")))
	text, err := os.ReadFile(filepath.Join(root(t), "clients", "locks.d.mts"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "locks.d.mts"), text, 0o600))
	check := func(program string) (string, error) {
		must(t, os.WriteFile(filepath.Join(dir, "program.mts"), []byte(program), 0o600))
		cmd := exec.Command("node", filepath.Join(tools, "node_modules", "typescript", "bin", "tsc"),
			"--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "program.mts")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const good = `import pg from 'pg'
		import { exclusive, withLease, work, Snooze } from './locks.mjs'
		await work<{ to: string }>('postgres://', async (task, signal) => {
			if (signal.aborted) throw new Snooze(10)
			task.payload.to.trim()
		}, { queue: 'mail', onSettled: ({ task, outcome }) => outcome === 'dead' && task.payload.to })
		const n: number = await exclusive(new pg.Pool(), 7n, async client => (await client.query('')).rows.length, { wait: 10 })
		await withLease({ host: 'here' }, 'turn', n, async lease => lease.token.trim())
	`
	if out, err := check(good); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := check(strings.Replace(good, "payload.to.trim", "payload.from.trim", 1)); err == nil || !strings.Contains(out, "'from'") {
		t.Errorf("a mistake passes: %s", out)
	}
	// What is declared is there.
	names := regexp.MustCompile(`(?m)^export (?:class|function|const) (\w+)`)
	declared := names.FindAllStringSubmatch(string(text), -1)
	source, err := os.ReadFile(filepath.Join(root(t), "clients", "locks.mjs"))
	must(t, err)
	exported := regexp.MustCompile(`(?m)^export (?:async )?(?:class|function|const) (\w+)`).FindAllStringSubmatch(string(source), -1)
	list := func(found [][]string) (list []string) {
		for _, match := range found {
			list = append(list, match[1])
		}
		slices.Sort(list)
		return list
	}
	if d, x := list(declared), list(exported); len(d) == 0 || !slices.Equal(d, x) {
		t.Errorf("declared %v, exported %v", d, x)
	}
}
