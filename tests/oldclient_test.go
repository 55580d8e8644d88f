package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	old "github.com/seed4787c507/locks/tests/testdata/oldclient"
	"github.com/seed4787c507/locks/tests/testdata/oldclient/calls"
)

var errSpy = errors.New("the spy answers nothing")

// A spy is a connection of the old client that only notes what it is asked for, and where the answer is to go.
type spy struct {
	pgx.Rows
	sql     string
	args    []any
	targets []any
}

func (s *spy) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	s.sql, s.args = sql, args
	return pgconn.CommandTag{}, errSpy
}

func (s *spy) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	s.sql, s.args = sql, args
	return s, nil
}

func (s *spy) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	s.sql, s.args = sql, args
	return s
}

func (s *spy) Next() bool { return true }
func (s *spy) Close()     {}
func (s *spy) Scan(targets ...any) error {
	s.targets = targets
	return errSpy
}

// plausible fills an argument with something, so that a call gets as far as it can.
func plausible(value reflect.Value, name string) {
	switch value.Interface().(type) {
	case time.Duration:
		value.SetInt(int64(time.Second))
		return
	case pgtype.UUID:
		value.Set(reflect.ValueOf(pgtype.UUID{Bytes: [16]byte{1}, Valid: true}))
		return
	case pgtype.Interval:
		value.Set(reflect.ValueOf(pgtype.Interval{Microseconds: 1000000, Valid: true}))
		return
	case time.Time:
		value.Set(reflect.ValueOf(time.Now()))
		return
	case json.RawMessage:
		value.SetBytes([]byte("{}"))
		return
	}
	switch value.Kind() {
	case reflect.String:
		text := "a"
		if known, ok := map[string]string{"Status": "done", "Statuses": "new", "RequestType": "update", "Channel": "lock_task", "function": "capture"}[name]; ok {
			text = known
		}
		value.SetString(text)
	case reflect.Int32, reflect.Int64:
		value.SetInt(1)
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		plausible(value.Elem(), name)
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		plausible(value.Index(0), name)
	case reflect.Struct:
		for i := range value.NumField() {
			plausible(value.Field(i), value.Type().Field(i).Name)
		}
	}
}

// oldTypes are what the old client takes columns for. Others (a bigint in an int32, a timestamp in a time.Time) would scan, and be wrong.
var oldTypes = map[reflect.Type]string{
	reflect.TypeFor[int32]():              "integer",
	reflect.TypeFor[int64]():              "bigint",
	reflect.TypeFor[bool]():               "boolean",
	reflect.TypeFor[string]():             "text",
	reflect.TypeFor[[]int32]():            "integer[]",
	reflect.TypeFor[time.Time]():          "timestamp with time zone",
	reflect.TypeFor[pgtype.Timestamptz](): "timestamp with time zone",
	reflect.TypeFor[time.Duration]():      "interval",
	reflect.TypeFor[pgtype.Interval]():    "interval",
	reflect.TypeFor[json.RawMessage]():    "jsonb",
	reflect.TypeFor[pgtype.UUID]():        "uuid",
}

// oldClient lets the old client's every method run on a schema, and says what it can no longer do.
func oldClient(t *testing.T, e *env) (wrong []string, methods, answered int) {
	t.Helper()
	s := e.sessionAs(t, e.owner)
	e.sessionAs(t, e.super).exec("create table public.a (a integer); alter table public.a owner to locks_owner") // the table "a" that TrackChanges is called for
	var all []reflect.Method
	for _, queries := range []reflect.Type{reflect.TypeFor[*old.Queries](), reflect.TypeFor[*calls.Queries]()} {
		for m := range queries.NumMethod() {
			all = append(all, queries.Method(m))
		}
	}
	for _, method := range all {
		if method.Name == "WithTx" {
			continue
		}
		methods++
		complain := func(format string, args ...any) {
			wrong = append(wrong, method.Name+": "+fmt.Sprintf(format, args...))
		}
		call := func(conn old.DBTX) error {
			in := []reflect.Value{reflect.ValueOf(old.New(conn)), reflect.ValueOf(ctx)}
			if method.Type.In(0) != in[0].Type() {
				in[0] = reflect.ValueOf(calls.New(conn))
			}
			for i := 2; i < method.Type.NumIn(); i++ {
				argument := reflect.New(method.Type.In(i)).Elem()
				name := ""
				if method.Name == "HelpFunction" {
					name = "function"
				}
				plausible(argument, name)
				in = append(in, argument)
			}
			out := method.Func.Call(in)
			err, _ := out[len(out)-1].Interface().(error)
			return err
		}
		seen := &spy{}
		call(seen)
		description, err := s.conn.Prepare(ctx, method.Name, seen.sql)
		if err != nil {
			complain("%v", err)
			continue
		}
		if len(description.ParamOIDs) != len(seen.args) {
			complain("%d arguments, and the server takes %d", len(seen.args), len(description.ParamOIDs))
			continue
		}
		for i, arg := range seen.args {
			if s.conn.TypeMap().PlanEncode(description.ParamOIDs[i], pgx.BinaryFormatCode, arg) == nil && s.conn.TypeMap().PlanEncode(description.ParamOIDs[i], pgx.TextFormatCode, arg) == nil {
				complain("argument %d is a %T, and the server takes %d", i+1, arg, description.ParamOIDs[i])
			}
		}
		if n := len(seen.targets); n > 0 && n != len(description.Fields) {
			complain("%d columns are read, and the server sends %d", n, len(description.Fields))
			continue
		}
		for i, target := range seen.targets {
			of := reflect.TypeOf(target).Elem()
			for of.Kind() == reflect.Pointer {
				of = of.Elem()
			}
			field := description.Fields[i]
			kind := get[string](s, "select case when typtype = 'e' then 'text' when oid = 'name'::regtype then 'text' else oid::regtype::text end from pg_type where oid = $1", field.DataTypeOID)
			want, ok := oldTypes[of]
			if !ok && of.Kind() == reflect.String {
				want, ok = "text", true
			}
			if !ok || kind != want {
				complain("column %s is read as a %v, and is a %s", field.Name, of, kind)
			}
		}
		// And now in earnest: what it finds wrong with its arguments is an answer, too.
		err = call(s.conn)
		if class := code(err); err == nil || errors.Is(err, pgx.ErrNoRows) {
			answered++
		} else if class == "" || slices.Contains([]string{"42883", "42703", "42P01", "42804", "42725", "42601", "42702"}, class) || strings.HasPrefix(class, "XX") {
			complain("%v", err)
		}
	}
	return wrong, methods, answered
}

