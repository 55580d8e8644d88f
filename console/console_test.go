package console

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/lockstest"
)

var ctx = context.Background()

// hostile are names that a careless page would act on, or be torn apart by.
var hostile = []string{
	`<script>document.title='owned'</script><img src=x onerror="document.title='owned'">"'&amp;`,
	strings.Repeat("é", 512),
	"\u202egnp.exe \u05d0\u05d1\u05d2 \u2066",
}

// A site is a console on a database of its own, as its owner and as its readers see it.
type site struct {
	t      *testing.T
	owner  *pgxpool.Pool
	reader *pgxpool.Pool
	tracer *tracer
	url    string
}

// open starts one that reads as a role of lock.grant_monitor_to. The header Operator says who asks.
func open(t *testing.T, prefix string, act bool) *site {
	t.Helper()
	s := &site{t: t, owner: lockstest.Pool(t), tracer: &tracer{}}
	const role = "locks_console_test"
	s.sql("do $$ begin create role " + role + "; exception when duplicate_object or unique_violation then null; end $$")
	s.sql("do $$ begin grant pg_monitor to " + role + "; exception when others then raise notice '%', sqlerrm; end $$")
	s.sql("select lock.grant_monitor_to($1)", role)
	s.reader = s.as(role, s.tracer)
	options := &Options{Prefix: prefix, Operator: func(r *http.Request) string { return r.Header.Get("Operator") }}
	if act {
		const operator = "locks_console_operator"
		s.sql("do $$ begin create role " + operator + "; exception when duplicate_object or unique_violation then null; end $$")
		s.sql("select lock.grant_operator_to($1)", operator)
		options.Actions = s.as(operator, nil)
	}
	server := httptest.NewServer(Handler(s.reader, options))
	t.Cleanup(server.Close)
	s.url = server.URL + prefix
	return s
}

// as is a pool of a role.
func (s *site) as(role string, tracer pgx.QueryTracer) *pgxpool.Pool {
	config := s.owner.Config().Copy()
	config.ConnConfig.Tracer = tracer
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role "+role)
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(s.t, err)
	s.t.Cleanup(pool.Close)
	return pool
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *site) sql(sql string, args ...any) {
	s.t.Helper()
	_, err := s.owner.Exec(ctx, sql, args...)
	must(s.t, err)
}

func (s *site) answer(sql string, args ...any) (answer string) {
	s.t.Helper()
	must(s.t, s.owner.QueryRow(ctx, "select ("+sql+")::text", args...).Scan(&answer))
	return answer
}

// get loads a page and expects its status.
func (s *site) get(path string, status int) string {
	s.t.Helper()
	answer, err := http.Get(s.url + path)
	must(s.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(s.t, err)
	if answer.StatusCode != status {
		s.t.Fatalf("GET %s: %s, wanted %d\n%s", path, answer.Status, status, plain(string(body)))
	}
	return string(body)
}

func (s *site) post(path string, header http.Header, form url.Values) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest("POST", s.url+path, strings.NewReader(form.Encode()))
	must(s.t, err)
	r.Header = header.Clone()
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	must(s.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(s.t, err)
	return answer.StatusCode, string(body) + answer.Header.Get("Location")
}

var tags = regexp.MustCompile(`(?s)<head>.*?</head>|<header>.*?</header>|<footer>.*?</footer>|<[^>]*>`)

// plain is a page's text.
func plain(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(page, " "))), " ")
}

// sees expects texts on a page.
func (s *site) sees(path string, wanted ...string) string {
	s.t.Helper()
	page := s.get(path, http.StatusOK)
	shown := plain(page)
	for _, text := range wanted {
		if !strings.Contains(shown, strings.Join(strings.Fields(text), " ")) {
			s.t.Errorf("%s does not show %q:\n%s", path, text, shown)
		}
	}
	return page
}

