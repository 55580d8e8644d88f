//go:build cgo

package yugabytelint_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/seed4787c507/locks/tests/yugabytelint"
)

// allowed is what does not run on YugabyteDB and need not: file (or its last element) and rule, with the reason.
var allowed = map[string]string{
	"track_changes.sql transition table": "it makes them where lock.engine() is not row",
	"refuse_loss.sql lock table":         "it locks where version() is not YugabyteDB's",
}

func TestLintYugabyte(t *testing.T) {
	files, err := yugabytelint.Project("../..")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	bodies := 0
	for _, finding := range yugabytelint.Check(files) {
		excused := false
		for key := range allowed {
			name, rule, _ := strings.Cut(key, " ")
			if rule == finding.Rule && (strings.HasSuffix(finding.Path, name) || strings.Contains(finding.Path, "/schema/") && inFunction(files, finding, name)) {
				excused, used[key] = true, true
			}
		}
		if !excused {
			t.Errorf("%s (%s)", finding, yugabytelint.Rules[finding.Rule])
		}
	}
	for key := range allowed {
		if !used[key] {
			t.Errorf("%q is allowed and does not occur", key)
		}
	}
	for _, file := range files {
		bodies += strings.Count(file.Text, "$$;")
	}
	if bodies < 50 {
		t.Errorf("only %d bodies were read", bodies)
	}
	t.Logf("%d files, %d bodies", len(files), bodies)
}

// inFunction says whether a migration's finding is in the frozen copy of a function file.
func inFunction(files []yugabytelint.File, finding yugabytelint.Finding, name string) bool {
	for _, file := range files {
		if file.Path != finding.Path {
			continue
		}
		before := strings.Join(strings.Split(file.Text, "\n")[:finding.Line], "\n")
		marker := before[strings.LastIndex(before, "-- file: ")+1:]
		first, _, _ := strings.Cut(marker, "\n")
		return strings.HasSuffix(first, "/"+name)
	}
	return false
}

