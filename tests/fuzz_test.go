package tests

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// FuzzFunctions calls every function of schema lock, as the catalogue has them, with what people would not pass. Whatever comes: the error is
// one that the function's comment names, or a general one; the connection lives; nothing is held and no setting changed afterwards;
// lock.check() finds what it found before.
//
// function is a signature (any other text stands for one, too). Without choices every argument takes every value of its type in turn, the
// others being such as the function accepts. Otherwise the first choice decides about the transaction, and those that follow about
// its calls: a function behind the first, then a value for each argument. literal is one of the values, of every type.
func FuzzFunctions(f *testing.F) {
	if target.yugabyte {
		f.Skip("not on YugabyteDB: each call would take a tenth of a second")
	}
	var free = make(chan *fuzzed, 4)
	for n := range cap(free) {
		free <- newFuzzed(f, engines()[n%len(engines())])
	}
	one := <-free
	for _, function := range one.functions {
		f.Add(function.signature, []byte{}, "")
	}
	f.Add("lock.enqueue(text,text,jsonb,text)", []byte("\x06 some calls in a transaction that is kept"), "x")
	free <- one
	f.Fuzz(func(t *testing.T, function string, choices []byte, literal string) {
		t.Parallel()
		z := <-free
		defer func() { free <- z }()
		z.run(t, function, choices, literal)
	})
}

// fuzzGeneral are the errors that any call may end with, whatever it is.
var fuzzGeneral = map[string]string{
	"22P02": "a text that is no value of the argument's type",
	"22007": "a text that is no interval or time",
	"22008": "an interval or time that is out of range",
	"22015": "the same, of PostgreSQL 14",
	"22003": "a number that is out of range",
	"22021": "a text that is not UTF-8, or has a zero byte",
	"22P05": "jsonb with a zero character",
	"54000": "a value that is too large",
	"54001": "jsonb that is nested too deeply",
	"25006": "a read-only transaction",
	"40001": "a conflict under REPEATABLE READ or SERIALIZABLE",
	"53200": "the lock table is full",
	"57014": "statement_timeout, or cancelled",
	"42501": "no right to it",
}

type fuzzArgument struct{ name, sort string } // sort: the type

type fuzzFunction struct {
	signature     string
	call          string // with one parameter per argument
	arguments     []fuzzArgument
	errors        map[string]bool
	changesRights bool
}

// noTable are the errors of a text that is no regclass.
var noTable = map[string]bool{"42P01": true, "42602": true, "0A000": true, "3F000": true}

func (f fuzzFunction) takesTable() bool {
	return slices.ContainsFunc(f.arguments, func(a fuzzArgument) bool { return a.sort == "regclass" })
}

// A fuzzed is a database with something of everything in it.
type fuzzed struct {
	engine    string
	e         *env
	functions []fuzzFunction
	values    map[string][][]byte // by type; the first is a good one, a nil is null
	findings  string
	calls     int
}

var sqlstate = regexp.MustCompile(`\b(?:[02345][0-9A-Z][0-9A-Z]{3}|(?:P0|LK)[0-9A-Z]{3})\b`)

// fuzzFindings is what check() says, without what other tests of this server bring about.
const fuzzFindings = "select coalesce(string_agg(severity || ' ' || subject || ' ' || finding, e'\\n' order by subject, finding), '') from lock.check()"

