package tests

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/tests/orm"
)

var quiet = &gorm.Config{Logger: logger.Discard}

func openORM(t *testing.T, dsn string) orm.Conns {
	t.Helper()
	conns, err := orm.Open(dsn)
	must(t, err)
	conns.Gorm.Logger = quiet.Logger
	t.Cleanup(func() { conns.SQL.Close() })
	return conns
}

// Each library locks, writes and enqueues in one transaction of its own, and a worker on pgx gets what that says.
func TestORM(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "it asks for who waits")
	for name, take := range map[string]func(orm.Conns, orm.Order, string) error{
		"database/sql": func(c orm.Conns, o orm.Order, mail string) error { return orm.TakeSQL(ctx, c.SQL, o, mail) },
		"sqlx":         func(c orm.Conns, o orm.Order, mail string) error { return orm.TakeSqlx(ctx, c.Sqlx, o, mail) },
		"GORM":         func(c orm.Conns, o orm.Order, mail string) error { return orm.TakeGorm(ctx, c.Gorm, o, mail) },
		"bun":          func(c orm.Conns, o orm.Order, mail string) error { return orm.TakeBun(ctx, c.Bun, o, mail) },
		"ent":          func(c orm.Conns, o orm.Order, mail string) error { return orm.TakeEnt(ctx, c.Ent, o, mail) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := opened(t, "create table orders (id text primary key, customer text not null)")
			conns, gate := openORM(t, e.url), e.session(t)
			sent := make(chan string, 2)
			runUntil(t, func(ctx context.Context) error {
				return orm.Work(ctx, e.url, func(_ context.Context, to string) error { sent <- to; return nil })
			})
			gate.exec("begin")
			gate.exec("select lock.exclusive('customer:42')")
			taken := make(chan error, 1)
			go func() { taken <- take(conns, orm.Order{ID: "order 7", Customer: "42"}, `{"to": "it's anna?"}`) }()
			sessionsWait(t, e, 1)
			answers(gate, int64(0), "select count(*) from orders")
			gate.exec("commit")
			must(t, <-taken)
			if to := <-sent; to != "it's anna?" {
				t.Errorf("sent to %s", to)
			}
			left := "select (select string_agg(id, ',') from orders) || ' ' || (select count(*) from lock.request_history('42', 'bills'))"
			answers(gate, "order 7 1", left)
			// A second one fails at its row, and leaves nothing.
			if err := take(conns, orm.Order{ID: "order 7", Customer: "42"}, `{"to": "bert"}`); code(err) != "23505" {
				t.Errorf("the second one: %v", err)
			}
			// So does one whose task cannot be: after its row.
			if err := take(conns, orm.Order{ID: "order 8", Customer: "42"}, "no JSON"); code(err) != "22P02" {
				t.Errorf("the third one: %v", err)
			}
			answers(gate, "order 7 1", left)
			answers(gate, true, "select lock.try_exclusive('customer:42')")
		})
	}
}