// Every rule fires on what it is for, in a file, in a body, or in dynamic SQL, and not on its neighbour that is right.
func TestLintYugabyteRules(t *testing.T) {
	function := func(body string) string {
		return "create or replace function lock.f() returns void language plpgsql as $$ begin " + body + " end; $$;"
	}
	planted := map[string][]string{
		"syntax":              {"create table if not exists t (a int, primary key (a asc))", "selekt 1", function("perfrom 1;"), function("perform from from t;")},
		"unreadable":          {function("execute some_variable;"), function("execute format('alter %s', 1);")},
		"newer syntax":        {"merge into t using s on t.a = s.a when matched then do nothing", function("perform json_object('a': 1);")},
		"unsupported":         {"alter system set a = 1", "cluster t", "load 'x'", "alter table t alter column a set (n_distinct = 1)", "alter table t set schema s", "alter type c add attribute a int", "drop index concurrently if exists i", function("execute 'alter system reset all';"), "drop transform if exists for int language plpgsql"},
		"drop several":        {"drop view if exists a, b", "drop function if exists f(), g()", function("drop sequence a, b;")},
		"schema elements":     {"create schema s create table t (a int)"},
		"transition table":    {function("execute format('create trigger x after insert on %s referencing new table as n for each statement execute function f%s', a, b);"), "create or replace trigger x after insert on t referencing new table as n for each statement execute function f()"},
		"constraint trigger":  {"create constraint trigger x after insert on t for each row execute function f()"},
		"exclude":             {"create table if not exists t (a int, exclude using gist (a with =))"},
		"inherits":            {"create table if not exists t () inherits (s)"},
		"deferrable":          {"create table if not exists t (a int, unique (a) deferrable)", "create table if not exists t (a int primary key deferrable)"},
		"access method":       {"create index if not exists i on t using brin (a)"},
		"index storage":       {"create index if not exists i on t (a) with (fillfactor = 50)", "create table if not exists t (a int, primary key (a) with (fillfactor = 50))"},
		"key type":            {"create table if not exists t (a interval primary key)", "create table if not exists t (a text[], constraint t_key unique (a))", "create table if not exists t (a jsonb); create index if not exists i on t (a)", "create index if not exists i on t ((a::inet))", "create table if not exists t (); alter table t add column if not exists a int4range; create index if not exists i on t (a)"},
		"range index":         {"create table if not exists t (a timestamptz, b timestamptz); create index if not exists i on t (a)"},
		"system column":       {"delete from t where ctid = '(0,1)'", function("perform xmin from t;"), function("declare i record; begin for i in select t.cmax from t loop null; end loop; end;"), function("execute format('select xmax from %I', 't');"), "create or replace function f() returns void language sql as $$ select ctid from t $$"},
		"lock table":          {"lock table t", function("lock t in share mode;")},
		"collate":             {"create table if not exists t (a text collate \"en_US\")"},
		"type reference":      {"create or replace function f(a t.b%type) returns void language sql as ''", "create or replace function f() returns t.b%type language sql as ''"},
		"alter function":      {"alter function f() security definer", "alter function f() rename to g"},
		"two-phase commit":    {"prepare transaction 'x'"},
		"isolation statement": {"set transaction isolation level serializable"},
		"current of":          {function("delete from t where current of c;")},
		"when others":         {function("begin null; exception when others then null; end;"), function("null; exception when unique_violation or others then raise notice 'x';")},
		"caught conflict":     {function("null; exception when serialization_failure then null;"), function("null; exception when sqlstate '40001' then null;")},
		"unguarded setting":   {"set local yb_disable_transactional_writes = on", function("perform set_config('yb_disable_transactional_writes', 'on', true);")},
		"unguarded notify":    {"notify x", function("perform pg_notify('x', '');"), "listen x"},
		"blocking pids":       {"select pg_blocking_pids(1)", function("if exists (select from unnest(pg_blocking_pids(1))) then null; end if;")},
		"transaction id":      {"select txid_current()", function("perform pg_current_xact_id();")},
		"hashed comparison":   {"create table if not exists t (a int, b int, c int, primary key (a, b)); select from t where (a, b) > (1, 2)", "create index if not exists i on t (a, b); select from t where c = 1 and (t.a, b) <= (1, 2)"},
		"skip locked join":    {"select from a join b using (c) for update skip locked", function("perform from a, b for share skip locked;")},
		"not idempotent":      {"create table t (a int)", "create index i on t (a)", "create view v as select 1", "drop table t", "insert into t values (1)", "create type e as enum ('a')", "alter table t add column a int", "alter table t add constraint c check (true)", "create schema s", "create function f() returns void language sql as ''", "create trigger x after insert on t for each row execute function f()", "alter table t rename to u", "alter type e add value 'x'"},
	}
	for _, rule := range slices.Sorted(maps.Keys(yugabytelint.Rules)) {
		t.Run(rule, func(t *testing.T) {
			if len(planted[rule]) == 0 {
				t.Fatal("nothing is planted for this rule")
			}
			for _, text := range planted[rule] {
				found := false
				for _, finding := range yugabytelint.Check([]yugabytelint.File{{Path: "planted.sql", Text: text}}) {
					found = found || finding.Rule == rule
				}
				if !found {
					t.Errorf("not seen: %s", text)
				}
			}
		})
	}
	t.Run("and what is right passes", func(t *testing.T) {
		for _, text := range []string{
			"create table if not exists t (a bigint primary key, b interval, c jsonb); create index if not exists i on t (a asc) include (b) where a > 0",
			"create table if not exists t (q text, a timestamptz); create index if not exists i on t (a asc); create index if not exists j on t (q, a)",
			"create table if not exists t (c jsonb); create index if not exists i on t using gin (c)",
			"create table if not exists t (a int); create table if not exists u (a int references t (a) deferrable); drop table if exists t, u",
			"create or replace trigger x after insert or update of a on t for each row when (new.a > 0) execute function f()",
			function("begin null; exception when others then raise; end;"),
			function("null; exception when lock_not_available then null;"),
			function("if current_setting('yb_x', true) is not null then perform set_config('yb_x', 'on', true); end if;"),
			function("if current_setting('yb_enable_listen_notify', true) is distinct from 'off' then perform pg_notify('x', ''); end if;"),
			function("if not lock_internal.is_yugabyte() then execute 'select from t where ctid = $1' using a; end if;"),
			function("perform pg_blocking_pids(1) where lock_internal.is_advisory();"),
			function("execute format('grant select on %s to %I', a, b); execute 'select ' || quote_literal(c);"),
			"create or replace function f() returns setof lock.t language plpgsql as $$ declare\n  x  lock.t;\nbegin select 1 into x.a; x.a := 2; return next x; end $$",
			"select from a join b using (c) for update of a skip locked",
			"do $$ begin create type e as enum ('a'); end $$",
			"create table if not exists t (a text collate \"C\")",
			"lock table t in access share mode",
		} {
			for _, finding := range yugabytelint.Check([]yugabytelint.File{{Path: "right.sql", Text: text}}) {
				t.Errorf("%s: %s", finding, text)
			}
		}
	})
}
