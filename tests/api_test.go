package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// What the constructors of the four kinds that grant return repeats on a pool, and nowhere else; errors have one form.
func TestGrantsInGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	super := e.sessionAs(t, e.super)
	super.exec(`create sequence public.n; grant all on sequence public.n to public;
		create function public.stumble() returns void language plpgsql as $$ begin
			if nextval('public.n') % 4 <> 0 then raise exception 'again' using errcode = '40001'; end if;
		end $$;
		select lock.create_timeout(id, '1 hour'), lock.create_throttled_resource(id, '1 hour') from unnest('{pool, conn, tx}'::text[]) id`)
	for _, function := range []string{"acquire_mutex", "release_mutex", "acquire_timeout", "acquire_time_slot", "lock_throttled_resource"} {
		mutate(t, e, function, "\nbegin\n", "\nbegin\n    perform public.stumble();\n")
	}
	conn := e.session(t).conn
	type call func(ctx context.Context, id string) (bool, error)
	for _, c := range []struct {
		what string
		on   func(handle db.DBTX) call
	}{
		{"acquire mutex", func(handle db.DBTX) call { var m locks.Mutex = locks.NewDurableMutex(handle, "me"); return m.Acquire }},
		{"release mutex", func(handle db.DBTX) call { var m locks.Mutex = locks.NewDurableMutex(handle, "me"); return m.Release }},
		{"acquire timeout", func(handle db.DBTX) call { var o locks.Timeout = locks.NewIntervalTimeout(handle); return o.Acquire }},
		{"acquire time slot", func(handle db.DBTX) call {
			var o locks.Timeout = locks.NewTimeSlot(handle, 1000*24*time.Hour)
			return o.Acquire
		}},
		{"acquire throttle", func(handle db.DBTX) call { return locks.NewThrottle(handle, "me").Acquire }},
	} {
		super.exec("select setval('public.n', 4)")
		if got, err := c.on(e.pool)(ctx, "pool"); err != nil || !got {
			t.Errorf("%s on a pool: %v, %v", c.what, got, err)
		}
		answers(super, int64(8), "select last_value from public.n")
		refused := func(handle db.DBTX, id string) {
			t.Helper()
			got, err := c.on(handle)(ctx, id)
			if got || !locks.IsRetryable(err) || !strings.HasPrefix(err.Error(), "locks: "+c.what+` "`+id+`": `) {
				t.Errorf("%s: %v, %v", c.what, got, err)
			}
		}
		refused(conn, "conn")
		tx, err := e.pool.Begin(ctx)
		must(t, err)
		refused(tx, "tx")
		must(t, tx.Rollback(ctx))
		answers(super, int64(10), "select last_value from public.n")
	}
}

