package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/lockstest/server"
	"github.com/seed4787c507/locks/tests/container"
)

const (
	advisory = "advisory"
	row      = "row"

	versionTable = "public.lock_goose_version"
	patience     = 30 * time.Second // with a single event
	perseverance = 3 * time.Minute  // with a workload

	// workerURL names the variable that makes this binary a worker process of a test: its database.
	workerURL = "LOCKS_TEST_WORKER_URL"
)

// target is what this run of the tests talks to.
var target struct {
	url     string // of a superuser, or of a role that may create databases and roles
	own     *server.Server
	version string
	number  int // server_version_num
	// migrations is a digest of them: a template is of one version.
	migrations string
	// yugabyte: one engine, no clones, and what asks for PostgreSQL's insides is skipped by onlyPostgreSQL.
	yugabyte bool
	// disguised: it is PostgreSQL that calls itself YugabyteDB (disguise).
	disguised bool
	// pooler is the address of a pgbouncer, or "".
	pooler string
}

var ctx = context.Background()

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // Workers whose handlers fail log that.
	if os.Getenv(workerURL) != "" {
		return m.Run() // A worker process of another test, whose target it uses.
	}
	name := os.Getenv("LOCKS_TEST_TARGET")
	if name == "" {
		name = "local"
	}
	switch name {
	case "local", "pgbouncer", "disguised":
		s, err := server.Start(ctx, server.Options{Settings: strings.Fields(os.Getenv("LOCKS_TEST_SETTINGS"))})
		if err != nil {
			return refuse(name, err)
		}
		defer s.Stop()
		target.own, target.url = s, s.URL("postgres", "postgres")
	case "url":
		target.url = os.Getenv("LOCKS_TEST_URL")
		if target.url == "" {
			return refuse(name, errors.New("LOCKS_TEST_URL is not set"))
		}
	case "container":
		url, stop, err := container.Start(ctx)
		if err != nil {
			return refuse(name, err)
		}
		defer stop()
		target.url = url
	case "yugabyte", "yugabyte-plain":
		target.url = os.Getenv("LOCKS_TEST_YUGABYTE_URL")
		if target.url == "" {
			url, stop, err := container.Yugabyte(ctx, name == "yugabyte")
			if err != nil {
				return refuse(name, err)
			}
			defer stop()
			target.url = url
		}
	default:
		return refuse(name, errors.New("LOCKS_TEST_TARGET must be local, pgbouncer, disguised, url, container, yugabyte or yugabyte-plain"))
	}
	if target.disguised = name == "disguised"; target.disguised {
		if err := disguise(); err != nil {
			return refuse(name, err)
		}
	}
	if err := prepare(); err != nil {
		return refuse(name, err)
	}
	if name == "pgbouncer" {
		stop, err := poolEverybody()
		if err != nil {
			return refuse(name, err)
		}
		defer stop()
	}
	fmt.Printf("target %s: %s\n", name, target.version)
	return m.Run()
}

func refuse(name string, err error) int {
	fmt.Printf("target %s: %v\n", name, err)
	return 1
}

