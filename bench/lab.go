//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/lockstest/server"
)

// settings of the one PostgreSQL server, on top of what tests/server gives all of them. Nothing is cleaned up while somebody is
// measured, except in the rows that are about that: they switch autovacuum on.
var settings = []string{"fsync=on", "synchronous_commit=on", "full_page_writes=on", "max_wal_size=8GB", "checkpoint_timeout=1h", "autovacuum=off"}

// A lab is the servers that a run needs.
type lab struct {
	server   *server.Server
	redis    string // its address, without an append-only file; empty: no Redis
	redisAOF string
	slow     map[string]string // from a server's address to the proxy before it that adds a millisecond
	queues   map[string]*queue
	result   result
	stops    []func()
}

// open starts what there is. A rival that cannot be had is left out, and the results say why.
func open(ctx context.Context, nothing bool) (_ *lab, err error) {
	l := &lab{slow: map[string]string{}, queues: map[string]*queue{}, result: newResult()}
	if nothing {
		l.redis = "listed"
		for _, q := range []*queue{ourTasks(), plainTasks(), pgmqTasks("", "delete"), riverTasks(), graphileTasks("")} {
			l.queues[q.id] = q
		}
		return l, nil
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.server, err = server.Start(ctx, server.Options{Durable: true, Settings: settings}); err != nil {
		return nil, err
	}
	l.stops = append(l.stops, func() { l.server.Stop() })
	version, err := l.text(ctx, "postgres", "show server_version")
	if err != nil {
		return nil, err
	}
	l.result.Versions["PostgreSQL"] = version
	if err := l.startRedis(ctx); err != nil {
		l.leaveOut("redsync", err)
	}
	for _, database := range []string{"locks", "plain"} {
		if err := l.exec(ctx, "postgres", "create database "+database); err != nil {
			return nil, err
		}
	}
	if err := migrate(ctx, l.url("locks")); err != nil {
		return nil, err
	}
	queues := []*queue{ourTasks(), plainTasks(), riverTasks()}
	if path := os.Getenv("PGMQ_SQL"); path == "" {
		l.leaveOut("pgmq", errors.New("PGMQ_SQL does not name the pgmq.sql of a release"))
	} else {
		queues = append(queues, pgmqTasks(path, "delete"), pgmqTasks(path, "archive"), pgmqTasks(path, "two calls"))
	}
	if node, err := installGraphile(ctx); err != nil {
		l.leaveOut("graphile-worker", err)
	} else {
		queues = append(queues, graphileTasks(node))
	}
	for _, q := range queues {
		if q.database != "locks" && q.database != "plain" {
			if err := l.exec(ctx, "postgres", "create database "+q.database); err != nil {
				return nil, err
			}
		}
		if err := q.setup(ctx, l); err != nil {
			return nil, fmt.Errorf("%s: %w", q.name, err)
		}
		l.queues[q.id] = q
	}
	l.queues["endless"], l.queues["quiet"], l.queues["notify"] = endlessTasks(), quietTasks(), notifyingTasks()
	l.result.Versions["pgx"] = moduleVersion("github.com/jackc/pgx/v5")
	return l, nil
}

func (l *lab) close() {
	for _, stop := range slices.Backward(l.stops) {
		stop()
	}
}

func (l *lab) leaveOut(rival string, why error) {
	log.Printf("left out: %s: %v", rival, why)
	l.result.LeftOut[rival] = why.Error()
}

// startRedis starts one server that keeps all in memory, and one with an append-only file that is synced every second.
func (l *lab) startRedis(ctx context.Context) error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	for address, args := range map[*string][]string{&l.redis: {"--appendonly", "no"}, &l.redisAOF: {"--appendonly", "yes", "--appendfsync", "everysec"}} {
		dir, err := os.MkdirTemp("", "locks-bench-")
		if err != nil {
			return err
		}
		l.stops = append(l.stops, func() { os.RemoveAll(dir) })
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		at := listener.Addr().String()
		listener.Close()
		_, port, _ := net.SplitHostPort(at)
		cmd := command(context.Background(), path, append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir}, args...)...)
		if err := cmd.Start(); err != nil {
			return err
		}
		l.stops = append(l.stops, func() { cmd.Process.Kill(); cmd.Wait() })
		client := redis.NewClient(&redis.Options{Addr: at})
		defer client.Close()
		if err := within(ctx, 10*time.Second, func() bool { return client.Ping(ctx).Err() == nil }); err != nil {
			return fmt.Errorf("redis-server: %w", err)
		}
		*address = at
		l.result.Versions["redsync"] = moduleVersion("github.com/go-redsync/redsync/v4")
		if info, err := client.InfoMap(ctx, "server").Result(); err == nil {
			l.result.Versions["Redis"] = info["Server"]["redis_version"]
		}
	}
	return nil
}