// Every closure says what it did, to which kind, and to what.
func TestErrorsInGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("begin")
	s.exec("select lock.shared(7)")
	_, err := db.New(e.pool).AcquireLease(ctx, db.AcquireLeaseParams{Name: "held", Owner: "me", TTL: time.Hour, Permits: 1})
	must(t, err)
	oops := func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "rollback"); return err } // which is not the closure's to do
	for want, err := range map[string]error{
		"locks: hold key 7: ":        locks.Shared(ctx, e.pool, 7, oops),
		`locks: hold key "a": `:      locks.Exclusive(ctx, e.pool, "a", oops),
		`locks: hold 2 keys: `:       locks.ExclusiveAll(ctx, e.pool, []string{"a", "b"}, oops),
		`locks: hold lease "held": `: locks.WithLease(ctx, e.pool, "held", time.Hour, func(context.Context, locks.Lease) error { return nil }, nil),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// own is an error of a closure, which cannot be compared with ==.
type own []string

func (o own) Error() string { return o[0] }

// A closure's own error is not the lock's: it comes back as it is, retried or not.
func TestClosureErrorsInGo(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	calls := map[string]func(fn func() error) error{
		"Exclusive": func(fn func() error) error {
			return locks.Exclusive(ctx, e.pool, "k", func(pgx.Tx) error { return fn() })
		},
		"Shared": func(fn func() error) error {
			return locks.Shared(ctx, e.pool, 7, func(pgx.Tx) error { return fn() })
		},
		"TryExclusive": func(fn func() error) error {
			got, err := locks.TryExclusive(ctx, e.pool, "t", 0, func(pgx.Tx) error { return fn() })
			if got {
				t.Error("true with an error")
			}
			return err
		},
		"TryShared": func(fn func() error) error {
			_, err := locks.TryShared(ctx, e.pool, "s", time.Second, func(pgx.Tx) error { return fn() })
			return err
		},
		"ExclusiveAll": func(fn func() error) error {
			return locks.ExclusiveAll(ctx, e.pool, []string{"x", "y"}, func(pgx.Tx) error { return fn() })
		},
		"WithLease": func(fn func() error) error {
			return locks.WithLease(ctx, e.pool, "l", time.Hour, func(context.Context, locks.Lease) error { return fn() }, nil)
		},
	}
	for name, call := range calls {
		plain, retried := fmt.Errorf("credit limit: %w", context.Canceled), &pgconn.PgError{Code: "40001", Message: "again"}
		if err := call(func() error { return plain }); err != plain {
			t.Errorf("%s: %v", name, err)
		}
		var list own
		if err := call(func() error { return own{"a list"} }); !errors.As(err, &list) || err.Error() != "a list" {
			t.Errorf("%s: %v", name, err)
		}
		if name == "WithLease" { // it runs its closure once
			continue
		}
		n := 0
		if err := call(func() error { n++; return retried }); err != error(retried) || n != 11 {
			t.Errorf("%s: %v, %d times", name, err, n)
		}
	}
	// One who calls another: the inner one's lock is to blame, and named once.
	err := locks.Exclusive(ctx, e.pool, "outer", func(pgx.Tx) error {
		return locks.Exclusive(ctx, e.pool, "", func(pgx.Tx) error { return nil })
	})
	if err == nil || !strings.HasPrefix(err.Error(), `locks: hold key "": `) || strings.Contains(err.Error(), "outer") {
		t.Error(err)
	}
}

// Who gets no connection has waited for no lock.
func TestPoolInUse(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	pool := openPool(t, e.app, 2)
	for range 2 {
		conn, err := pool.Acquire(ctx)
		must(t, err)
		t.Cleanup(conn.Release)
	}
	never := func(pgx.Tx) error { t.Error("called"); return nil }
	lease := func(context.Context, locks.Lease) error { t.Error("called"); return nil }
	for want, call := range map[string]func(ctx context.Context) error{
		`hold key "customer:7"`: func(ctx context.Context) error { return locks.Exclusive(ctx, pool, "customer:7", never) },
		`hold key 7`: func(ctx context.Context) error {
			_, err := locks.TryShared(ctx, pool, 7, time.Hour, never)
			return err
		},
		`hold 2 keys`:    func(ctx context.Context) error { return locks.ExclusiveAll(ctx, pool, []string{"a", "b"}, never) },
		`hold lease "l"`: func(ctx context.Context) error { return locks.WithLease(ctx, pool, "l", time.Hour, lease, nil) },
		`hold lease "w"`: func(ctx context.Context) error {
			return locks.WithLease(ctx, pool, "w", time.Hour, lease, &locks.LeaseOptions{Wait: true})
		},
		`acquire mutex "m"`: func(ctx context.Context) error {
			_, err := locks.NewDurableMutex(pool, "me").Acquire(ctx, "m")
			return err
		},
		`acquire throttle "r"`: func(ctx context.Context) error {
			_, err := locks.NewThrottle(pool, "why").Acquire(ctx, "r")
			return err
		},
	} {
		bound := 30 * time.Millisecond
		if strings.Contains(want, `"w"`) {
			bound = 2 * time.Second // it listens before it asks, on a connection of its own
		}
		bounded, cancel := context.WithTimeout(ctx, bound)
		err := call(bounded)
		cancel()
		if want := "locks: " + want + ": no connection of the pool, 2 of 2 are in use: "; !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	// A key that is taken is to blame.
	s := e.session(t)
	s.exec("begin")
	s.exec("select lock.exclusive('customer:7')")
	must(t, e.pool.Ping(ctx)) // opening a connection takes its time, too
	bounded, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	err := locks.Exclusive(bounded, e.pool, "customer:7", never)
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "no connection") {
		t.Error(err)
	}
	// Nothing that was taken for a call stays taken.
	if got := pool.Stat().AcquiredConns(); got != 2 {
		t.Errorf("%d connections are in use", got)
	}
}

// ofTransaction are the methods of db.Queries that hold something until the transaction ends, and nothing on a pool.
var ofTransaction = strings.Fields("Exclusive ExclusiveName Shared SharedName TryExclusive TryExclusiveName TryShared TrySharedName ExclusiveAll TryAll AssertLease")

var ofTransactionSQL = regexp.MustCompile(`lock\.(try_)?(exclusive|shared|all)|lock\.(exclusive_all|assert_lease)`)

// outsideTransaction finds in a file the calls that hold nothing: a method of those on what is not db.New(tx), and SQL on a pool.
// It goes by names: a transaction is called tx, a pool pool.
func outsideTransaction(t *testing.T, name, text string) (wrong []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, 0)
	must(t, err)
	last := func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.Ident:
			return e.Name
		case *ast.SelectorExpr:
			return e.Sel.Name
		}
		return ""
	}
	// onTx says that an expression is db.New(tx), or a variable that was made so.
	var onTx func(e ast.Expr) bool
	onTx = func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.CallExpr:
			return last(e.Fun) == "New" && len(e.Args) == 1 && last(e.Args[0]) == "tx"
		case *ast.Ident:
			if e.Obj == nil {
				return false
			}
			assign, ok := e.Obj.Decl.(*ast.AssignStmt)
			return ok && len(assign.Rhs) == 1 && onTx(assign.Rhs[0])
		}
		return false
	}
	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		fun := call.Fun
		if generic, ok := fun.(*ast.IndexExpr); ok {
			fun = generic.X
		}
		method, ok := fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		bad := slices.Contains(ofTransaction, method.Sel.Name) && last(method.X) != "locks" && !onTx(method.X)
		if slices.Contains([]string{"Exec", "Query", "QueryRow"}, method.Sel.Name) && strings.Contains(strings.ToLower(last(method.X)), "pool") {
			for _, argument := range call.Args {
				literal, ok := argument.(*ast.BasicLit)
				bad = bad || ok && ofTransactionSQL.MatchString(literal.Value)
			}
		}
		if bad {
			wrong = append(wrong, files.Position(call.Pos()).String()+": "+method.Sel.Name+" holds nothing outside a transaction")
		}
		return true
	})
	return wrong
}

