package tests

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"slices"
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

// A blackHole stands before the server, and can swallow silently what passes through the connections that there are, or through all.
type blackHole struct {
	address string // of the database behind it, for ordinary roles

	mu     sync.Mutex
	silent bool
	hushes []func()
}

func newBlackHole(t *testing.T, address string) *blackHole {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	u.Host = listener.Addr().String()
	b := &blackHole{address: u.String()}
	var conns sync.WaitGroup
	var mu sync.Mutex
	var all []net.Conn
	conns.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			behind, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			mu.Lock()
			all = append(all, client, behind)
			mu.Unlock()
			var hushed atomic.Bool
			b.mu.Lock()
			hushed.Store(b.silent)
			b.hushes = append(b.hushes, func() { hushed.Store(true) })
			b.mu.Unlock()
			for _, way := range [][2]net.Conn{{client, behind}, {behind, client}} {
				conns.Go(func() {
					buffer := make([]byte, 1<<16)
					for {
						n, err := way[0].Read(buffer)
						if hushed.Load() {
							n = 0 // and an end is not passed on either
						} else if err != nil {
							way[1].Close()
						}
						if n > 0 {
							way[1].Write(buffer[:n])
						}
						if err != nil {
							return
						}
					}
				})
			}
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, conn := range all {
			conn.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
	return b
}

// swallow swallows what passes through the connections that there are, for ever, and with all through those to come, until the next swallow.
func (b *blackHole) swallow(all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = all
	for _, hush := range b.hushes {
		hush()
	}
	b.hushes = nil
}

// The connections of Dial work, and have the limits.
func TestDial(t *testing.T) {
	t.Parallel()
	e := open(t, engines()[0])
	config, err := pgxpool.ParseConfig(e.url)
	must(t, err)
	var conns []net.Conn
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := locks.Dial(ctx, network, address)
		conns = append(conns, conn)
		return conn, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	defer pool.Close()
	must(t, pool.Ping(ctx))
	if runtime.GOOS != "linux" {
		t.Skip("the options are Linux's")
	}
	if conn, ok := conns[0].(*net.TCPConn); ok {
		raw, err := conn.SyscallConn()
		must(t, err)
		for option, want := range map[int]int{4: 2, 5: 1, 6: 3, 18: 5000} { // TCP_KEEPIDLE, KEEPINTVL, KEEPCNT, USER_TIMEOUT
			must(t, raw.Control(func(fd uintptr) {
				got, err := socketOption(fd, option)
				if err != nil || got != want {
					t.Errorf("option %d is %d, %v", option, got, err)
				}
			}))
		}
	}
}

// TestKeyRoundTrips: begin and lock travel together, but for YugabyteDB, where each statement is a message of its own.
func TestKeyRoundTrips(t *testing.T) {
	t.Parallel()
	eachServer(t, keyRoundTrips)
}

func keyRoundTrips(t *testing.T, e *env, yugabyte bool) {
	want := int64(2)
	if yugabyte {
		want = 3
	}
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
		if n := count(closure); n != want {
			t.Errorf("%s took %d round trips, want %d", name, n, want)
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

// TestKeyNamesBehindPgbouncer looks at every client and every connection of the server after each end of a wait: nothing of the
// name that the waiter showed may stay on any.
func TestKeyNamesBehindPgbouncer(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "only the advisory engine shows names in application_name")
	e := open(t, advisory)
	pooled := startPgbouncer(t, e.url, "default_pool_size = 4", "server_round_robin = 1")
	connect := func(name string) (conn *pgx.Conn) {
		t.Helper()
		eventually(t, "pgbouncer answers", func() bool {
			var err error
			conn, err = pgx.Connect(ctx, pooled+"&application_name="+name)
			return err == nil
		})
		t.Cleanup(func() { conn.Close(ctx) })
		return conn
	}
	exec := func(conn *pgx.Conn, sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		must(t, err)
	}
	others := []*pgx.Conn{connect("one"), connect("two"), connect("three")}
	names := []string{"one", "two", "three", "waiter"}
	holder := e.session(t)
	super := e.sessionAs(t, e.super)
	waiting := func() bool {
		return get[bool](super, "select exists (select from pg_stat_activity where application_name = 'waiter waits for pooled' and wait_event_type = 'Lock' and datname = current_database())")
	}
	// left is what is not as it was, once nobody waits: four clients have a transaction at once, each on another of the four connections,
	// in four rounds.
	left := func(waiter *pgx.Conn) (found []string) {
		clients := append(slices.Clone(others), waiter)
		for range 4 {
			for i, client := range clients {
				exec(client, "begin")
				var name string
				must(t, client.QueryRow(ctx, "show application_name").Scan(&name))
				if told := client.PgConn().ParameterStatus("application_name"); name != names[i] || told != names[i] {
					found = append(found, fmt.Sprintf("%s has %q, and was told %q", names[i], name, told))
				}
			}
			for _, client := range clients {
				exec(client, "commit")
			}
		}
		if get[bool](super, "select exists (select from pg_stat_activity where application_name like '% waits for %' and datname = current_database())") {
			found = append(found, "a connection of the server")
		}
		return found
	}
	ends := map[string]func(t *testing.T, waiter *pgx.Conn) *pgx.Conn{
		"succeeds": func(t *testing.T, waiter *pgx.Conn) *pgx.Conn {
			done := make(chan error, 1)
			go func() { _, err := waiter.Exec(ctx, "select lock.exclusive('pooled')"); done <- err }()
			eventually(t, "it waits", waiting)
			holder.exec("commit")
			must(t, <-done)
			return waiter
		},
		"succeeds, and its transaction goes on": func(t *testing.T, waiter *pgx.Conn) *pgx.Conn {
			exec(waiter, "begin")
			exec(waiter, "set local application_name = 'waiter'")
			done := make(chan error, 1)
			go func() { _, err := waiter.Exec(ctx, "select lock.try_exclusive('pooled', '1 hour')"); done <- err }()
			eventually(t, "it waits", waiting)
			holder.exec("commit")
			must(t, <-done)
			exec(waiter, "commit")
			return waiter
		},
		"is cancelled": func(t *testing.T, waiter *pgx.Conn) *pgx.Conn {
			done := make(chan error, 1)
			go func() { _, err := waiter.Exec(ctx, "select lock.shared('pooled')"); done <- err }()
			eventually(t, "it waits", waiting)
			must(t, waiter.PgConn().CancelRequest(ctx))
			wantCode(t, <-done, "57014", "a cancelled wait")
			return waiter
		},
		"loses its client": func(t *testing.T, waiter *pgx.Conn) *pgx.Conn {
			go waiter.Exec(ctx, "select lock.exclusive('pooled')")
			eventually(t, "it waits", waiting)
			must(t, waiter.PgConn().Conn().Close())
			holder.exec("commit")
			eventually(t, "nobody waits", func() bool { return !waiting() })
			return connect("waiter")
		},
	}
	for name, code := range map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"} {
		ends["meets "+name] = func(t *testing.T, waiter *pgx.Conn) *pgx.Conn {
			exec(waiter, "begin")
			exec(waiter, "set local "+name+" = '30ms'")
			_, err := waiter.Exec(ctx, "select lock.exclusive('pooled')")
			wantCode(t, err, code, name)
			exec(waiter, "rollback")
			return waiter
		}
	}
	ends["is a try that ends"] = func(t *testing.T, waiter *pgx.Conn) *pgx.Conn {
		exec(waiter, "select lock.try_exclusive('pooled', '30 ms')")
		return waiter
	}
	waiter := connect("waiter")
	for name, end := range ends {
		t.Run("a wait that "+name, func(t *testing.T) {
			holder.exec("begin")
			holder.exec("select lock.exclusive('pooled')")
			waiter = end(t, waiter)
			holder.exec("rollback")
			if found := left(waiter); len(found) > 0 {
				t.Error(found)
			}
		})
	}
	t.Run("a setting of the session would be seen", func(t *testing.T) {
		mutate(t, e, "hold_key", "shown), true)", "shown), false)", "perform set_config('application_name', previous, true)", "null")
		holder.exec("begin")
		holder.exec("select lock.exclusive('pooled')")
		waiter = ends["succeeds"](t, waiter)
		if len(left(waiter)) == 0 {
			t.Error("nothing is left")
		}
	})
}