// blocked makes a key that session a holds and b and c wait for, c behind b, all of it until the test ends.
func (s *site) blocked(name string) (root uint32) {
	s.t.Helper()
	begin := func() pgx.Tx {
		tx, err := s.owner.Begin(ctx)
		must(s.t, err)
		return tx
	}
	a := begin()
	_, err := a.Exec(ctx, "select lock.exclusive($1::text)", name)
	must(s.t, err)
	var wait sync.WaitGroup
	txs := []pgx.Tx{a}
	for i := range 2 {
		tx := begin()
		txs = append(txs, tx)
		wait.Go(func() { tx.Exec(ctx, "select lock.exclusive($1::text)", name) })
		for s.answer("select count(*) from lock.blocked where kind = 'key'") != fmt.Sprint(i+1) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	s.t.Cleanup(func() {
		for _, tx := range txs[1:] {
			lockstest.Kill(s.t, s.owner, tx.Conn().PgConn().PID())
		}
		wait.Wait()
		for _, tx := range txs {
			tx.Rollback(ctx)
		}
	})
	return a.Conn().PgConn().PID()
}

// things makes one of each, called so.
func (s *site) things(name string) {
	s.t.Helper()
	for _, sql := range []string{
		"select lock.acquire_mutex($1, $1)",
		"select lock.create_timeout($1, '1 hour') and lock.acquire_timeout($1)",
		"select lock.acquire_time_slot($1, '365 days')",
		"select lock.create_throttled_resource($1, '1 hour') and lock.lock_throttled_resource($1, $1)",
		"select from lock.take($1, 1, '1 hour')",
		"select from lock.acquire_lease($1, $1, '1 hour')",
		"select lock.create_task($1, $1, payload => jsonb_build_object('say', $1::text))",
		"select from lock.capture(1, $1, owner => $1)",
		"select lock.set_status($1, 'failed', 1, $1, message => $1) and lock.pause_queue('task', $1, $1)",
		"update lock.task set retries_left = 0 where id = $1",
		"select lock.enqueue('create', $1, jsonb_build_object('say', $1::text), $1)",
		"select lock.force_release_mutex($1, $1)",
		"select lock.acquire_mutex($1, $1)",
	} {
		s.sql(sql, name)
	}
}

// trouble is one of each thing that may be wrong.
func (s *site) trouble() {
	s.t.Helper()
	s.sql("select from lock.acquire_lease('import', 'host-3', '1 hour')")
	s.sql("update lock.lease set renewed_at = clock_timestamp() - interval '50 minutes', expires_at = clock_timestamp() + interval '10 minutes' where name = 'import'")
	s.sql("select from lock.acquire_lease('leader', 'host-7', '1 hour')")
	lockstest.Expire(s.t, s.owner, "leader")
	s.sql("select lock.create_task('invoice-16', 'mail', retries_left => 1)")
	s.sql("select from lock.capture(1, 'mail', '{new}')")
	s.sql("update lock.task set status = 'failed', deadline = null, message = 'mailbox full' where id = 'invoice-16'")
	s.sql("select lock.create_task('invoice-17', 'mail', timeout => '1 minute')")
	s.sql("select from lock.capture(1, 'mail', owner => 'worker-2')")
	lockstest.Rewind(s.t, s.owner, lockstest.Task("mail", "invoice-17"), time.Hour)
	s.sql("select lock.create_task('report', 'nightly')")
	lockstest.Rewind(s.t, s.owner, lockstest.Task("nightly", "report"), 3*time.Hour)
	s.sql("select lock.pause_queue('request', 'accounts', 'the bank is down')")
	s.sql("select lock.enqueue('create', 'account-9', '{\"amount\": 12}', 'accounts')")
	s.sql("alter database " + pgx.Identifier{s.answer("select current_database()")}.Sanitize() + " set synchronous_commit = off")
	s.reader.Reset()
}

// nothingFound has lock.check() find nothing: the tests' own server runs without fsync.
func (s *site) nothingFound() {
	s.t.Helper()
	s.sql("create or replace function lock.check() returns setof lock.finding language plpgsql as 'begin return; end'")
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	s.nothingFound()
	if page := s.sees("/", "Nothing is wrong."); strings.Contains(page, "<h2>") {
		t.Error(plain(page))
	}
	for path, text := range map[string]string{
		"/keys": "Nobody holds a key", "/key?key=1": "Nobody holds this key", "/key?name=a": "Nobody holds this key", "/mutexes": "none such", "/timeouts": "none such",
		"/slots": "none such", "/throttles": "none such", "/limits": "none such", "/leases": "none such", "/queues": "No queue has anything", "/tasks": "none such",
		"/tasks?queue=a&status=dead": "none such", "/requests": "none such", "/requests?queue=a&state=error": "none such", "/requests?queue=a&state=outstanding": "none such",
		"/entity?queue=a&id=b": "Nobody has it", "/ledger": "nothing in the ledger", "/search?q=a": "No name begins like this",
	} {
		s.sees(path, text)
	}
	for path, status := range map[string]int{
		"/nothing": 404, "/task?queue=a&id=b": 404, "/task?id=&queue=a": 422, "/tasks?queue=a&status=x": 400, "/requests?queue=a&state=x": 400, "/tasks?queue=a&status=new&since=x": 400,
		"/leases?token=x": 400, "/key?key=9223372036854775808": 400, "/act?do=release-mutex": 403, "/mutexes?q=" + url.QueryEscape("\x00"): 422,
	} {
		s.get(path, status)
	}
}

func TestTrouble(t *testing.T) {
	t.Parallel()
	s := open(t, "/locks", false)
	s.trouble()
	root := s.blocked("customer:42")
	page := s.sees("/", "Who is in the way", fmt.Sprintf("Session %d", root), "idle in transaction", "waits for key customer:42", "import", "leader", "host-7", "Tasks overdue", "mail 1",
		"Dead letters", "task mail 1", "Waiting for more than a minute", "task nightly", "Paused queues", "the bank is down", "synchronous_commit")
	if strings.Contains(page, "Nothing is wrong") || !strings.Contains(page, `href="/locks/tasks?`) {
		t.Error(page)
	}
	// The second waiter is behind the first, and that behind the holder.
	if shape := regexp.MustCompile(`</?(ul|li)`).FindAllString(page[strings.Index(page, `<ul class="tree">`):strings.Index(page, "Leases about")], -1); strings.Join(shape, "") !=
		"<ul<li<ul<li<ul<li</li</ul</li</ul</li</ul" {
		t.Error("the tree has another shape:", shape)
	}
	s.sees("/keys", "customer:42", "holds", "waits")
	s.sees("/key?name=customer:42", "holds", "idle in transaction")
	if shown := plain(s.get("/search?q=quiet:42", http.StatusOK)); strings.Contains(shown, "key quiet:42") {
		t.Errorf("a key that nobody uses is found:\n%s", shown)
	}
	quiet, err := s.owner.Begin(ctx)
	must(t, err)
	t.Cleanup(func() { quiet.Rollback(ctx) })
	_, err = quiet.Exec(ctx, "select lock.exclusive('quiet:42')")
	must(t, err)
	s.sees("/search?q=quiet:42", "key quiet:42")
	s.sees("/tasks?queue=mail&status=in_progress", "invoice-17", "worker-2")
	s.sees("/task?queue=mail&id=invoice-16", "mailbox full", "none: a dead letter", "Failed")
	s.sees("/task?queue=mail&id=invoice-17", "Captured by worker-2", "Its time ran out")
	s.sees("/requests?queue=accounts&state=outstanding", "account-9", "new")
	s.sees("/queues", "the bank is down", "nightly")

	worker, err := s.owner.Begin(ctx)
	must(t, err)
	defer worker.Rollback(ctx)
	s.sql("select lock.resume_queue('request', 'accounts')")
	_, err = worker.Exec(ctx, "select from lock.capture_request(gen_random_uuid(), queue_id => 'accounts')")
	must(t, err)
	s.sees("/entity?queue=accounts&id=account-9", fmt.Sprint(worker.Conn().PgConn().PID()), "idle in transaction", "amount")
	_, err = worker.Exec(ctx, "select lock.settle_request(process_id, 'error', 'no such account') from lock.request where queue_id = 'accounts'")
	must(t, err)
	must(t, worker.Commit(ctx))
	s.sees("/entity?queue=accounts&id=account-9", "Nobody has it", "no such account")
	s.sees("/requests?queue=accounts&state=error", "no such account")
	s.sees("/", "request accounts 1")
}

// A page shows what does not let itself be shown: no name is markup, an address, or lost.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := open(t, "", true)
	s.blocked(hostile[0])
	for _, name := range hostile {
		s.things(name)
		q := url.QueryEscape(name)
		for _, path := range []string{
			"/", "/key?name=" + q, "/mutexes?q=" + q, "/timeouts?q=" + q, "/slots?q=" + q, "/throttles?q=" + q, "/limits?q=" + q, "/leases?q=" + q, "/queues?q=" + q,
			"/tasks?q=" + q, "/tasks?status=dead&queue=" + q, "/task?queue=" + q + "&id=" + q, "/requests", "/requests?state=outstanding&queue=" + q,
			"/entity?queue=" + q + "&id=" + q, "/ledger?q=" + q, "/search?q=" + q, "/keys",
		} {
			wanted := name
			if path == "/keys" {
				wanted = hostile[0][:49] + "..." // so much of it fits into its waiters' application_name
			}
			page := s.sees(path, wanted)
			if strings.Contains(page, "<script>") || strings.Contains(page, "<img") {
				t.Errorf("%s has markup of a name", path)
			}
		}
	}
	if page := s.get("/ledger", http.StatusOK); strings.Contains(plain(page), `{"owner": "`+hostile[2]) || !strings.Contains(plain(page), `\u202egnp.exe`) {
		t.Error("a name turns around what stands beside it in JSON")
	}
}

