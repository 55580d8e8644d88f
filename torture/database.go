//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/torture/faults"
)

// database is the one that is tortured.
const database = "torture"

// cluster is what package faults starts.
type cluster interface {
	URL() string
	AdminURL() string
	SetClients(func() []int)
	Faults() []faults.Fault
	Missing() map[string]string
	Close() error
}

// prepare makes the roles, the database, the schema and the tables that the locks protect.
func prepare(ctx context.Context, admin string) error {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		"create role torture_owner login", "create role torture_app login", "create database " + database + " owner torture_owner",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return fill(ctx, admin, database)
}

// fill migrates a database and makes the tables that the locks protect.
func fill(ctx context.Context, admin, name string) error {
	config, err := configFor(admin, "torture_owner", name)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, locks.Migrations(), goose.WithTableName("public.lock_goose_version"))
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `
		select lock.grant_to('torture_app');
		create schema torture;
		create table torture.counter (id text primary key, n bigint not null default 0) with (fillfactor = 50);
		create table torture.protected (id text primary key, token bigint not null default 0) with (fillfactor = 50);
		create table torture.entity (id text primary key, n bigint not null default 0) with (fillfactor = 50);
		create table torture.work (window_number integer not null, entity text not null, request bigint not null, place bigint not null, process bigint not null);
		create index on torture.work (window_number, process);
		grant usage on schema torture to torture_app;
		grant all on all tables in schema torture to torture_app`)
	return err
}

func startCluster(ctx context.Context, dir, standby string, seed uint64) (cluster, error) {
	return faults.Start(ctx, dir, faults.Options{Standby: standby, Seed: seed, Logf: logf})
}

// adminConn is a superuser's connection to the tortured database.
func adminConn(ctx context.Context, admin, database string) (*pgx.Conn, error) {
	config, err := configFor(admin, "", database)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config)
}

// drain lets one more worker do what is left: by now nobody fails, so all must come to its end.
func drain(ctx context.Context, url, admin, database, dir string, start int64) error {
	conn, err := adminConn(ctx, admin, database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(2*time.Minute, func() { cancel(errors.New("it takes too long")) })
	defer timer.Stop()
	s := &session{
		recorder: newRecorder(dir, start, 99, 0, 0, new(atomic.Int64)), ctx: ctx, url: url, database: database, known: map[string]bool{},
		dice: rand.New(rand.NewPCG(0, 0)), die: func(string) {}, warn: cancel,
	}
	defer s.close()
	count := func(sql string) func() (int, error) {
		return func() (n int, err error) {
			err = conn.QueryRow(ctx, sql).Scan(&n) // and when ctx is over this ends it
			return n, err
		}
	}
	if err := free(s, conn); err != nil {
		return err
	}
	err = drainTasks(s, count("select count(*) from lock.task where status <> 'done'"))
	if err == nil {
		err = drainRequests(s, count("select count(*) from lock.request where settled_at is null"))
	}
	if ctx.Err() != nil {
		var left string
		conn, err := adminConn(context.Background(), admin, database)
		if err == nil {
			defer conn.Close(context.Background())
			err = conn.QueryRow(context.Background(), `select jsonb_build_object(
				'now', clock_timestamp(), 'tasks', (select count(*) from lock.task where status <> 'done'), 'requests', (select count(*) from lock.request where settled_at is null),
				'a task', (select to_jsonb(task) from lock.task where status <> 'done' limit 1), 'a request', (select to_jsonb(request) from lock.request where settled_at is null limit 1))::text`).Scan(&left)
		}
		return errors.Join(fmt.Errorf("%w: %s", context.Cause(ctx), left), err)
	}
	return err
}

// check checks one window after the other.
func check(ctx context.Context, admin, database, dir string, start int64, moved ...span) (*checker, error) {
	conn, err := adminConn(ctx, admin, database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	c := newChecker(start)
	c.moved = moved
	for window := range windowOf(start, now()) + 1 {
		if _, err := os.Stat(filepath.Join(dir, strconv.Itoa(window))); err != nil {
			continue
		}
		if err := c.window(ctx, conn, dir, window); err != nil {
			return nil, err
		}
	}
	return c, nil
}
