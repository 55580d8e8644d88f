package tests

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// nodeWorker and pythonWorker say how to start the workers of examples/, or why that cannot be had.
var (
	nodeWorker = sync.OnceValues(func() (func(url string) *exec.Cmd, error) {
		dir, err := filepath.Abs("../.bin/node")
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(dir, "node_modules", "pg")); err != nil {
			installing, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			install := exec.CommandContext(installing, "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir, "pg@8")
			if out, err := install.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("npm install pg: %w: %s", err, out)
			}
		}
		return func(url string) *exec.Cmd {
			cmd := exec.Command("node", "../examples/worker.js", url)
			cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
			return cmd
		}, nil
	})
	pythonWorker = sync.OnceValues(func() (func(url string) *exec.Cmd, error) {
		const python = "/usr/bin/python3"
		if out, err := exec.Command(python, "-c", "import psycopg2").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("python3-psycopg2: %w: %s", err, out)
		}
		return func(url string) *exec.Cmd { return exec.Command(python, "../examples/worker.py", url) }, nil
	})
)

// A ledger is what workers said that they did: 'id attempt' of each task.
type ledger struct {
	mu   sync.Mutex
	done map[string]int
	by   map[string]int
}

func (l *ledger) note(worker, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[line]++
	l.by[worker]++
}

// startWorker runs a worker until the returned function is called, which lets it end by itself.
func (l *ledger) startWorker(t *testing.T, name string, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	must(t, err)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	must(t, cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			l.note(name, lines.Text())
		}
	}()
	stop = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		defer timer.Stop()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v: %s", name, err, &complaint)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestWorkers lets the workers of examples/ share a queue with Go's.
func TestWorkers(t *testing.T) {
	t.Parallel()
	languages := []struct {
		name string
		get  func() (func(url string) *exec.Cmd, error)
	}{{"node", nodeWorker}, {"python", pythonWorker}}
	// never makes a worker sleep until it is told: a poll would find what nobody told it of.
	never := func(t *testing.T, e *env) {
		t.Helper()
		mutate(t, e, "await_task", "'00:00:30'::interval", "'1 hour'::interval")
	}
	idle := func(t *testing.T, e *env, n int) {
		t.Helper()
		if target.yugabyte {
			return // Nobody is listed there, and everybody is told.
		}
		within(t, perseverance, "the workers idle", func() bool {
			var idle int
			must(t, e.admin.QueryRow(ctx, "select count(*) from lock.idle_worker where until > clock_timestamp() and (horizon is not null or listed_by is null)").Scan(&idle))
			return idle == n
		})
	}
	for _, language := range languages {
		t.Run(language.name, func(t *testing.T) {
			t.Parallel()
			start, err := language.get()
			if err != nil {
				t.Skip(err)
			}
			e := open(t, advisory)
			never(t, e)
			l := &ledger{done: map[string]int{}, by: map[string]int{}}
			stop := l.startWorker(t, language.name, start(e.url))
			s := e.session(t)
			for n := range 5 {
				idle(t, e, 1)
				s.exec("select lock.create_task($1)", fmt.Sprint("task ", n))
				eventually(t, "it is done", func() bool {
					return get[string](s, "select status::text from lock.get_task($1)", fmt.Sprint("task ", n)) == "done"
				})
			}
			idle(t, e, 1)
			s.exec(`select lock.create_task('fails', payload => '{"fail": "no paper"}')`)
			eventually(t, "it has failed", func() bool {
				return get[string](s, "select status::text from lock.get_task('fails')") == "failed"
			})
			answers(s, true, "select tries = 1 and message like '%no paper' and available_at > changed_at + interval '900 ms' from lock.get_task('fails')")
			stop()
			answers(e.sessionAs(t, e.super), 0, "select count(*) from lock.idle_worker")
			if len(l.done) != 5 {
				t.Errorf("it said %v", l.done)
			}
		})
	}
	t.Run("beside Go, nothing is lost and nothing done twice", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		never(t, e)
		l := &ledger{done: map[string]int{}, by: map[string]int{}}
		var stops []func()
		for _, language := range languages {
			start, err := language.get()
			if err != nil {
				t.Logf("without %s: %v", language.name, err)
				continue
			}
			for n := range 2 {
				name := fmt.Sprint(language.name, " ", n)
				stops = append(stops, l.startWorker(t, name, start(e.url)))
			}
		}
		working, cancel := context.WithCancel(ctx)
		defer cancel()
		var group sync.WaitGroup
		for n := range 2 {
			group.Go(func() {
				locks.WorkTasks(working, e.pool, "default", func(_ context.Context, task db.Task) error {
					l.note(fmt.Sprint("go ", n), fmt.Sprint(task.ID, " ", task.Attempt))
					return nil
				}, &locks.TaskOptions{Concurrency: 5, WorkerOptions: locks.WorkerOptions{Poll: time.Hour}})
			})
		}
		s := e.session(t)
		const waves, size = 8, 50
		for wave := range waves {
			idle(t, e, len(stops)+2)
			var producers sync.WaitGroup
			for p := range 4 {
				producers.Go(func() {
					for n := range size / 4 {
						if _, err := e.pool.Exec(ctx, "select lock.create_task($1)", fmt.Sprintf("task_%d_%d_%d", wave, p, n)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			producers.Wait()
			eventually(t, "the wave is done", func() bool {
				return get[int](s, "select count(*) from lock.list_tasks('default', 'new')")+get[int](s, "select count(*) from lock.list_tasks('default', 'in_progress')") == 0
			})
		}
		for _, stop := range stops {
			stop()
		}
		cancel()
		group.Wait()
		const all = waves * (size / 4) * 4
		answers(s, all, "select count(*) from lock.list_tasks('default', 'done', 100000) where attempt = 1")
		for line, times := range l.done {
			if times != 1 || !strings.HasSuffix(line, " 1") {
				t.Errorf("%q %d times", line, times)
			}
		}
		if len(l.done) != all {
			t.Errorf("%d tasks were worked on, and not %d", len(l.done), all)
		}
		t.Logf("%v", l.by)
	})
}