// follow collects what the pages from one on list in a column, until there is no further one.
func (s *site) follow(path string, column int) (names []string) {
	s.t.Helper()
	row := regexp.MustCompile(`(?s)<tr>(<td>.*?)</tr>`)
	next := regexp.MustCompile(`<a href="([^"]*)" rel="next">`)
	for range 100 {
		page := s.get(path, http.StatusOK)
		for _, found := range row.FindAllStringSubmatch(page, -1) {
			if cells := strings.Split(found[1], "</td>"); column < len(cells)-1 {
				names = append(names, plain(cells[column]))
			}
		}
		link := next.FindStringSubmatch(page)
		if link == nil {
			return names
		}
		path = html.UnescapeString(link[1])
	}
	s.t.Fatalf("%s has no end", path)
	return nil
}

func TestPaging(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	const many = 130
	s.sql("select lock.create_tasks(array(select 'same ' || i from generate_series(1, $1) as i), 'same')", many)
	s.sql("update lock.task set available_at = date_trunc('day', available_at) - interval '1 day' where id < 'same 7'")
	s.sql("select lock.create_task('dead ' || i, 'same', 'failed') from generate_series(1, $1) as i", many)
	s.sql("update lock.task set retries_left = 0 where id like 'dead %'")
	s.sql("update lock.task set available_at = '-infinity' where id like 'dead 1%'")
	s.sql("select lock.enqueue('update', 'e' || i % 2, null, 'same') from generate_series(1, $1) as i", many)
	s.sql("insert into lock.request (queue_id, entity_id, request_type, request_status, created_at, settled_at) select 'same', 'failed', 'update', 'error', now(), now() from generate_series(1, $1)", many)
	s.sql("select lock.acquire_mutex('m' || i), lock.create_timeout('m' || i, '1 hour'), lock.acquire_time_slot('m' || i, '1 day'), lock.create_throttled_resource('m' || i, '1 hour') from generate_series(1, $1) as i", many)
	s.sql("select lock.take('m' || i, 1, '1 day') from generate_series(1, $1) as i", many)
	s.sql("select lock.release_mutex('m' || i) from generate_series(1, 60) as i")
	s.sql("select lock.acquire_lease('l' || i % 3, 'x', '1 hour', 100) from generate_series(1, $1) as i", many)
	s.sql("select lock.create_task('x', 'queue ' || i) from generate_series(1, $1) as i", many)
	s.sql("select lock.enqueue('update', 'x', null, 'queue ' || i) from generate_series(1, $1) as i", many)
	s.sql("select lock_internal.record_forced_release('task', 'same: dead 1', 'why ' || i, '{}') from generate_series(1, $1) as i", many)
	for path, c := range map[string]struct{ column, want int }{
		"/tasks?queue=same&status=new": {0, many}, "/tasks?queue=same&status=dead": {0, many}, "/tasks?q=same": {0, many}, "/tasks?queue=same": {0, 2 * many},
		"/tasks": {0, 3 * many}, "/requests": {0, 3 * many}, "/requests?queue=same": {0, 2 * many}, "/requests?queue=same&state=outstanding": {0, many},
		"/requests?queue=same&state=error": {0, many}, "/entity?queue=same&id=e1": {0, many / 2}, "/mutexes": {0, many}, "/mutexes?state=taken": {0, many - 60},
		"/timeouts": {0, many}, "/slots?state=taken": {0, many}, "/throttles?q=m1": {0, 42}, "/limits?state=taken": {0, many}, "/leases": {1, many}, "/queues": {1, 2 * (many + 1)}, "/task?queue=same&id=dead+1": {4, many},
	} {
		found := s.follow(path, c.column)
		if strings.HasPrefix(path, "/task?") {
			found = slices.DeleteFunc(found, func(text string) bool { return !strings.HasPrefix(text, "why") })
		}
		different := slices.Compact(slices.Sorted(slices.Values(found)))
		same := len(different) == len(found)
		if strings.HasPrefix(path, "/tasks") || path == "/leases" || path == "/queues" {
			same = true // one name in several queues, kinds
		}
		if len(found) != c.want || !same {
			t.Errorf("%s lists %d, %d different, wanted %d", path, len(found), len(different), c.want)
		}
	}
}