// What docs/orm.md warns of is so.
func TestORMPitfalls(t *testing.T) {
	t.Parallel()
	e := opened(t, "")
	conns, s := openORM(t, e.app), e.session(t)
	free := func(key string) bool {
		t.Helper()
		return get[bool](s, "select lock.try_exclusive("+key+")")
	}
	gormDo := func(do func(tx *gorm.DB)) {
		t.Helper()
		must(t, conns.Gorm.Transaction(func(tx *gorm.DB) error { do(tx); return nil }))
	}
	gormDo(func(tx *gorm.DB) {
		must(t, conns.Gorm.Exec("select lock.exclusive(?)", "a").Error)
		if !free("'a'") {
			t.Error("what is asked on the pool is held")
		}
		must(t, tx.Exec("select lock.exclusive(?)", "a").Error)
		if free("'a'") {
			t.Error("what is asked on the transaction is not held")
		}
	})
	gormDo(func(tx *gorm.DB) {
		must(t, tx.Raw("select lock.exclusive(?)", "raw").Error)
		if !free("'raw'") {
			t.Error("Raw runs without a Scan")
		}
		for key, end := range map[string]error{"kept": nil, "undone": errors.New("back")} {
			err := tx.Transaction(func(inner *gorm.DB) error {
				must(t, inner.Exec("select lock.exclusive(?)", key).Error)
				return end
			})
			if !errors.Is(err, end) || free("'"+key+"'") != (end != nil) {
				t.Errorf("an inner transaction: %s: %v", key, err)
			}
		}
	})

	// What a page's table shows is written so, and no other way.
	simple, err := gorm.Open(postgres.New(postgres.Config{DSN: e.app, PreferSimpleProtocol: true}), quiet)
	must(t, err)
	pool, err := simple.DB()
	must(t, err)
	t.Cleanup(func() { pool.Close() })
	prepared, err := gorm.Open(postgres.New(postgres.Config{Conn: conns.SQL}), &gorm.Config{Logger: logger.Discard, PrepareStmt: true})
	must(t, err)
	type run func(sql string, args ...any) error
	sqlRun := func(sql string, args ...any) error { _, err := conns.SQL.ExecContext(ctx, sql, args...); return err }
	sqlxRun := func(sql string, args ...any) error { _, err := conns.Sqlx.ExecContext(ctx, sql, args...); return err }
	sqlxNamed := func(sql string, args ...any) error {
		_, err := conns.Sqlx.NamedExecContext(ctx, sql, args[0])
		return err
	}
	gormRun := func(sql string, args ...any) error { return conns.Gorm.Exec(sql, args...).Error }
	simpleRun := func(sql string, args ...any) error { return simple.Exec(sql, args...).Error }
	preparedRun := func(sql string, args ...any) error { return prepared.Exec(sql, args...).Error }
	bunRun := func(sql string, args ...any) error { _, err := conns.Bun.ExecContext(ctx, sql, args...); return err }
	one, names, id := []any{"a"}, []any{[]string{"a", "b"}}, map[string]any{"id": 45}
	payload, bytes := []any{`{"a": "?"}`}, []any{[]byte(`{"a": 1}`)}
	ok, refused := "", "not sent"
	for n, c := range []struct {
		what string
		run  run
		want string
		sql  string
		args []any
	}{
		{"sql", sqlRun, ok, "select lock.exclusive($1)", one},
		{"sql", sqlRun, "42601", "select lock.exclusive(?)", one},
		{"sql", sqlRun, refused, "select lock.exclusive($1)", []any{42}},
		{"sql", sqlRun, ok, "select lock.exclusive($1::bigint)", []any{42}},
		{"sql", sqlRun, ok, "select lock.exclusive_all($1)", names},
		{"sql", sqlRun, ok, "select lock.create_task($2, payload => $1)", append(bytes, "sql")},
		{"sqlx", sqlxRun, "42601", "select lock.exclusive(?)", one},
		{"sqlx", sqlxRun, ok, conns.Sqlx.Rebind("select lock.exclusive(?)"), one},
		{"sqlx", sqlxRun, ok, "select lock.exclusive_all($1)", names},
		{"sqlx named", sqlxNamed, refused, "select lock.exclusive(:id::bigint)", []any{id}},
		{"sqlx named", sqlxNamed, ok, "select lock.exclusive(cast(:id as bigint))", []any{id}},
		{"gorm", gormRun, ok, "select lock.exclusive(?)", one},
		{"gorm", gormRun, refused, "select lock.exclusive(?)", []any{42}},
		{"gorm", gormRun, ok, "select lock.exclusive(?::bigint)", []any{42}},
		{"gorm", gormRun, "42703", "select lock.exclusive(@id::bigint)", []any{id}},
		{"gorm", gormRun, ok, "select lock.exclusive(cast(@id as bigint))", []any{id}},
		{"gorm", gormRun, "42883", "select lock.exclusive_all(?)", names},
		{"gorm", gormRun, ok, "select lock.exclusive_all(array[?, ?])", []any{"a", "b"}},
		{"gorm", gormRun, ok, "select lock.create_task(?, payload => ?)", append([]any{"gorm"}, payload...)},
		{"gorm", gormRun, ok, "select lock.create_task(?, payload => ?)", append([]any{"gorm bytes"}, bytes...)},
		{"gorm, simple", simpleRun, ok, "select lock.exclusive(?)", []any{42}},
		{"gorm, simple", simpleRun, ok, "select lock.create_task(?, payload => ?)", append([]any{"simple"}, payload...)},
		{"gorm, simple", simpleRun, "22P02", "select lock.create_task(?, payload => ?)", append([]any{"simple bytes"}, bytes...)},
		{"gorm, prepared", preparedRun, ok, "select lock.exclusive(?)", one},
		{"gorm, prepared", preparedRun, ok, "select lock.create_task(?, payload => ?)", append([]any{"prepared"}, payload...)},
		{"bun", bunRun, ok, "select lock.exclusive(?)", one},
		{"bun", bunRun, refused, "select lock.exclusive($1)", one},
		{"bun", bunRun, ok, "select lock.exclusive(?)", []any{42}},
		{"bun", bunRun, "22P02", "select lock.exclusive_all(?)", names},
		{"bun", bunRun, ok, "select lock.exclusive_all(?)", []any{pgdialect.Array([]string{"a", "b"})}},
		{"bun", bunRun, ok, "select lock.create_task(?, payload => ?)", append([]any{"bun"}, payload...)},
		{"bun", bunRun, "22P02", "select lock.create_task(?, payload => ?)", append([]any{"bun bytes"}, bytes...)},
	} {
		err := c.run(c.sql, c.args...)
		if got := code(err); c.want == ok && err != nil || c.want == refused && (err == nil || got != "") || c.want != ok && c.want != refused && got != c.want {
			t.Errorf("%d, %s: %s of %v: %v, want %q", n, c.what, c.sql, c.args, err, c.want)
		}
	}
	// A number in bun's text is a number, as where the type is said.
	must(t, conns.Bun.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "select lock.exclusive(?)", 44)
		if free("44") || !free("'44'") {
			t.Error("it is a text")
		}
		return err
	}))
	// All of them pass on what asks for the transaction again.
	s2 := e.sessionAs(t, e.super)
	s2.exec("create function public.stumble() returns void language plpgsql as $$ begin raise exception 'again' using errcode = '40001'; end $$")
	for what, run := range map[string]run{"sql": sqlRun, "sqlx": sqlxRun, "gorm": gormRun, "bun": bunRun} {
		if err := run("select public.stumble()"); !locks.IsRetryable(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := conns.Gorm.Transaction(func(tx *gorm.DB) error { return tx.Exec("select public.stumble()").Error }); !locks.IsRetryable(err) {
		t.Errorf("a transaction of gorm: %v", err)
	}
	err = conns.Bun.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "select public.stumble()")
		return err
	})
	if !locks.IsRetryable(err) {
		t.Errorf("a transaction of bun: %v", err)
	}
}

// Each block of Go on the page stands in the program that is run here.
func TestDocsORM(t *testing.T) {
	t.Parallel()
	blocks := docsBlocks(t, "go")["orm.md"]
	if len(blocks) < 6 {
		t.Errorf("only %d blocks", len(blocks))
	}
	program := projectFile(t, "tests/orm/orm.go")
	for _, block := range append(blocks, "func Nothing() {}") {
		if strings.Contains(program, "\n"+block+"\n") == (block == "func Nothing() {}") {
			t.Errorf("docs/orm.md shows what does not stand in tests/orm/orm.go:\n%s", block)
		}
	}
}