// TestExamplesHoldWhatTheyLock is for README, pages, examples and demo.
func TestExamplesHoldWhatTheyLock(t *testing.T) {
	t.Parallel()
	locked := 0
	check := func(name, text string) {
		for _, method := range ofTransaction {
			locked += strings.Count(text, "."+method+"(")
		}
		for _, wrong := range outsideTransaction(t, name, text) {
			t.Error(wrong)
		}
	}
	check("docs", docsGo(docsBlocks(t, "go")))
	for _, pattern := range []string{"example_*_test.go", "examples/*/*.go", "tests/cmd/demo/*.go", "tests/orm/*.go"} {
		paths, err := filepath.Glob(filepath.Join(root(t), pattern))
		must(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			must(t, err)
			check(path, string(text))
		}
	}
	if locked < 5 {
		t.Errorf("only %d calls were seen", locked)
	}
	for body, want := range map[string]int{
		"db.New(pool).TryExclusive(ctx, 1)":                  1,
		"q := db.New(pool); q.SharedName(ctx, `a`)":          1,
		"pool.Exec(ctx, `select lock.try_exclusive(1)`)":     1,
		"s.pool.QueryRow(ctx, `select lock.try_all('{a}')`)": 1,
		"db.New(tx).Exclusive(ctx, 1)":                       0,
		"q := db.New(tx); q.Exclusive(ctx, 1)":               0,
		"locks.Exclusive(ctx, pool, 1, nil)":                 0,
		"locks.Exclusive[int](ctx, pool, 1, nil)":            0,
		"tx.Exec(ctx, `select lock.exclusive(1)`)":           0,
		"pool.Exec(ctx, `select lock.acquire_mutex('a')`)":   0,
	} {
		if wrong := outsideTransaction(t, "snippet", "package p\nfunc _() { "+body+" }"); len(wrong) != want {
			t.Errorf("%s: found %q", body, wrong)
		}
	}
}