// prepare makes the two roles of the tests and a migrated template per engine.
func prepare() error {
	conn, err := pgx.Connect(ctx, target.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, "select version(), current_setting('server_version_num')::integer").Scan(&target.version, &target.number)
	if err != nil {
		return err
	}
	target.yugabyte = strings.Contains(target.version, "-YB-")
	for _, role := range []string{"locks_owner", "locks_app"} {
		_, err := conn.Exec(ctx, "create role "+role+" login")
		var pg *pgconn.PgError
		if err != nil && !(errors.As(err, &pg) && pg.Code == "42710") {
			return err
		}
	}
	if target.yugabyte && !target.disguised {
		return nil // it makes no clones: each test migrates its own database
	}
	if target.migrations, err = server.Digest(locks.Migrations()); err != nil {
		return err
	}
	for _, engine := range engines() {
		scratch := newDatabase()
		err := server.Template(ctx, conn, template(engine), scratch, func() error {
			if err := create(conn, scratch, "template0", engine); err != nil {
				return err
			}
			if err := fill(scratch); err != nil || !target.disguised {
				return err
			}
			return writeOutside(scratch)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// engines are the ones that this target has.
func engines() []string {
	if target.yugabyte {
		return []string{row}
	}
	return []string{advisory, row}
}

// onlyPostgreSQL skips a test of what YugabyteDB does not have, or answers differently.
func onlyPostgreSQL(t testing.TB, why string) {
	t.Helper()
	if target.yugabyte {
		t.Skip("not on YugabyteDB: " + why)
	}
}

// fill migrates a database all the way and grants it to the ordinary role.
func fill(database string) error {
	address := as(target.url, "locks_owner", database)
	if err := migrate(address, 0); err != nil {
		return err
	}
	owner, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer owner.Close(ctx)
	_, err = owner.Exec(ctx, "select lock.grant_to('locks_app')")
	return err
}

func template(engine string) string { return "locks_test_" + engine + "_" + target.migrations }

func newDatabase() string { return fmt.Sprintf("locks_test_%d_%d", os.Getpid(), databases.Add(1)) }

// create makes a database for the owner whose next first migration chooses engine.
func create(conn *pgx.Conn, name, template, engine string) error {
	if target.yugabyte && !target.disguised { // there is one engine, and the one template that it takes is the default
		_, err := conn.Exec(ctx, "create database "+name+" owner locks_owner")
		return err
	}
	strategy := ""
	if target.number >= 150000 {
		strategy = " strategy file_copy"
	}
	for _, sql := range []string{
		"create database " + name + " owner locks_owner template " + template + strategy,
		"alter database " + name + " set lock.engine = '" + engine + "'",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// migrate brings the database up to the nth migration, or all the way with 0.
func migrate(url string, n int) error {
	provider, closeDB, err := gooseProvider(url)
	if err != nil {
		return err
	}
	defer closeDB()
	if n == 0 {
		_, err = provider.Up(ctx)
	} else {
		_, err = provider.UpTo(ctx, provider.ListSources()[n-1].Version)
	}
	return err
}

func gooseProvider(url string) (*goose.Provider, func() error, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	db := stdlib.OpenDB(*config)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, locks.Migrations(), goose.WithTableName(versionTable))
	return provider, db.Close, err
}

// as is the target's address for another user and database.
func as(address, user, database string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	u.User = url.User(user)
	u.Path = "/" + database
	return u.String()
}

// An env is one test's own database.
type env struct {
	engine string
	url    string // of an ordinary role: lock.grant_to gave it the functions
	app    string // the same, behind no pooler
	owner  string // of the schema's owner
	super  string // of a superuser, in this database
	pool   *pgxpool.Pool
	admin  *pgxpool.Pool // as superuser
}

var (
	databases atomic.Int64
	ddl       sync.Mutex
)

// again repeats what is idempotent and may meet a conflict of the catalogue.
func again(run func() error) (err error) {
	for range 5 {
		if err = run(); err == nil || !slices.Contains([]string{"40001", "40P01", "XX000"}, code(err)) {
			return err
		}
	}
	return err
}

// open gives the test a fresh migrated database with an engine.
func open(t testing.TB, engine string) *env {
	t.Helper()
	if target.yugabyte {
		engine = row
	}
	return openFrom(t, engine, template(engine))
}

// openEmpty gives the test a database without the schema.
func openEmpty(t *testing.T, engine string) *env {
	t.Helper()
	return openFrom(t, engine, "template0")
}

func openFrom(t testing.TB, engine, from string) *env {
	t.Helper()
	if target.yugabyte {
		engine = row
	}
	if target.yugabyte && !target.disguised {
		ddl.Lock() // DDL of several databases at once runs into catalogue version mismatches
		defer ddl.Unlock()
	}
	name := newDatabase()
	conn, err := pgx.Connect(ctx, target.url)
	must(t, err)
	defer conn.Close(ctx)
	must(t, create(conn, name, from, engine))
	if target.yugabyte && !target.disguised && from == template(engine) {
		must(t, again(func() error { return fill(name) }))
	}
	e := &env{
		engine: engine,
		url:    pooled(t, as(target.url, "locks_app", name)),
		owner:  as(target.url, "locks_owner", name),
	}
	e.app = as(target.url, "locks_app", name)
	super, err := url.Parse(target.url)
	must(t, err)
	super.Path = "/" + name
	e.super = super.String()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the database of this test: %s", e.super)
			if os.Getenv("LOCKS_TEST_KEEP") != "" {
				return
			}
		}
		conn, err := pgx.Connect(ctx, target.url)
		if err == nil {
			_, err = conn.Exec(ctx, dropDatabase(name))
			conn.Close(ctx)
		}
		if err != nil {
			t.Errorf("drop database %s: %v", name, err)
		}
	})
	e.pool = openPool(t, e.url, 40)
	e.admin = openPool(t, e.super, 4)
	return e
}

func dropDatabase(name string) string {
	if target.yugabyte && !target.disguised {
		return "drop database " + name
	}
	return "drop database " + name + " with (force)"
}

func openPool(t testing.TB, url string, size int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.MaxConns = size
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// eachEngine runs fn as parallel subtests, one per engine.
func eachEngine(t *testing.T, fn func(t *testing.T, e *env)) {
	t.Helper()
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			fn(t, open(t, engine))
		})
	}
}

