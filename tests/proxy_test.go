package tests

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

// A turnConn counts how often the conversation turns from writing to reading: round trips.
type turnConn struct {
	net.Conn
	turns   *atomic.Int64
	writing atomic.Bool
}

func (c *turnConn) Write(b []byte) (int, error) {
	c.writing.Store(true)
	return c.Conn.Write(b)
}

func (c *turnConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.writing.Swap(false) {
		c.turns.Add(1)
	}
	return n, err
}

func TestKeyRoundTrips(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	var turns atomic.Int64
	config, err := pgxpool.ParseConfig(e.url)
	must(t, err)
	config.MaxConns = 1
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &turnConn{Conn: conn, turns: &turns}, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	defer pool.Close()
	must(t, pool.Ping(ctx))
	count := func(run func() error) int64 {
		before := turns.Load()
		must(t, run())
		return turns.Load() - before
	}
	nothing := func(pgx.Tx) error { return nil }
	if n := count(func() error { return locks.Exclusive(ctx, pool, "k", nothing) }); n != 2 {
		t.Errorf("Exclusive took %d round trips", n)
	}
	if n := count(func() error { return locks.Shared(ctx, pool, 7, nothing) }); n != 2 {
		t.Errorf("Shared took %d round trips", n)
	}
	three := count(func() error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select lock.exclusive(7)", pgx.QueryExecModeSimpleProtocol)
			return err
		})
	})
	if three != 3 {
		t.Errorf("begin, lock and commit took %d round trips: the counter does not count", three)
	}
}

// TestKeyBehindPgbouncer counts with the locks under transaction pooling: an unguarded counter loses nothing.
func TestKeyBehindPgbouncer(t *testing.T) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer"
		if _, err := os.Stat(path); err != nil {
			t.Skip("pgbouncer is not installed")
		}
	}
	t.Parallel()
	e := open(t, advisory)
	server, err := url.Parse(e.url)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	dir, err := os.MkdirTemp("", "locks-pgbouncer-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	ini := filepath.Join(dir, "pgbouncer.ini")
	must(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
%s = host=%s port=%s user=locks_app
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
`, server.Path[1:], server.Hostname(), server.Port(), port), 0o644))
	must(t, os.Chmod(dir, 0o755))
	cmd := exec.Command(path, ini)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })

	pooled := *server
	pooled.Host = fmt.Sprintf("127.0.0.1:%d", port)
	pooled.RawQuery = "sslmode=disable&default_query_exec_mode=exec"
	eventually(t, "pgbouncer answers", func() bool {
		conn, err := pgx.Connect(ctx, pooled.String())
		if err == nil {
			conn.Close(ctx)
		}
		return err == nil
	})
	_, err = e.admin.Exec(ctx, "create table counter as select 0 as n; grant all on counter to public")
	must(t, err)
	pool := openPool(t, pooled.String(), 12)
	const workers, rounds = 12, 40
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				err := locks.Exclusive(ctx, pool, "counter", func(tx pgx.Tx) error {
					var n int
					if err := tx.QueryRow(ctx, "select n from counter").Scan(&n); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "update counter set n = $1", n+1)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	answers(e.sessionAs(t, e.super), workers*rounds, "select n from counter")
}
