// Package lockstest is for the tests of programs that use package locks: Pool gives a test a
// database of its own, Drain works off a queue in the test's goroutine, and Expire, Rewind and Kill
// bring about what otherwise takes time or bad luck. Nothing here touches a clock.
//
// The server is the first of these that there is:
//
//   - the one that LOCKSTEST_URL names, the address of a role that may create databases;
//   - a container of the image that LOCKSTEST_IMAGE names, such as postgres:17-alpine, on a Docker
//     engine of this machine;
//   - PostgreSQL's server binaries, from PATH, the usual places, or the directory that LOCKS_PG_BIN
//     names.
//
// The last two start once per test binary, and end with it even when it is killed.
package lockstest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/lockstest/server"
)

var errNone = errors.New("there is no PostgreSQL for the tests: set LOCKSTEST_URL to a server's address (of a role that may create databases), " +
	"or LOCKSTEST_IMAGE to an image for Docker, or LOCKS_PG_BIN to a directory with PostgreSQL's server binaries (on Debian, install postgresql)")

const smallest = 16 // connections of a pool

var patience = 10 * time.Second // with what others hold

// Pool returns a pool on a database that nobody else has, with the schema lock in it, as the owner
// of both. Both are gone after the test. Any number of tests may run at once, in any number of test
// binaries: each gets a copy of one template, which is made once for each version of the
// migrations.
//
// The pool has 16 connections, or as many as LOCKSTEST_URL says in pool_max_conns when that is
// more. Its Config().ConnString() is the address for another program. The test fails when there is
// no server, and when a connection is still in use at its end.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := open(t)
	if err != nil {
		t.Fatalf("lockstest: %v", err)
	}
	return pool
}

// A host is the server that this test binary uses.
type host struct {
	url      string
	mark     *pgx.Conn // stays open: our databases' names have its process id, to say whose they are
	template string    // "": the server makes no copies
	made     atomic.Int64
}

var theHost = sync.OnceValues(func() (*host, error) {
	ctx := context.Background()
	h := &host{url: os.Getenv("LOCKSTEST_URL")}
	var err error
	if h.url == "" {
		if h.url, err = own(ctx); err != nil {
			return nil, err
		}
	}
	if h.mark, err = pgx.Connect(ctx, h.url); err != nil {
		return nil, fmt.Errorf("the server (LOCKSTEST_URL, or our own): %w", err)
	}
	var version, owner string
	err = h.mark.QueryRow(ctx, "select version(), (select oid::text from pg_roles where rolname = current_user)").Scan(&version, &owner)
	if err != nil || strings.Contains(version, "-YB-") {
		return h, err
	}
	h.sweep(ctx)
	digest, err := server.Digest(locks.Migrations())
	if err != nil {
		return nil, err
	}
	h.template = "lockstest_template_" + digest + "_" + owner
	scratch := h.name()
	return h, server.Template(ctx, h.mark, h.template, scratch, func() error { return h.create(ctx, scratch, "") })
})

// name is a new database's.
func (h *host) name() string {
	return fmt.Sprintf("lockstest_%d_%d", h.mark.PgConn().PID(), h.made.Add(1))
}

// sweep drops what test binaries left behind that were killed. A database that somebody looks into
// stays for another time.
func (h *host) sweep(ctx context.Context) {
	rows, _ := h.mark.Query(ctx, `
		select pg_database.datname
		from pg_database
		where pg_database.datname ~ '^lockstest_[0-9]+_[0-9]+$'
		  and pg_has_role(pg_database.datdba, 'usage')
		  and not exists (
			select
			from pg_stat_activity
			where pg_stat_activity.pid = split_part(pg_database.datname, '_', 2)::integer
			  and pg_stat_activity.pid <> pg_backend_pid()
		  )`)
	left, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range left {
		h.mark.Exec(ctx, "drop database if exists "+name)
	}
}

// create makes a database as a copy of template, or, without one, by the migrations.
func (h *host) create(ctx context.Context, name, template string) error {
	conn, err := pgx.Connect(ctx, h.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if template != "" {
		_, err = conn.Exec(ctx, "create database "+name+" template "+template)
		return err
	}
	if _, err := conn.Exec(ctx, "create database "+name); err != nil {
		return err
	}
	return migrate(ctx, within(h.url, name))
}

func (h *host) drop(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, h.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	force := " with (force)"
	if h.template == "" {
		force = ""
	}
	_, err = conn.Exec(ctx, "drop database "+name+force)
	return err
}

func migrate(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, locks.Migrations(), goose.WithTableName("public.lock_goose_version"))
	if err == nil {
		_, err = provider.Up(ctx)
	}
	return err
}

// within is the address of another database on the same server.
func within(address, database string) string {
	if u, err := url.Parse(address); err == nil && u.Scheme != "" {
		u.Path = "/" + database
		return u.String()
	}
	return address + " dbname=" + database
}

func open(t testing.TB) (*pgxpool.Pool, error) {
	t.Helper()
	ctx := context.Background()
	h, err := theHost()
	if err != nil {
		return nil, err
	}
	name := h.name()
	config, err := pgxpool.ParseConfig(within(h.url, name))
	if err != nil {
		return nil, err
	}
	config.MaxConns = max(config.MaxConns, smallest)
	if err := h.create(ctx, name, h.template); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := h.drop(ctx, name); err != nil {
			t.Errorf("lockstest: %v", err)
		}
	})
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Errorf("lockstest: the test has ended, and a connection of its pool is still in use: end its transaction, close its rows, or release it")
		}
	})
	return pool, nil
}