// A tracer keeps what was asked.
type tracer struct {
	mu      sync.Mutex
	queries []pgx.TraceQueryStartData
}

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queries = append(t.queries, data)
	return ctx
}

func (t *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (t *tracer) take() []pgx.TraceQueryStartData {
	t.mu.Lock()
	defer t.mu.Unlock()
	queries := t.queries
	t.queries = nil
	return queries
}

// most is the greatest number of rows that a node of a plan made or threw away.
func most(plan map[string]any) (rows float64, node string) {
	number := func(name string) float64 { n, _ := plan[name].(float64); return n }
	rows = (number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck")) * number("Actual Loops")
	node = fmt.Sprint(plan["Node Type"], " ", plan["Relation Name"], plan["Function Name"])
	children, _ := plan["Plans"].([]any)
	for _, child := range children {
		if n, name := most(child.(map[string]any)); n > rows {
			rows, node = n, name
		}
	}
	return rows, node
}

// No page reads a table to its end: what each query of each page reads is bounded, whatever there is.
func TestManyRows(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	const many = 100000
	for _, sql := range []string{
		"insert into lock.mutex (task_id) select 'name ' || i from generate_series(1, $1) as i",
		"insert into lock.timeout (task_id, timeout) select 'name ' || i, '1 hour' from generate_series(1, $1) as i",
		"insert into lock.time_slot (task_id, slot_start) select 'name ' || i, now() from generate_series(1, $1) as i",
		"insert into lock.throttled_resource (resource_id, throttle_interval) select 'name ' || i, '1 hour' from generate_series(1, $1) as i",
		"insert into lock.rate_limit (limit_id, rate, per, burst) select 'name ' || i, 1, '1 hour', 1 from generate_series(1, $1) as i",
		"insert into lock.lease_name (name, token, granted_at) select 'name ' || i, 1, now() from generate_series(1, $1) as i",
		"insert into lock.lease (name, token, owner, acquired_at, renewed_at, expires_at) select 'name ' || i, 1, 'x', now(), now(), now() + interval '1 hour' from generate_series(1, $1) as i",
		`insert into lock.task (id, queue_id, status, retries_left, timeout, deadline, owner)
			select 'name ' || i, 'queue ' || i % 3, status, case i % 2 when 0 then 0 end, '1 hour', case when status = 'in_progress' then now() + i % 5 * interval '1 hour' end, 'x'
			from (select i, (enum_range(null::lock.task_status))[1 + i / 3 % 4] as status from generate_series(1, $1) as i) as seen`,
		`insert into lock.request (queue_id, entity_id, request_type, request_status, created_at, settled_at)
			select 'queue ' || i % 3, 'name ' || i % 11, 'update', case i % 2 when 0 then 'new' else 'error' end::lock.request_status, now(), case i % 2 when 1 then now() end
			from generate_series(1, $1) as i`,
	} {
		s.sql(sql, many)
	}
	s.sql("analyze")
	pages := []string{
		"/", "/keys", "/queues", "/queues?after=queue+0", "/queues?q=queue", "/tasks", "/tasks?q=name+5", "/tasks?queue=queue+1", "/tasks?queue=queue+1&q=name&status=done",
		"/task?queue=queue+1&id=name+1", "/requests", "/requests?queue=queue+1", "/requests?queue=none", "/requests?queue=queue+1&state=error", "/requests?queue=queue+1&state=outstanding",
		"/entity?queue=queue+1&id=name+1", "/ledger", "/ledger?q=name", "/search?q=name+9", "/search?q=none", "/leases", "/leases?q=name+7", "/leases?after=name+5",
	}
	for _, path := range []string{"/mutexes", "/timeouts", "/slots", "/throttles", "/limits"} {
		pages = append(pages, path, path+"?q=name+77", path+"?after=name+77", path+"?state=taken", path+"?q=x")
	}
	for _, status := range taskStatuses {
		pages = append(pages, "/tasks?queue=queue+1&status="+status.Value)
	}
	s.get("/", http.StatusOK) // lock.check() may read to the end, once a minute
	asked := 0
	for _, path := range pages {
		s.tracer.take()
		s.get(path, http.StatusOK)
		queries := s.tracer.take()
		must(t, pgx.BeginFunc(ctx, s.reader, func(tx pgx.Tx) error {
			for _, query := range queries {
				if !regexp.MustCompile(`^\s*(select|with)`).MatchString(query.SQL) {
					if strings.HasPrefix(query.SQL, "set local") {
						_, err := tx.Exec(ctx, query.SQL)
						must(t, err)
					}
					continue
				}
				var answer []byte
				args := slices.DeleteFunc(slices.Clone(query.Args), func(arg any) bool { _, mode := arg.(pgx.QueryExecMode); return mode })
				err := tx.QueryRow(ctx, "explain (analyze, timing off, summary off, format json) "+query.SQL, append([]any{pgx.QueryExecModeExec}, args...)...).Scan(&answer)
				must(t, err)
				var plans []struct{ Plan map[string]any }
				must(t, json.Unmarshal(answer, &plans))
				asked++
				if strings.Contains(query.SQL, "lock.check()") {
					t.Errorf("%s asks lock.check() again", path)
				}
				if rows, node := most(plans[0].Plan); rows > 25000 {
					t.Errorf("%s reads %.0f rows: %s of %s", path, rows, node, query.SQL)
				}
			}
			return nil
		}))
	}
	if asked < 2*len(pages) {
		t.Fatalf("only %d queries were seen", asked)
	}
	var plans []struct{ Plan map[string]any }
	var answer []byte
	must(t, s.owner.QueryRow(ctx, "explain (analyze, format json) select count(*) from lock.task").Scan(&answer))
	must(t, json.Unmarshal(answer, &plans))
	if rows, _ := most(plans[0].Plan); rows < many {
		t.Errorf("a count of everything is not seen: %.0f", rows)
	}
}

// Each action does what it says, and its line in the ledger has the operator and the reason.
func TestActions(t *testing.T) {
	t.Parallel()
	s := open(t, "", true)
	const name = `<b>a & "b"</b>`
	s.things(name)
	token := s.answer("select token from lock.lease where name = $1", name)
	request := s.answer("select request_id from lock.request")
	again := s.answer("select request_id + 1 from lock.request") // what retrying it makes
	s.sql("update lock.request set request_status = 'error', settled_at = now()")
	alice := http.Header{"Operator": {"alice"}}
	id := url.Values{"id": {name}}
	task := url.Values{"id": {name}, "queue": {name}}
	queue := url.Values{"kind": {"task"}, "queue": {name}}
	steps := []struct {
		do     string
		values url.Values
		then   string // true when it is done
	}{
		{"release-mutex", id, "select not acquired from lock.mutex"},
		{"release-timeout", id, "select not locked from lock.timeout_status"},
		{"release-slot", id, "select slot_start = '-infinity' from lock.time_slot"},
		{"release-throttle", id, "select not throttled from lock.throttled_resource_status"},
		{"release-limit", id, "select not exists (select from lock.rate_limit)"},
		{"release-lease", url.Values{"id": {name}, "token": {token}}, "select not exists (select from lock.lease)"},
		{"resume", queue, "select not exists (select from lock.queue_pause where resumed_at is null)"},
		{"pause", queue, "select exists (select from lock.queue_pause where resumed_at is null and reason = 'alice: because')"},
		{"redrive", url.Values{"queue": {name}}, "select status = 'new' and retries_left = 1 from lock.task"},
		{"retry-task", task, "select status = 'new' and retries_left = 1 from lock.task"},
		{"retry-request", url.Values{"id": {request}, "entity": {name}}, "select count(*) = 2 from lock.request"},
		{"cancel-request", url.Values{"id": {again}, "entity": {name}}, "select request_status = 'error' from lock.request order by request_id desc limit 1"},
	}
	for _, step := range steps {
		form := maps.Clone(step.values)
		lines := s.answer("select count(*) from lock.forced_release")
		refused := func(what string, want int, header http.Header, reason string) {
			t.Helper()
			form.Set("reason", reason)
			if status, body := s.post("/act?do="+step.do, header, form); status != want {
				t.Errorf("%s %s: %d, wanted %d: %s", step.do, what, status, want, plain(body))
			}
			if now := s.answer("select count(*) from lock.forced_release"); now != lines {
				t.Errorf("%s %s: the ledger has a line", step.do, what)
			}
		}
		refused("by nobody", 403, http.Header{}, "because")
		refused("from another site", 403, http.Header{"Operator": {"alice"}, "Sec-Fetch-Site": {"cross-site"}}, "because")
		refused("from another origin", 403, http.Header{"Operator": {"alice"}, "Origin": {"http://evil.example"}}, "because")
		refused("for no reason", 422, alice, " \n")
		refused("for a reason that is too long", 422, alice, strings.Repeat("x", 1020))
		form.Set("reason", "because")
		if status, body := s.post("/act?do="+step.do, alice, form); status != http.StatusSeeOther || !strings.HasSuffix(body, "/ledger?done=1") {
			t.Fatalf("%s: %d %s", step.do, status, plain(body))
		}
		if s.answer(step.then) != "true" {
			t.Errorf("%s was not done", step.do)
		}
		if line := s.answer("select reason from lock.forced_release order by release_id desc limit 1"); line != "alice: because" {
			t.Errorf("%s: the ledger says %q", step.do, line)
		}
		lines = s.answer("select count(*) from lock.forced_release")
		if !strings.HasPrefix(step.do, "retry") {
			refused("again", 409, alice, "because")
		}
	}
	if done := slices.Sorted(maps.Keys(actions)); len(done) != len(steps) {
		t.Errorf("of %v only %d were tried", done, len(steps))
	}
	s.sees("/ledger?q=", "alice: because", "redrive", "retry", "pause", "resume", "force release", name)
	form := url.Values{"id": {"unknown"}, "reason": {"because"}}
	if status, body := s.post("/act?do=release-timeout", alice, form); status != 422 || !strings.Contains(plain(body), "never created") {
		t.Error(status, plain(body))
	}
	if status, _ := s.post("/act?do=drop-everything", alice, form); status != 404 {
		t.Error(status)
	}
	reading := open(t, "", false)
	if status, _ := reading.post("/act?do=release-mutex", alice, form); status != 403 {
		t.Error(status)
	}
	if page := reading.get("/mutexes", 200); strings.Contains(page, "Action") || strings.Contains(page, "/act") {
		t.Error("a console that only shows offers actions")
	}
}

// One connection is enough for a page, whoever else asks.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	config := s.reader.Config().Copy()
	config.MaxConns, config.MinConns, config.MinIdleConns = 1, 0, 0
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	defer pool.Close()
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	h := Handler(pool, nil)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(limited, "GET", "/", nil))
			if w.Code != http.StatusOK {
				t.Error(w.Code, plain(w.Body.String()))
			}
		})
	}
	wait.Wait()
}

