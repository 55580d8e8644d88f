// Package server starts throwaway PostgreSQL servers for tests, benchmarks and the demo.
package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoBinaries says that this machine has no PostgreSQL server binaries.
var ErrNoBinaries = errors.New("no PostgreSQL server binaries: neither in PATH, nor in /usr/lib/postgresql, nor named by LOCKS_PG_BIN")

// Options says how to start a server. The zero value starts the newest local binaries with settings for tests.
type Options struct {
	Settings []string // name=value, on top of the defaults
	Durable  bool     // leave fsync on, as benchmarks and crash tests need
	Keep     bool     // let the server outlive this process; Stop still stops it
}

// A Server is a running server of our own.
type Server struct {
	Dir    string // holds the data directory and the log
	BinDir string
	Port   int
	opts   Options
	cmd    *exec.Cmd
	exited chan struct{}
}

// FindBinaries returns the directory of the newest server binaries on this machine.
func FindBinaries() (string, error) {
	if dir := os.Getenv("LOCKS_PG_BIN"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err != nil {
			return "", fmt.Errorf("LOCKS_PG_BIN: %w", err)
		}
		return dir, nil
	}
	var dirs []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin"} {
		found, _ := filepath.Glob(pattern)
		for _, dir := range found {
			if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	if len(dirs) == 0 {
		return "", ErrNoBinaries
	}
	return slices.Max(dirs), nil
}

// Start makes a new cluster in a temporary directory and starts it on a free port of 127.0.0.1, with trust authentication
// and the superuser postgres. As root it runs under the user nobody.
func Start(ctx context.Context, opts Options) (*Server, error) {
	binaries, err := FindBinaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "locks-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, BinDir: binaries, opts: opts}
	if err := s.own(dir); err != nil {
		return nil, err
	}
	// --no-sync: nothing of value is in it yet.
	if err := s.run(ctx, "initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := s.Restart(ctx); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// Standby makes a streaming standby of s by pg_basebackup and starts it. It needs pg_basebackup beside the server's binaries.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	dir, err := os.MkdirTemp("", "locks-pg-")
	if err != nil {
		return nil, err
	}
	standby := &Server{Dir: dir, BinDir: s.BinDir, opts: s.opts}
	if err := standby.own(dir); err != nil {
		return nil, err
	}
	err = standby.run(ctx, "pg_basebackup", "-D", standby.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", s.URL("postgres", "postgres"))
	if err == nil {
		err = standby.Restart(ctx)
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return standby, nil
}

// URL is the server's address for a user and a database.
func (s *Server) URL(user, database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", user, s.Port, database)
}

// Stop stops the server at once and removes its directory.
func (s *Server) Stop() error {
	err := s.Kill()
	return errors.Join(err, os.RemoveAll(s.Dir))
}

// Kill stops the server as pg_ctl stop -m immediate does: no checkpoint, and recovery at the next start.
func (s *Server) Kill() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Signal(syscall.SIGQUIT)
	<-s.exited
	s.cmd = nil
	return err
}

// StopCommand is a line of shell that does what Stop does, for a server that was started with Keep.
func (s *Server) StopCommand() string {
	as := ""
	if os.Getuid() == 0 {
		as = fmt.Sprintf("setpriv --reuid=%d --regid=%d --clear-groups ", nobody, nobody)
	}
	return fmt.Sprintf("(cd %[2]s && %[1]s%[3]s -D data -m immediate -s stop); rm -r %[2]s", as, s.Dir, filepath.Join(s.BinDir, "pg_ctl"))
}

// Restart starts the server again, after Kill on the port it had.
func (s *Server) Restart(ctx context.Context) error {
	if s.Port == 0 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		s.Port = listener.Addr().(*net.TCPAddr).Port
		listener.Close()
	}
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	settings := append(testSettings(s.opts.Durable),
		"log_min_messages=fatal", "listen_addresses=127.0.0.1", "port="+strconv.Itoa(s.Port), "unix_socket_directories="+s.Dir)
	args := []string{"-D", s.data()}
	for _, setting := range append(settings, s.opts.Settings...) {
		args = append(args, "-c", setting)
	}
	cmd := s.command(context.Background(), "postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	if s.opts.Keep {
		cmd.SysProcAttr.Setsid = true
	} else {
		// A group of its own: Ctrl-C is for those who use the server, and they stop it.
		cmd.SysProcAttr.Setpgid = true
		cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	}
	started := make(chan error)
	exited := make(chan struct{})
	go func() {
		// The death signal comes when the thread that started the server ends, so that thread has to stay.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		return err
	}
	s.cmd, s.exited = cmd, exited
	if err := s.ready(ctx); err != nil {
		s.Kill()
		text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
		return fmt.Errorf("%s did not start: %w\n%s", s.BinDir, err, text)
	}
	return nil
}

// testSettings are what every PostgreSQL that is started here has.
func testSettings(durable bool) []string {
	settings := []string{
		"max_connections=400", "max_prepared_transactions=50", "shared_buffers=256MB", "max_wal_size=4GB", "deadlock_timeout=100ms", "timezone=UTC",
	}
	if !durable {
		settings = append(settings, "fsync=off", "full_page_writes=off")
	}
	return settings
}

func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres", "postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ticker.C:
		case <-s.exited:
			return errors.New("it exited")
		case <-ctx.Done():
			return err
		}
	}
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// own gives path to the user that the server runs under.
func (s *Server) own(path string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Chown(path, nobody, nobody)
}

const nobody = 65534

func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.BinDir, name), args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: false}
	}
	return cmd
}

func (s *Server) run(ctx context.Context, name string, args ...string) error {
	cmd := s.command(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, strings.TrimSpace(out.String()))
	}
	return nil
}
