//go:build unix

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
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoBinaries says that this machine has no PostgreSQL server binaries.
var ErrNoBinaries = errors.New("no PostgreSQL server binaries: neither in PATH, nor where Debian, Red Hat and Homebrew have them, nor named by LOCKS_PG_BIN: install PostgreSQL, or set LOCKS_PG_BIN to their directory")

// Options says how to start a server. The zero value starts the newest local binaries with settings for tests.
type Options struct {
	Settings []string // name=value, on top of the defaults
	Env      []string // name=value, for the server's programs, on top of this process's
	Durable  bool     // leave fsync on, as benchmarks and crash tests need
	Keep     bool     // let the server outlive this process; Stop still stops it
}

// A Server is a running server of our own.
type Server struct {
	Dir    string // holds the data directory and the log
	BinDir string
	Port   int
	opts   Options
	guard  *os.File
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
	locale := "C.UTF-8"
	if runtime.GOOS != "linux" {
		locale = "C" // the one that is everywhere
	}
	// --no-sync: nothing of value is in it yet.
	return start(ctx, binaries, opts, func(s *Server) error {
		args := []string{"-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=" + locale, "--no-sync"}
		// PostgreSQL 18 has checksums unless it is told otherwise, and with them who reads a row may write WAL.
		const plain = "--no-data-checksums"
		help, err := s.command(ctx, "initdb", "--help").Output()
		s.ended()
		if err == nil && bytes.Contains(help, []byte(plain)) {
			args = append(args, plain)
		}
		return s.run(ctx, "initdb", args...)
	})
}

// start makes a data directory by fill and starts the server on it.
func start(ctx context.Context, binaries string, opts Options, fill func(s *Server) error) (*Server, error) {
	dir, err := os.MkdirTemp("", "locks-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, BinDir: binaries, opts: opts}
	if os.Getuid() == 0 {
		err = os.Chown(dir, nobody, nobody)
	}
	if err == nil && !opts.Keep {
		s.guard, err = guard(`[ -z "$line" ] || { kill -QUIT "$line" && n=0 && while kill -0 "$line" && [ $((n += 1)) -lt 100 ]; do sleep 0.1; done; }; rm -rf "$1"`, dir)
	}
	if err == nil {
		err = fill(s)
	}
	if err == nil {
		err = s.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// guard starts a shell that runs ending when this process has ended, however it did, or closes the file. Until then it reads lines,
// and ending finds the last one in $line.
func guard(ending string, args ...string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	script := `while read -r next; do line=$next; done; { ` + ending + `; } >/dev/null 2>&1`
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Dir, cmd.Stdin = "/", r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is not for it
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	go func() {
		cmd.Wait()
		runtime.KeepAlive(w) // A file that nobody has any more would be closed.
	}()
	return w, nil
}

// Standby makes a streaming standby of s by pg_basebackup and starts it. It needs pg_basebackup beside the server's binaries.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	return start(ctx, s.BinDir, s.opts, func(standby *Server) error {
		return standby.run(ctx, "pg_basebackup", "-D", standby.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", s.URL("postgres", "postgres"))
	})
}

// URL is the server's address for a user and a database.
func (s *Server) URL(user, database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", user, s.Port, database)
}

// Stop stops the server at once and removes its directory.
func (s *Server) Stop() error {
	err := s.Kill()
	if s.guard != nil {
		s.guard.Close()
	}
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
	settings := append(Settings(s.opts.Durable),
		"log_min_messages=fatal", "listen_addresses=127.0.0.1", "port="+strconv.Itoa(s.Port), "unix_socket_directories="+s.Dir)
	args := []string{"-D", s.data()}
	for _, setting := range append(settings, s.opts.Settings...) {
		args = append(args, "-c", setting)
	}
	cmd := s.command(context.Background(), "postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own: Ctrl-C is for those who use the server, and they stop it.
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		s.ended()
		close(exited)
	}()
	s.cmd, s.exited = cmd, exited
	if err := ready(ctx, s.URL("postgres", "postgres"), exited); err != nil {
		s.Kill()
		text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
		return fmt.Errorf("%s did not start: %w\n%s", s.BinDir, err, text)
	}
	return nil
}

// Settings are what every throwaway PostgreSQL has.
func Settings(durable bool) []string {
	settings := []string{
		"max_connections=400", "max_prepared_transactions=50", "shared_buffers=256MB", "max_wal_size=4GB", "deadlock_timeout=100ms", "timezone=UTC",
	}
	if !durable {
		settings = append(settings, "fsync=off", "full_page_writes=off")
	}
	return settings
}

// ready waits until the server answers.
func ready(ctx context.Context, url string, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ticker.C:
		case <-exited:
			return errors.New("it exited")
		case <-ctx.Done():
			return err
		}
	}
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

const nobody = 65534

// command is a program of the server's. A guarded one first tells the guard its process id, which it keeps when it becomes the program:
// so there is no moment at which this process could die and leave it alone.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.BinDir, name), args...)
	if s.guard != nil {
		cmd = exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `echo $$ >&3; exec "$@" 3>&-`, "sh", filepath.Join(s.BinDir, name)}, args...)...)
		cmd.ExtraFiles = []*os.File{s.guard}
	}
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.Env = append(cmd.Env, s.opts.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: false}
	}
	return cmd
}

// ended tells the guard that the program has ended, and its process id may be another's.
func (s *Server) ended() {
	if s.guard != nil {
		fmt.Fprintln(s.guard)
	}
}

func (s *Server) run(ctx context.Context, name string, args ...string) error {
	cmd := s.command(ctx, name, args...)
	out, err := cmd.CombinedOutput()
	s.ended()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