// A session is one connection, with the calls that tests of concurrency need.
type session struct {
	t    *testing.T
	e    *env
	conn *pgx.Conn
	pid  uint32 // from behindPooler on there is no back end of its own, and it is a number that its application_name has
}

// session opens a connection of the ordinary role.
func (e *env) session(t *testing.T) *session {
	t.Helper()
	return e.sessionAs(t, pooled(t, e.app))
}

// operates makes the ordinary role an operator as well, in this database.
func (e *env) operates(t testing.TB) {
	t.Helper()
	if _, err := e.admin.Exec(ctx, "select lock.grant_operator_to('locks_app')"); err != nil {
		t.Fatal(err)
	}
}

func (e *env) sessionAs(t *testing.T, url string) *session {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	must(t, err)
	pid := uint32(0)
	if isPooled(url) {
		pid = behindPooler + applications.Add(1)
		config.RuntimeParams["application_name"] = fmt.Sprint("session ", pid)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	must(t, err)
	t.Cleanup(func() { conn.Close(ctx) })
	if pid == 0 {
		pid = conn.PgConn().PID()
	}
	return &session{t: t, e: e, conn: conn, pid: pid}
}

// exec runs SQL that must succeed.
func (s *session) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.conn.Exec(ctx, sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// fails runs SQL that must fail with an SQLSTATE, and returns the error.
func (s *session) fails(code, sql string, args ...any) *pgconn.PgError {
	s.t.Helper()
	_, err := s.conn.Exec(ctx, sql, args...)
	return wantCode(s.t, err, code, sql)
}

// get returns the only column of the only row.
func get[T any](s *session, sql string, args ...any) T {
	s.t.Helper()
	var value T
	if err := s.conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// answers runs SQL that must return one value, and compares it.
func answers[T comparable](s *session, want T, sql string, args ...any) {
	s.t.Helper()
	if got := get[T](s, sql, args...); got != want {
		s.t.Fatalf("%s: got %v, want %v", sql, got, want)
	}
}

// A pending statement runs in another goroutine.
type pending struct {
	s    *session
	sql  string
	done chan error
}

// start runs SQL in the background: the session must not be used again before wait or waits returned.
func (s *session) start(sql string, args ...any) *pending {
	s.t.Helper()
	p := &pending{s: s, sql: sql, done: make(chan error, 1)}
	go func() {
		_, err := s.conn.Exec(ctx, sql, args...)
		p.done <- err
	}()
	return p
}

// blocked returns once the statement is seen waiting for a lock; it fails when the statement ends instead.
func (p *pending) blocked() *pending {
	p.s.t.Helper()
	eventually(p.s.t, p.sql+" waits for a lock", func() bool {
		select {
		case err := <-p.done:
			p.s.t.Fatalf("%s did not wait: %v", p.sql, err)
		default:
		}
		return p.s.e.waiting(p.s.t, p.s.pid)
	})
	return p
}

// waiting says whether a session is waiting for a lock. YugabyteDB says so nowhere at once: pg_locks shows a wait after a second. So a
// statement that has been at work for half a second counts there.
func (e *env) waiting(t *testing.T, pid uint32) bool {
	t.Helper()
	condition := "wait_event_type = 'Lock'"
	who := fmt.Sprint("pid = ", pid)
	if pid >= behindPooler {
		who = fmt.Sprintf("split_part(application_name, ' waits for ', 1) = 'session %d'", pid)
	}
	if target.yugabyte && !target.disguised {
		condition = "state = 'active' and clock_timestamp() - query_start > '500 ms'"
	}
	var waiting bool
	must(t, e.admin.QueryRow(ctx, "select exists (select from pg_stat_activity where "+who+" and "+condition+")").Scan(&waiting))
	return waiting
}

// wait returns the statement's error, or nil.
func (p *pending) wait() error {
	p.s.t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(patience):
		p.s.t.Fatalf("%s did not end within %v", p.sql, patience)
		return nil
	}
}

// ends waits for the statement's success.
func (p *pending) ends() {
	p.s.t.Helper()
	if err := p.wait(); err != nil {
		p.s.t.Fatalf("%s: %v", p.sql, err)
	}
}

// eventually polls until condition holds, for a single event.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	within(t, patience, what, condition)
}

// within polls until condition holds.
func within(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(limit)
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// buffersOnce is how many buffers a query touches, with everything inside its functions, and how many rows it returns.
func buffersOnce(s *session, sql string) (buffers, rows int) {
	s.t.Helper()
	var plan []struct {
		Plan struct {
			Hit  int     `json:"Shared Hit Blocks"`
			Read int     `json:"Shared Read Blocks"`
			Rows float64 `json:"Actual Rows"`
		}
	}
	var text []byte
	must(s.t, s.conn.QueryRow(ctx, "explain (analyze, buffers, format json) "+sql, pgx.QueryExecModeSimpleProtocol).Scan(&text))
	must(s.t, json.Unmarshal(text, &plan))
	if len(plan) != 1 {
		s.t.Fatalf("%d plans: %s", len(plan), text)
	}
	return plan[0].Plan.Hit + plan[0].Plan.Read, int(plan[0].Plan.Rows)
}

// buffers is the least of three looks: any one may have to read the catalogue again, as after an automatic analyze.
func buffers(s *session, sql string) int {
	s.t.Helper()
	return least(func() int {
		n, _ := buffersOnce(s, sql)
		return n
	})
}

func least(look func() int) int { return min(look(), look(), look()) }

// mutate replaces pieces of a function's text, given as pairs, so that a checker can be seen to fail. The pieces must be there.
func mutate(t *testing.T, e *env, function string, pieces ...string) {
	t.Helper()
	var text string
	must(t, e.admin.QueryRow(ctx, "select pg_get_functiondef(coalesce(to_regproc('lock.' || $1), to_regproc('lock_internal.' || $1)))", function).Scan(&text))
	for i := 0; i < len(pieces); i += 2 {
		if !strings.Contains(text, pieces[i]) {
			t.Fatalf("lock.%s does not contain %q", function, pieces[i])
		}
		text = strings.ReplaceAll(text, pieces[i], pieces[i+1])
	}
	_, err := e.admin.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	must(t, err)
}

// stopClock lets a function read its time from the setting test.clock.
func (e *env) stopClock(t *testing.T, function string) {
	t.Helper()
	admin(t, e, "create function lock_internal.stopped() returns timestamptz language sql as $$ select current_setting('test.clock')::timestamptz $$")
	mutate(t, e, function, "clock_timestamp()", "lock_internal.stopped()")
}

// must stops the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// code is an error's SQLSTATE, or "".
func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func wantCode(t *testing.T, err error, want, what string) *pgconn.PgError {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != want {
		t.Fatalf("%s: got %v, want SQLSTATE %s", what, err, want)
	}
	return pg
}

// root is the project's root.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	must(t, err)
	return dir
}

// tool is the path of a program that the Makefile installs into .bin, or skips the test aloud.
func tool(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(root(t), ".bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not installed: run make tools", name)
	}
	return path
}
