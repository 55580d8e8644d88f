package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
)

// demo plays on the server that address names, or else on one that lives as long as the demo.
func demo(ctx context.Context, address string) (err error) {
	if address == "" {
		var stop func() error
		if address, stop, err = throwaway(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	return play(ctx, address, "back", os.Stdout)
}

// play has users click on four sheets while a front end and three back ends run, kills a back end in the middle of its work, and
// returns an error when at the end anything is not as it was asked. backEnd is the command that the back ends run.
func play(ctx context.Context, address, backEnd string, out io.Writer) (err error) {
	started := time.Now()
	say := func(format string, arguments ...any) {
		fmt.Fprintf(out, "%7.3f  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, arguments...))
	}
	s, err := openStage(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.startFront(ctx); err != nil {
		return err
	}
	backs := []string{"back 1", "back 2", "back 3"}
	for _, name := range backs {
		if _, err := s.start(ctx, name, backEnd, "-files", s.files, "-poll", "1s"); err != nil {
			return err
		}
	}
	say("a front end at %s, and %s", s.front, strings.Join(backs, ", "))

	sheets := []string{"budget", "rota", "stock", "team"}
	for _, sheet := range sheets {
		if err := s.create(ctx, sheet); err != nil {
			return err
		}
	}
	if err := s.clicks(ctx, 40, sheets...); err != nil {
		return err
	}
	if err := s.settled(ctx, 0); err != nil {
		return err
	}
	say("4 sheets created, 40 updates of each requested, and all settled")

	// Whoever works on the budget next has to wait for its row just before it is done.
	held, err := s.admin.Begin(ctx)
	if err != nil {
		return err
	}
	defer held.Rollback(context.WithoutCancel(ctx))
	if _, err := held.Exec(ctx, "select from spreadsheets.sheet where sheet_id = 'budget' for update"); err != nil {
		return err
	}
	if err := s.clicks(ctx, 1, "budget"); err != nil {
		return err
	}
	var victim string
	err = s.eventually(ctx, "a back end works on the budget", func() (bool, error) {
		err := s.admin.QueryRow(ctx, `select application_name from pg_stat_activity
			where datname = current_database() and application_name like 'back %' and wait_event_type = 'Lock'`).Scan(&victim)
		return err == nil, ignore(err, pgx.ErrNoRows)
	})
	if err != nil {
		return err
	}
	say("%s has written the next version of the budget, and is about to commit it", victim)
	if err := s.clicks(ctx, 49, "budget"); err != nil {
		return err
	}
	if err := s.clicks(ctx, 10, sheets[1:]...); err != nil {
		return err
	}
	if err := s.settled(ctx, 50); err != nil {
		return err
	}
	say("49 more updates of the budget wait for that; 10 of each other sheet did not, and are settled")
	if err := s.kill(victim); err != nil {
		return err
	}
	say("%s is killed (kill -9)", victim)
	if err := held.Rollback(ctx); err != nil {
		return err
	}
	if err := s.settled(ctx, 0); err != nil {
		return err
	}
	say("the others have done it all:")

	problems := s.check(ctx, out, 1)
	problems = append(problems, s.stop()...)
	if len(problems) > 0 {
		return fmt.Errorf("this is wrong:\n  %s", strings.Join(problems, "\n  "))
	}
	say("every request was settled once, in its order, and every file holds what was asked, and nothing else")
	return nil
}

// A stage is a database, a directory and the processes that play on them. All of it goes away with close.
type stage struct {
	name      string        // of the database, and of the role that the processes use, which has no right but what migrate grants
	server    string        // the address of the server's superuser
	admin     *pgxpool.Pool // the superuser in the stage's database
	app       string        // the address for the processes
	files     string
	front     string // the front end's address
	processes map[string]*exec.Cmd
	asked     map[string][]asked // by sheet, in order
}

// What was asked for, and the number that the front end gave it.
type asked struct {
	request int64
	update  *update // nil: a create
}

func openStage(ctx context.Context, address string) (s *stage, err error) {
	s = &stage{name: "spreadsheets_" + strings.ToLower(rand.Text()[:8]), server: address, processes: map[string]*exec.Cmd{}, asked: map[string][]asked{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.files, err = os.MkdirTemp("", s.name); err != nil {
		return nil, err
	}
	if err := s.onServer(ctx, "create database "+s.name, "create role "+s.name); err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	u.Path = "/" + s.name
	if err := migrate(ctx, u.String(), s.name); err != nil {
		return nil, err
	}
	if s.admin, err = pgxpool.New(ctx, u.String()); err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("role", s.name)
	u.RawQuery = query.Encode()
	s.app = u.String()
	return s, nil
}

func (s *stage) close() error {
	for _, process := range s.processes {
		process.Process.Kill()
		process.Wait()
	}
	if s.admin != nil {
		s.admin.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(
		s.onServer(ctx, "drop database if exists "+s.name+" with (force)", "drop role if exists "+s.name),
		os.RemoveAll(s.files))
}

func (s *stage) onServer(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.server)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// withParent makes a process end when its parent is killed, where that is possible.
var withParent *syscall.SysProcAttr

// start starts this program once more. Only what a front end says can be read.
func (s *stage) start(ctx context.Context, name string, arguments ...string) (output io.Reader, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+s.app, "PGAPPNAME="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = withParent
	if name == "front" {
		if output, err = cmd.StdoutPipe(); err != nil {
			return nil, err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.processes[name] = cmd
	return output, nil
}

func (s *stage) startFront(ctx context.Context) error {
	output, err := s.start(ctx, "front", "front", "-listen", "127.0.0.1:0", "-files", s.files)
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the front end says nothing: %w", err)
	}
	s.front = strings.TrimPrefix(strings.TrimSpace(line), "listening on ")
	return nil
}

// kill ends a process by a signal that it cannot catch.
func (s *stage) kill(name string) error {
	process := s.processes[name]
	if process == nil {
		return fmt.Errorf("there is no process %q", name)
	}
	delete(s.processes, name)
	err := process.Process.Kill()
	process.Wait()
	return err
}

// stop asks all processes to end, and returns which of them did not do so properly.
func (s *stage) stop() (problems []string) {
	for _, name := range slices.Sorted(maps.Keys(s.processes)) {
		process := s.processes[name]
		delete(s.processes, name)
		err := process.Process.Signal(syscall.SIGTERM)
		if err := errors.Join(err, process.Wait()); err != nil {
			problems = append(problems, fmt.Sprintf("%s did not end as it should: %v", name, err))
		}
	}
	return problems
}

func (s *stage) create(ctx context.Context, sheet string) error {
	return s.ask(ctx, "/sheets", map[string]string{"id": sheet}, sheet, nil)
}

// clicks updates ten cells of each sheet again and again, n clicks in all.
func (s *stage) clicks(ctx context.Context, n int, sheets ...string) error {
	for range n {
		for _, sheet := range sheets {
			count := len(s.asked[sheet])
			u := update{Cell: fmt.Sprintf("B%d", count*7%10+1), Value: fmt.Sprintf("%s, click %d", sheet, count)}
			if count%2 == 0 {
				u.Value = float64(count) / 4
			}
			if err := s.ask(ctx, "/sheets/"+sheet+"/updates", u, sheet, &u); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stage) ask(ctx context.Context, path string, body any, sheet string, u *update) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	var answer accepted
	if err := s.call(ctx, http.MethodPost, path, bytes.NewReader(text), http.StatusAccepted, &answer); err != nil {
		return err
	}
	s.asked[sheet] = append(s.asked[sheet], asked{answer.Request, u})
	return nil
}

// call sends a request to the front end. The answer goes into v: its bytes into a *[]byte, or else its JSON.
func (s *stage) call(ctx context.Context, method, path string, body io.Reader, status int, v any) error {
	request, err := http.NewRequestWithContext(ctx, method, s.front+path, body)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != status {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	if bytes, ok := v.(*[]byte); ok {
		*bytes = text
		return nil
	}
	return json.Unmarshal(text, v)
}

// settled waits until all requests are settled but left.
func (s *stage) settled(ctx context.Context, left int64) error {
	return s.eventually(ctx, fmt.Sprintf("all but %d requests are settled", left), func() (bool, error) {
		depth, err := db.New(s.admin).QueueDepth(ctx)
		count := int64(0)
		for _, part := range depth {
			count += part.Ready + part.Delayed
		}
		return count == left, err
	})
}

// eventually asks until the answer is yes.
func (s *stage) eventually(ctx context.Context, what string, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := ask()
		if yes || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s: %w", what, ctx.Err())
		}
	}
}

var errNoServer = errors.New("LOCKS_DEMO_URL names no PostgreSQL, and none can be started here")

// throwaway starts a PostgreSQL that ends with this process at the latest. It needs the whole project's source.
func throwaway() (address string, stop func() error, err error) {
	cmd := exec.Command("go", "run", "-C", "../../tests", "./cmd/throwaway")
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	input, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error { return errors.Join(input.Close(), cmd.Wait()) }
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("cannot start a PostgreSQL: %s", strings.TrimSpace(trouble.String()))
	}
	if reason, none := strings.CutPrefix(line, "none: "); none {
		return "", nil, errors.Join(errNoServer, stop(), errors.New(strings.TrimSpace(reason)))
	}
	return strings.TrimSpace(line), stop, nil
}

func ignore(err, which error) error {
	if errors.Is(err, which) {
		return nil
	}
	return err
}