// delayed is the address of a proxy in this process, by which an answer of a server takes a millisecond more.
func (l *lab) delayed(address string) (string, error) {
	if l.slow[address] == "" {
		proxy := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), address, "127.0.0.1:0", address)
		if err := proxy.Start(); err != nil {
			return "", err
		}
		l.stops = append(l.stops, proxy.Stop)
		if _, err := proxy.Toxics.AddToxicJson(strings.NewReader(`{"type": "latency", "stream": "downstream", "attributes": {"latency": 1}}`)); err != nil {
			return "", err
		}
		l.slow[address] = proxy.Listen
	}
	return l.slow[address], nil
}

// command is a program that does not outlive this one.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = dieWithUs()
	cmd.Stderr = io.Discard
	return cmd
}

func within(ctx context.Context, limit time.Duration, reached func() bool) error {
	for end := time.Now().Add(limit); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("it took too long")
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func migrate(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, locks.Migrations(), goose.WithTableName("public.lock_goose_version"))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

func (l *lab) url(database string) string { return l.server.URL("postgres", database) }

// exec runs statements one by one, each on its own.
func (l *lab) exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, l.url(database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.200s: %w", sql, err)
		}
	}
	return nil
}

func get[T any](ctx context.Context, l *lab, database, sql string) (value T, err error) {
	conn, err := pgx.Connect(ctx, l.url(database))
	if err != nil {
		return value, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql).Scan(&value)
	return value, err
}

func (l *lab) text(ctx context.Context, database, sql string) (string, error) {
	return get[string](ctx, l, database, sql)
}

// pool has so many connections, all of them open. They wait for the disk at every commit, as the server is told to.
func (l *lab) pool(ctx context.Context, url string, size int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = int32(size), int32(size)
	config.ConnConfig.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	err = within(ctx, 30*time.Second, func() bool { return int(pool.Stat().TotalConns()) == size && pool.Stat().ConstructingConns() == 0 })
	return pool, err
}

// drive lets clients repeat an operation for the duration, after a warm-up, and returns how often each of them did it, and how long it took.
func drive(ctx context.Context, clients int, operation func(ctx context.Context, client int) error) ([]float64, time.Duration, error) {
	counts := make([]atomic.Int64, clients)
	var stop atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	for n := range clients {
		group.Go(func() error {
			for !stop.Load() && ctx.Err() == nil {
				if err := operation(ctx, n); err != nil {
					return err
				}
				counts[n].Add(1)
			}
			return nil
		})
	}
	read := func() []int64 {
		now := make([]int64, clients)
		for n := range counts {
			now[n] = counts[n].Load()
		}
		return now
	}
	pause(ctx, *duration/5)
	before, began := read(), time.Now()
	pause(ctx, *duration)
	after, took := read(), time.Since(began)
	stop.Store(true)
	done := make([]float64, clients)
	for n := range done {
		done[n] = float64(after[n] - before[n])
	}
	return done, took, group.Wait()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// each gives every client a connection of its own for an operation, and returns operations a second.
func (l *lab) each(ctx context.Context, url string, clients int, operation func(ctx context.Context, conn *pgx.Conn, client int) error) ([]float64, error) {
	pool, err := l.pool(ctx, url, clients)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	conns := make([]*pgxpool.Conn, clients)
	for n := range conns {
		if conns[n], err = pool.Acquire(ctx); err != nil {
			return nil, err
		}
		defer conns[n].Release()
	}
	return perSecond(drive(ctx, clients, func(ctx context.Context, n int) error { return operation(ctx, conns[n].Conn(), n) }))
}

func perSecond(done []float64, took time.Duration, err error) ([]float64, error) {
	sum := 0.0
	for _, n := range done {
		sum += n
	}
	return []float64{sum / took.Seconds()}, err
}

// median of no value is none.
func median(values []float64) (float64, bool) {
	if len(values) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2], true
}