// DDL that keeps a table to itself: who does that comes first, and what can be read is shown.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	s.trouble()
	root := s.blocked("customer:42")
	ddl, err := s.owner.Begin(ctx)
	must(t, err)
	defer ddl.Rollback(ctx)
	_, err = ddl.Exec(ctx, "lock table lock.task in access exclusive mode")
	must(t, err)
	began := time.Now()
	page := plain(s.get("/", http.StatusOK))
	if took := time.Since(began); took > 2*patience {
		t.Errorf("it took %v", took)
	}
	last := -1
	for _, text := range []string{fmt.Sprintf("Session %d", root), "waits for key customer:42", "Tables that are locked", "task holds AccessExclusiveLock " + fmt.Sprint(ddl.Conn().PgConn().PID()),
		"lock table lock.task", "host-7", "Queues The database says: canceling statement due to lock timeout"} {
		at := strings.Index(page, text)
		if at <= last {
			t.Errorf("%q is not behind the others:\n%s", text, page)
		}
		last = at
	}
	if strings.Contains(page, "Nothing is wrong") {
		t.Error("nothing is wrong")
	}
	must(t, ddl.Rollback(ctx))
	if page := plain(s.get("/", http.StatusOK)); strings.Contains(page, "Tables that are locked") || strings.Contains(page, "lock timeout") {
		t.Error(page)
	}
}