func newFuzzed(t testing.TB, engine string) *fuzzed {
	t.Helper()
	z := &fuzzed{engine: engine, e: open(t, engine), values: map[string][][]byte{}}
	z.e.pool.Close()
	z.fill(t)
	rows, err := z.e.admin.Query(ctx, `select p.oid::regprocedure::text, p.proname::text, p.proretset,
			coalesce(p.proargnames[1:p.pronargs], '{}'), array(select format_type(t, null) from unnest(p.proargtypes) with ordinality as u (t, n) order by n),
			(select string_agg(obj_description(same.oid, 'pg_proc'), ' ') from pg_proc same where same.pronamespace = p.pronamespace and same.proname = p.proname)
		from pg_proc p where p.pronamespace = 'lock'::regnamespace and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype) order by 1`)
	must(t, err)
	comments := map[string]string{}
	var names []string
	for rows.Next() {
		var function fuzzFunction
		var name, comment string
		var set bool
		var arguments, sorts []string
		must(t, rows.Scan(&function.signature, &name, &set, &arguments, &sorts, &comment))
		comments[name] = comment
		names = append(names, name)
		var passed []string
		for i, sort := range sorts {
			function.arguments = append(function.arguments, fuzzArgument{arguments[i], sort})
			passed = append(passed, fmt.Sprintf("%s => $%d::%s", arguments[i], i+1, sort))
			z.values[sort] = nil
			function.changesRights = function.changesRights || sort == "name" && arguments[i] == "role"
		}
		function.call = fmt.Sprintf("select * from lock.%q(%s)", name, strings.Join(passed, ", "))
		z.functions = append(z.functions, function)
	}
	must(t, rows.Err())
	if len(z.functions) < 60 {
		t.Fatalf("only %d functions", len(z.functions))
	}
	// A comment may say: those of lock.other.
	mention := regexp.MustCompile(`\block\.([a-z_]+)`)
	for i, name := range names {
		z.functions[i].errors = map[string]bool{}
		seen := map[string]bool{name: true}
		for todo := []string{name}; len(todo) > 0; todo = todo[1:] {
			for _, state := range sqlstate.FindAllString(comments[todo[0]], -1) {
				z.functions[i].errors[state] = true
			}
			for _, other := range mention.FindAllStringSubmatch(comments[todo[0]], -1) {
				if comments[other[1]] != "" && !seen[other[1]] {
					seen[other[1]] = true
					todo = append(todo, other[1])
				}
			}
		}
	}
	for sort := range z.values {
		z.values[sort] = z.of(t, sort)
	}
	owner, err := pgx.Connect(ctx, z.e.owner)
	must(t, err)
	defer owner.Close(ctx)
	must(t, owner.QueryRow(ctx, fuzzFindings).Scan(&z.findings))
	return z
}

const fuzzProcess = "11111111-2222-3333-4444-555555555555"

