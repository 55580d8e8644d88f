package tests

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	holder := e.session(t)
	holder.exec("begin")
	holder.exec("select lock.exclusive('held')")
	for name, closure := range map[string]func() error{
		"Exclusive":    func() error { return locks.Exclusive(ctx, pool, "k", nothing) },
		"Shared":       func() error { return locks.Shared(ctx, pool, 7, nothing) },
		"ExclusiveAll": func() error { return locks.ExclusiveAll(ctx, pool, []string{"a", "b"}, nothing) },
		"TryExclusive": func() error { _, err := locks.TryExclusive(ctx, pool, 7, time.Second, nothing); return err },
		"TryShared, denied": func() error {
			got, err := locks.TryShared(ctx, pool, "held", 0, nothing)
			if got {
				t.Error("TryShared: granted")
			}
			return err
		},
	} {
		must(t, closure()) // the first on a connection prepares its statements
		if n := count(closure); n != 2 {
			t.Errorf("%s took %d round trips", name, n)
		}
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
	t.Parallel()
	e := open(t, advisory)
	pooled := startPgbouncer(t, e.url, "default_pool_size = 3")
	eventually(t, "pgbouncer answers", func() bool {
		conn, err := pgx.Connect(ctx, pooled)
		if err == nil {
			conn.Close(ctx)
		}
		return err == nil
	})
	_, err := e.admin.Exec(ctx, "create table counter as select 0 as n; grant all on counter to public")
	must(t, err)
	pool := openPool(t, pooled, 12)
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