// A silence is a proxy before the server that can swallow what passes.
type silence struct {
	listener net.Listener
	silent   atomic.Bool
}

func hush(t *testing.T, pool *pgxpool.Pool) (*silence, *pgxpool.Pool) {
	t.Helper()
	config := pool.Config()
	network, address := pgconn.NetworkAddress(config.ConnConfig.Host, config.ConnConfig.Port)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	q := &silence{listener: listener}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			behind, err := net.Dial(network, address)
			if err != nil {
				client.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{client, behind}, {behind, client}} {
				go func() {
					defer way[1].Close()
					buffer := make([]byte, 1<<16)
					for {
						n, err := way[0].Read(buffer)
						if err != nil {
							return
						}
						if !q.silent.Load() {
							way[1].Write(buffer[:n])
						}
					}
				}()
			}
		}
	}()
	t.Cleanup(func() { listener.Close() })
	config.MaxConns, config.MinConns, config.MinIdleConns = 4, 0, 0
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
	}
	through, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	t.Cleanup(through.Close)
	return q, through
}

// The network swallows everything: a page and an action say so, soon.
func TestDeadNetwork(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	q, pool := hush(t, s.reader)
	actions, acting := hush(t, s.owner)
	server := httptest.NewServer(Handler(pool, &Options{Actions: acting, Operator: func(*http.Request) string { return "alice" }}))
	t.Cleanup(server.Close)
	dead := &site{t: t, owner: s.owner, url: server.URL}
	dead.get("/", http.StatusOK)
	dead.get("/mutexes", http.StatusOK)
	q.silent.Store(true)
	actions.silent.Store(true)
	for _, path := range []string{"/", "/mutexes"} {
		began := time.Now()
		page := plain(dead.get(path, http.StatusServiceUnavailable))
		if took := time.Since(began); took > 2*patience || !strings.Contains(page, "has not answered in time") {
			t.Errorf("%s after %v: %s", path, took, page)
		}
	}
	began := time.Now()
	status, page := dead.post("/act?do=release-mutex", http.Header{}, url.Values{"id": {"a"}, "reason": {"b"}})
	if took := time.Since(began); status != http.StatusServiceUnavailable || took > 2*deed || !strings.Contains(plain(page), "has not answered in time") {
		t.Errorf("the action after %v: %d %s", took, status, plain(page))
	}
}