// fill makes one of everything, named fuzz.
func (z *fuzzed) fill(t testing.TB) {
	t.Helper()
	owner, err := pgx.Connect(ctx, z.e.owner)
	must(t, err)
	defer owner.Close(ctx)
	for _, sql := range []string{
		"create table public.fuzz (id bigint primary key, note text)",
		"create view public.fuzz_view as select * from public.fuzz",
		"select lock.create_mutex('fuzz'), lock.acquire_mutex('fuzz', 'fuzz')",
		"select lock.create_timeout('fuzz', '1 hour'), lock.acquire_timeout('fuzz')",
		"select lock.acquire_time_slot('fuzz', '1 hour')",
		"select lock.create_throttled_resource('fuzz', '1 hour', 2), lock.lock_throttled_resource('fuzz', 'fuzz')",
		"select lock.take('fuzz', 1, '1 hour')",
		"select token from lock.acquire_lease('fuzz', 'fuzz', '1 hour', 2)",
		"select lock.create_task('fuzz', payload => '{}'), lock.create_task('waits', available_at => '2999-01-01'), lock.create_task('next')",
		"select attempt from lock.capture(1)",
		"select lock.enqueue('create', 'fuzz'), lock.enqueue('update', 'fuzz'), lock.enqueue('update', 'b')",
		"begin; select request_id from lock.capture_request('" + fuzzProcess + "'); select lock.settle_request('" + fuzzProcess + "', 'error', 'fuzz'); commit",
		"select lock.pause_queue('task', 'paused', 'fuzz')",
	} {
		if _, err := owner.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// of are values of a type.
func (z *fuzzed) of(t testing.TB, sort string) [][]byte {
	t.Helper()
	element, array := strings.CutSuffix(sort, "[]")
	var texts []string
	switch element {
	case "text":
		texts = []string{"fuzz", "", " ", "missing", `quote ' " \ ; -- %s %I $$`, "zero \x00 byte", "no \xff\xfe UTF-8", "ä€\U0001F701", "two\nlines\tand a tab", strings.Repeat("x", 1024),
			strings.Repeat("x", 1025), "default", "paused", "task", "request", "new", "done", "failed", "in_progress", "retry", "dead", "complete", "error", "create", "update", "lock_task", "lock_request", "acquire_mutex", "NULL", "{}"}
		if !array {
			texts = append(texts, strings.Repeat("y", 10<<20))
		}
	case "name":
		texts = []string{"locks_app", "", "id", "missing", "public", "postgres", "pg_database_owner", "none", `odd " '`, strings.Repeat("x", 200), "zero \x00 byte"}
	case "bigint", "integer":
		texts = []string{"1", "0", "-1", "2", "3", "10001", "2147483647", "-2147483648", "2147483648", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e3", ""}
	case "interval":
		texts = []string{"1 hour", "0", "1 microsecond", "-1 microsecond", "0.3 microseconds", "1 month", "-1 month", "1 month -30 days", "1 month -1 hour", "30 days", "100 years", "178000000 years", "-178000000 years",
			"2147483647 days", "2562047788 hours", "-2562047788 hours", "infinity", "-infinity", "x"}
	case "timestamp with time zone":
		texts = []string{"now", "infinity", "-infinity", "epoch", "2999-01-01", "4713-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "2026-11-22 12:00:00.0000001", "x"}
	case "boolean":
		texts = []string{"false", "true", "x"}
	case "uuid":
		texts = []string{fuzzProcess, "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "x"}
	case "jsonb":
		texts = []string{`{"a": [1, null, "ä"]}`, "null", "{}", "[]", `"x"`, "1e1000", `"\u0000"`, "{", strings.Repeat("[", 500) + strings.Repeat("]", 500), strings.Repeat("[", 100000) + strings.Repeat("]", 100000)}
		if !array {
			texts = append(texts, `"`+strings.Repeat("z", 10<<20)+`"`)
		}
	case "regclass":
		texts = []string{"public.fuzz", "public.fuzz_view", "pg_class", "lock.task", "lock.finding", "pg_class_oid_index", "0", "99999999", "missing", "x.y.z", ""}
	default:
		rows, err := z.e.admin.Query(ctx, "select enumlabel::text from pg_enum where enumtypid = to_regtype($1) order by enumsortorder", element)
		must(t, err)
		texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		if len(texts) == 0 {
			t.Fatalf("no values of type %s are known here: add some", sort)
		}
		texts = append(texts, "x")
	}
	var values [][]byte
	if !array {
		for _, text := range texts {
			values = append(values, []byte(text))
		}
		return append(values, nil)
	}
	quote := func(text string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	}
	good, all, many := quote(texts[0]), []string{}, []string{}
	for _, text := range texts {
		all = append(all, quote(text))
		values = append(values, []byte("{"+quote(text)+"}"))
	}
	for n := range 1001 { // more would fill the lock table
		text := texts[0]
		if element == "text" {
			text = fmt.Sprint("fuzz ", n)
		}
		many = append(many, quote(text))
	}
	huge := "{" + quote(strings.Repeat("y", 10<<20)) + "}"
	for _, text := range []string{
		"{}", "{NULL}", "{" + good + ",NULL}", "{" + good + "," + good + "}", "{" + strings.Join(all, ",") + "}", "{" + strings.Join(many, ",") + "}",
		"{{" + good + "," + good + "},{" + good + ",NULL}}", "{{" + good + "}}", "[5:6]={" + good + "," + good + "}", "[-1:-1]={NULL}", "{", "{new,failed}", "{done}", "{new}", huge,
	} {
		values = append(values, []byte(text))
	}
	return append(values, nil)
}

// goodValue is one that a function accepts, mostly.
func (z *fuzzed) goodValue(argument fuzzArgument) []byte {
	switch argument.sort + " " + argument.name {
	case "text queue_id":
		return []byte("default")
	case "text status", "text[] results":
		if argument.sort == "text[]" {
			return []byte("{done}")
		}
		return []byte("complete")
	case "text[] statuses":
		return []byte("{new,failed}")
	case "text kind":
		return []byte("task")
	case "text channel":
		return []byte("lock_task")
	case "text request_type":
		return []byte("update")
	case "text function":
		return []byte("capture")
	case "name entity_column":
		return []byte("id")
	case "timestamp with time zone at", "timestamp with time zone since", "interval[] delays", "text[] messages", "jsonb[] payloads", "text message":
		return nil
	case "interval wait", "interval poll":
		return []byte("1 millisecond")
	case "interval delay":
		return []byte("0")
	}
	return z.values[argument.sort][0]
}

func (z *fuzzed) run(t *testing.T, name string, choices []byte, literal string) {
	function := slices.IndexFunc(z.functions, func(f fuzzFunction) bool { return f.signature == name })
	if function < 0 {
		sum := fnv.New32a()
		sum.Write([]byte(name))
		function = int(sum.Sum32() % uint32(len(z.functions)))
	}
	if len(choices) == 0 {
		for _, address := range []string{z.e.url, z.e.owner} {
			z.sweep(t, z.functions[function], address)
		}
		return
	}
	mode := choices[0]
	choices = choices[1:]
	next := func() int {
		if len(choices) == 0 {
			return 0
		}
		n := int(choices[0])
		choices = choices[1:]
		return n
	}
	address := z.e.url
	if mode&1 != 0 {
		address = z.e.owner
	}
	keep := mode&2 != 0
	level := []string{"read committed", "read committed", "repeatable read", "serializable"}[mode>>2&3]
	if mode>>4 == 15 {
		level += ", read only"
	}
	conn := z.begin(t, address, level)
	for n := 0; n == 0 || len(choices) > 0 && n < 20; n++ {
		if n > 0 {
			function = next() % len(z.functions)
		}
		f := z.functions[function]
		keep = keep && !f.changesRights
		var values [][]byte
		for _, argument := range f.arguments {
			all := z.values[argument.sort]
			switch n := next(); {
			case n < 64:
				values = append(values, z.goodValue(argument))
			case n < 96:
				values = append(values, []byte(literal))
			default:
				values = append(values, all[n%len(all)])
			}
		}
		z.call(t, conn, f, values)
	}
	end := "rollback"
	if keep {
		end = "commit"
	}
	z.end(t, conn, end)
}

// sweep gives each argument every value of its type, beside good ones.
func (z *fuzzed) sweep(t *testing.T, f fuzzFunction, address string) {
	conn := z.begin(t, address, "read committed")
	var good [][]byte
	for _, argument := range f.arguments {
		good = append(good, z.goodValue(argument))
	}
	z.call(t, conn, f, good)
	for i, argument := range f.arguments {
		for _, value := range z.values[argument.sort] {
			values := slices.Clone(good)
			values[i] = value
			z.call(t, conn, f, values)
		}
	}
	z.call(t, conn, f, make([][]byte, len(f.arguments)))
	z.end(t, conn, "rollback")
}

// begin opens a transaction. What waits, waits for a moment.
func (z *fuzzed) begin(t *testing.T, address, level string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, address)
	must(t, err)
	t.Cleanup(func() { conn.Close(ctx) })
	_, err = conn.Exec(ctx, "set statement_timeout = '200ms'; begin isolation level "+level+"; savepoint s", pgx.QueryExecModeSimpleProtocol)
	must(t, err)
	return conn
}

// call calls f, and undoes that when it failed.
func (z *fuzzed) call(t *testing.T, conn *pgx.Conn, f fuzzFunction, values [][]byte) {
	t.Helper()
	z.calls++
	err := conn.PgConn().ExecParams(ctx, f.call, values, nil, nil, nil).Read().Err
	ending := "release s; savepoint s"
	if err != nil {
		ending = "rollback to s"
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || fuzzGeneral[pg.Code] == "" && !f.errors[pg.Code] && !(f.takesTable() && noTable[pg.Code]) {
			t.Errorf("%s\n%s\nended with: %v\nits comment names %s", f.call, fuzzShow(values), err, strings.Join(slices.Sorted(maps.Keys(f.errors)), " "))
		}
	}
	if _, err := conn.Exec(ctx, ending, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s\n%s\nthen %s: %v", f.call, fuzzShow(values), ending, err)
	}
}

func fuzzShow(values [][]byte) string {
	var shown []string
	for i, value := range values {
		text := "null"
		if value != nil {
			text = fmt.Sprintf("%q (%d bytes)", value[:min(len(value), 100)], len(value))
		}
		shown = append(shown, fmt.Sprintf("$%d = %s", i+1, text))
	}
	return strings.Join(shown, "\n")
}

// end ends the transaction and looks at what is left.
func (z *fuzzed) end(t *testing.T, conn *pgx.Conn, how string) {
	t.Helper()
	if _, err := conn.Exec(ctx, how); err != nil && code(err) != "40001" && code(err) != "57014" {
		t.Fatalf("%s: %v", how, err)
	}
	var left string
	must(t, z.e.admin.QueryRow(ctx, `select concat_ws('; ',
		(select 'it holds ' || string_agg(format('%s %s %s', locktype, mode, relation::regclass), ', ') from pg_locks where pid = $1),
		(select 'it is ' || state from pg_stat_activity where pid = $1 and state <> 'idle'),
		(select 'prepared transactions' from pg_prepared_xacts where database = current_database() limit 1))`, conn.PgConn().PID()).Scan(&left))
	if left != "" {
		t.Errorf("after the %s: %s", how, left)
	}
	var settings string
	must(t, conn.QueryRow(ctx, `select coalesce(string_agg(name || ' = ' || setting, ', '), '') from pg_settings
		where source = 'session' and name <> 'statement_timeout'`, pgx.QueryExecModeSimpleProtocol).Scan(&settings))
	if settings != "" {
		t.Errorf("settings that outlive the transaction: %s", settings)
	}
	owner, err := pgx.Connect(ctx, z.e.owner)
	must(t, err)
	defer owner.Close(ctx)
	var findings string
	must(t, owner.QueryRow(ctx, fuzzFindings).Scan(&findings))
	if findings != z.findings {
		t.Errorf("check() says:\n%s\nbefore:\n%s", findings, cmp.Or(z.findings, "nothing"))
	}
	conn.Close(ctx)
}