// TestExamples runs the examples of package locks, which has no server of its own.
func TestExamples(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is not installed")
	}
	// compile makes a program of the package's tests, with one more file.
	compile := func(t *testing.T, more string) string {
		t.Helper()
		dir := t.TempDir()
		args := []string{"test", "-c", "-o", filepath.Join(dir, "examples")}
		if more != "" {
			added := filepath.Join(dir, "added.go")
			must(t, os.WriteFile(added, []byte(more), 0o644))
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root(t), "example_added_test.go"): added}})
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
			args = append(args, "-overlay", filepath.Join(dir, "overlay.json"))
		}
		cmd := exec.Command("go", append(args, ".")...)
		cmd.Dir = root(t)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return filepath.Join(dir, "examples")
	}
	run := func(e *env, program string) (string, error) {
		cmd := exec.Command(program, "-test.v", "-test.timeout=2m")
		cmd.Env = append(os.Environ(), "LOCKS_EXAMPLE_URL="+e.owner)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Run("print what they say", func(t *testing.T) {
		program := compile(t, "")
		eachEngine(t, func(t *testing.T, e *env) {
			out, err := run(e, program)
			if passed := strings.Count(out, "--- PASS: Example"); err != nil || passed < 16 {
				t.Errorf("%v, %d passed\n%s", err, passed, out)
			}
		})
	})
	t.Run("a wrong output is noticed", func(t *testing.T) {
		t.Parallel()
		program := compile(t, `package locks_test

import "fmt"

func Example_wrong() {
	fmt.Println(pool.Ping(ctx))
	// Output: something else
}
`)
		out, err := run(open(t, engines()[0]), program)
		if err == nil || !strings.Contains(out, "--- FAIL: Example_wrong") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestEveryFunctionHasAnExample counts a method of a type as shown by its own examples or by the type's constructor, and asks for an
// output, without which an example is compiled and not run.
func TestEveryFunctionHasAnExample(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join(root(t), "*.go"))
	must(t, err)
	files := token.NewFileSet()
	var tests, sources []*ast.File
	for _, path := range paths {
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		must(t, err)
		if strings.HasSuffix(path, "_test.go") {
			tests = append(tests, file)
		} else {
			sources = append(sources, file)
		}
	}
	shown := map[string]bool{}
	for _, example := range doc.Examples(tests...) {
		if example.Output == "" && !example.EmptyOutput {
			t.Errorf("the example %s has no output", example.Name)
		}
		name, _, _ := strings.Cut(example.Name, "_")
		shown[name] = true
	}
	for _, file := range sources {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.IsExported() && !shown[f.Name.Name] {
				t.Errorf("%s has no example", f.Name.Name)
			}
		}
	}
	if len(shown) < 10 {
		t.Errorf("only %d examples were seen", len(shown))
	}
}