// On the row engine less can be seen, and the pages say so.
func TestRowEngine(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	s.sql("create or replace function lock_internal.is_advisory() returns boolean language sql stable parallel safe return false")
	s.sql("select lock.enqueue('create', 'e', null, 'q')")
	for _, path := range []string{"/keys", "/key?name=a", "/key?key=1", "/entity?queue=q&id=e"} {
		s.sees(path, "uses the row engine")
	}
	s.sees("/")
}

func TestWithoutRights(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	s.sql("select lock.revoke_from('locks_console_test')")
	if page := plain(s.get("/", http.StatusForbidden)); !strings.Contains(page, "lock.grant_monitor_to") {
		t.Error(page)
	}
	s.sql("drop schema lock cascade")
	if page := plain(s.get("/", http.StatusServiceUnavailable)); !strings.Contains(page, "right database") {
		t.Error(page)
	}
	s.reader.Close()
	if page := plain(s.get("/mutexes", http.StatusServiceUnavailable)); !strings.Contains(page, "cannot be reached") {
		t.Error(page)
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		5 * time.Millisecond: "5 ms", time.Second: "1 s", 61 * time.Second: "1 min 1 s", 3 * time.Hour: "3 h", 12*time.Hour + time.Minute: "12 h", 400 * 24 * time.Hour: "1 y 35 d",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is %q, wanted %q", d, got, want)
		}
	}
}

// What waits for its key is listed with the others of its status, and its queue is found by it alone.
func TestKeyedTasks(t *testing.T) {
	t.Parallel()
	s := open(t, "", false)
	s.sql("select lock.create_tasks('{first,second}', 'keyed', keys => '{anna,anna}')")
	s.sql("select lock.capture(1, 'keyed')")
	s.sees("/tasks?queue=keyed&status=new", "second")
	s.sees("/queues?q=keyed", "keyed")
	if page := s.get("/tasks?queue=keyed&status=new", http.StatusOK); strings.Contains(page, ">first<") {
		t.Error("what is in progress is listed as new")
	}
	s.sql("delete from lock.task where id = 'first'")
	s.sees("/queues?q=keyed", "keyed")
}