// A program that was built with the last release's db package works on the schema as it is now.
func TestOldClient(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		wrong, methods, answered := oldClient(t, e)
		for _, line := range wrong {
			t.Error(line)
		}
		t.Logf("%d methods, %d of them answered", methods, answered)
		if methods < 60 || answered < methods*3/4 {
			t.Errorf("of %d methods %d answered", methods, answered)
		}
	})
	for what, c := range map[string]struct{ mutation, want string }{
		"a function that is gone":            {"drop function lock.release_mutex(text, text)", "ReleaseMutex: ERROR: function lock.release_mutex"},
		"an argument of another name":        {"drop function lock.key(text) cascade; create function lock.key(text text) returns bigint language sql as 'select 1::bigint'", "Key: ERROR: function lock.key(name => text) does not exist"},
		"an argument more without a default": {"drop function lock.create_mutex(text); create function lock.create_mutex(task_id text, b integer) returns boolean language sql as 'select true'", "CreateMutex: ERROR: function"},
		"an overload that is ambiguous":      {"create function lock.release_mutex(task_id text, owner text default null, b integer default 1) returns boolean language sql as 'select true'", "ReleaseMutex: ERROR: function lock.release_mutex(task_id => text, owner => text) is not unique"},
		"another type of a result":           {"drop function lock.create_mutex(text); create function lock.create_mutex(task_id text) returns text language sql as 'select ''true'''", "CreateMutex: column created is read as a bool, and is a text"},
		"a wider column":                     {"drop view lock.dead_letter; drop view lock.queue_depth; alter table lock.task alter column retries_left type bigint", "Capture: column retries_left is read as a int32, and is a bigint"},
		"a column of another name":           {"alter table lock.lease rename column renewed_at to renewed", "column \"renewed_at\" does not exist"},
		"a view's column that is gone":       {"drop view lock.dead_letter; create view lock.dead_letter as select queue_id, id, status, attempt, tries, owner, message, payload, created_at from lock.task", "DeadLetters: ERROR: column \"changed_at\""},
		"a function that fails at run time":  {"alter function lock_internal.check_id(text, text) rename to planted", "CreateMutex: ERROR: function lock_internal.check_id"},
	} {
		t.Run("sees "+what, func(t *testing.T) {
			t.Parallel()
			e := open(t, engines()[0])
			s := e.sessionAs(t, e.owner)
			for _, sql := range strings.Split(c.mutation, "; ") {
				s.exec(sql)
			}
			wrong, _, _ := oldClient(t, e)
			if !strings.Contains(strings.Join(wrong, "\n"), c.want) {
				t.Errorf("got %q", wrong)
			}
		})
	}
	t.Run("does not mind what may be added", func(t *testing.T) {
		t.Parallel()
		e := open(t, engines()[0])
		s := e.sessionAs(t, e.owner)
		for _, sql := range []string{
			"alter table lock.task add planted integer", "alter table lock.mutex add planted text not null default ''",
			"create function lock.planted() returns integer language sql as 'select 1'",
			"do $$ begin execute 'create or replace view lock.queue_depth as select depth.*, 1 as planted from (' || rtrim(pg_get_viewdef('lock.queue_depth'), ';') || ') as depth'; end $$",
		} {
			s.exec(sql)
		}
		if wrong, _, _ := oldClient(t, e); len(wrong) > 0 {
			t.Errorf("got %q", wrong)
		}
	})
}

// The frozen copy is what the newest release before this commit had, unless nothing is released, or no tags are at hand.
func TestOldClientIsTheNewestRelease(t *testing.T) {
	t.Parallel()
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root(t)}, args...)...).Output()
		return string(out), err
	}
	tag, err := git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
	if err != nil {
		t.Skip("no release is known here")
	}
	tag = strings.TrimSpace(tag)
	for copied, dir := range map[string]string{"": "db/", "calls/": "internal/calls/"} {
		frozen, err := filepath.Glob("testdata/oldclient/" + copied + "*.go")
		must(t, err)
		names, err := git("ls-tree", "--name-only", tag, dir)
		must(t, err)
		if n := len(strings.Fields(names)); n != len(frozen) {
			t.Errorf("%d files, and %s has %d: run make freeze-client FROM=%s", len(frozen), tag, n, tag)
		}
		for _, path := range frozen {
			text, err := os.ReadFile(path)
			must(t, err)
			if released, err := git("show", tag+":"+dir+filepath.Base(path)); err != nil || released != string(text) {
				t.Errorf("%s is not what %s has: run make freeze-client FROM=%s", path, tag, tag)
			}
		}
	}
}
