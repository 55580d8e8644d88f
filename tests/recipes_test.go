package tests

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed4787c507/locks/lockstest"
)

// recipePrograms is where the programs of examples/ are, built once.
var recipePrograms = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs("../.bin/examples")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./examples/...")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return dir, nil
})

// A program is a recipe at work in a process of its own.
type program struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	mu   sync.Mutex
	text bytes.Buffer
}

func (p *program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(text)
}

// said is what it has printed so far, on both outputs.
func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func launch(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	must(t, cmd.Start())
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("%v said: %s", cmd.Args, p.said())
		}
	})
	return p
}

func (p *program) signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

// ended waits for its end, and returns how it ended.
func (p *program) ended() error {
	p.t.Helper()
	arrives(p.t, p.done)
	return p.err
}

// arrives waits until a channel is closed.
func arrives(t *testing.T, event <-chan struct{}) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(patience):
		t.Fatalf("it did not come within %v", patience)
	}
}

// succeeds waits for its end, and returns what it said.
func (p *program) succeeds() string {
	p.t.Helper()
	if err := p.ended(); err != nil {
		p.t.Fatalf("%v: %v: %s", p.cmd.Args, err, p.said())
	}
	return p.said()
}

// recipe starts a program of examples/.
func recipe(t *testing.T, name string, args ...string) *program {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is not installed")
	}
	dir, err := recipePrograms()
	must(t, err)
	return launch(t, exec.Command(filepath.Join(dir, name), args...))
}

// script runs an SQL file of examples/.
func script(t *testing.T, url, path string, variables ...string) *program {
	t.Helper()
	needsPsql(t)
	args := []string{"-XAtq", "-v", "ON_ERROR_STOP=1", "-f", filepath.Join(root(t), "examples", path)}
	for _, variable := range variables {
		args = append(args, "-v", variable)
	}
	return launch(t, exec.Command("psql", append(args, url)...))
}

func needsPsql(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("psql is not installed")
	}
}

// opened is a test's own database with a recipe's tables.
func opened(t *testing.T, tables string) *env {
	t.Helper()
	e := open(t, engines()[0])
	if tables != "" {
		e.sessionAs(t, e.super).exec(tables + "; grant all on all tables in schema public to public; grant all on all sequences in schema public to public")
	}
	return e
}

// named is the address with a name that pg_stat_activity shows.
func named(t *testing.T, address, name string) string {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	query := u.Query()
	query.Set("application_name", name)
	u.RawQuery = query.Encode()
	return u.String()
}

// sessionsWait returns when n sessions of this database wait for a lock.
func sessionsWait(t *testing.T, e *env, n int) {
	t.Helper()
	onlyPostgreSQL(t, "pg_stat_activity shows no waits for locks")
	eventually(t, fmt.Sprint(n, " sessions wait"), func() bool {
		var waiting int
		must(t, e.admin.QueryRow(ctx, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").Scan(&waiting))
		return waiting == n
	})
}

func TestRecipeCronOnce(t *testing.T) {
	t.Parallel()
	needsPsql(t)
	e := opened(t, "")
	run := func(url, name string, command ...string) *program {
		args := append([]string{filepath.Join(root(t), "examples", "cron_once", "cron_once.sh"), url, name, "36525 days"}, command...)
		return launch(t, exec.Command("sh", args...))
	}
	var hosts []*program
	for range 4 {
		hosts = append(hosts, run(e.url, "it's daily", "echo", "the command ran"))
	}
	ran := 0
	for _, host := range hosts {
		ran += strings.Count(host.succeeds(), "the command ran\n")
	}
	if ran != 1 {
		t.Errorf("it ran %d times", ran)
	}
	if run(e.url, "fails", "false").ended() == nil {
		t.Error("a command that failed is not told")
	}
	if host := run(as(e.url, "locks_app", "nowhere"), "other", "echo", "the command ran"); host.ended() == nil || strings.Contains(host.said(), "ran") {
		t.Errorf("without a database: %s", host.said())
	}
	// The other way: a task, which is there until it is done.
	hosts = nil
	for range 4 {
		hosts = append(hosts, script(t, e.url, "cron_once/must_happen.sql"))
	}
	created := 0
	for _, host := range hosts {
		created += strings.Count(host.succeeds(), "t\n")
	}
	if tasks := get[int](e.session(t), "select count(*) from lock.list_tasks('reports', max => 10) where timeout = '10 minutes'"); tasks != created || created < 1 || created > 2 {
		t.Errorf("%d tasks, and %d hosts made one", tasks, created)
	}
}

func TestRecipeImportCustomer(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "it locks a table")
	e := opened(t, "create table item (customer text, name text); insert into item values ('7', 'old')")
	file := filepath.Join(t.TempDir(), "items")
	must(t, os.WriteFile(file, []byte("one\ntwo\n"), 0o600))
	gate := e.sessionAs(t, e.super)
	gate.exec("begin; lock table item in access exclusive mode")
	first := recipe(t, "import_customer", e.url, "7", file)
	sessionsWait(t, e, 1)
	if said := recipe(t, "import_customer", e.url, "7", file).succeeds(); !strings.Contains(said, "somebody else") {
		t.Errorf("the second one said %s", said)
	}
	first.signal(syscall.SIGKILL)
	gate.exec("rollback")
	s := e.session(t)
	eventually(t, "the next one imports", func() bool {
		return strings.Contains(recipe(t, "import_customer", e.url, "7", file).succeeds(), "imported")
	})
	answers(s, "one,two", "select string_agg(name, ',' order by name) from item where customer = '7'")
}

func TestRecipeLeader(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "it asks for the state of sessions")
	e := opened(t, "create table beat (id bigint generated always as identity, token bigint, leader text)")
	s := e.session(t)
	beats := func(leader string) func() bool {
		return func() bool { return get[int](s, "select count(*) from beat where leader = $1", leader) > 0 }
	}
	first := recipe(t, "leader", named(t, e.url, "leader one"), "one")
	eventually(t, "the first leads", beats("one"))
	second := recipe(t, "leader", e.url, "two")
	// halt stops it between two transactions: one that has asserted the lease keeps it.
	halt := func() {
		eventually(t, "the first stands still outside a transaction", func() bool {
			first.signal(standStill)
			if get[int](e.sessionAs(t, e.super), "select count(*) from pg_stat_activity where application_name = 'leader one' and state <> 'idle'") == 0 {
				return true
			}
			first.signal(goOn)
			return false
		})
	}
	halt()
	lockstest.Expire(t, openPool(t, e.owner, 1), "leader")
	eventually(t, "the second leads", func() bool {
		if get[int](e.sessionAs(t, e.super), "select count(*) from pg_stat_activity where application_name = 'leader one' and state <> 'idle'") > 0 {
			first.signal(goOn) // what it had sent before
			halt()
		}
		return beats("two")()
	})
	first.signal(goOn)
	eventually(t, "the first knows", func() bool { return strings.Contains(first.said(), "leadership ended") })
	answers(s, 0, "select count(*) from (select token < lag(token) over (order by id) as stale from beat) as beats where stale")
	for _, p := range []*program{first, second} {
		p.signal(syscall.SIGTERM)
		p.succeeds()
	}
	answers(s, 0, "select count(*) from lock.lease_holder")
}

func TestRecipeRateLimit(t *testing.T) {
	t.Parallel()
	e := opened(t, "")
	server := recipe(t, "rate_limit", e.url, "5", "1h")
	eventually(t, "it listens", func() bool { return strings.Contains(server.said(), "\n") })
	address := "http://" + strings.TrimSpace(server.said())
	call := func(key string) int {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		must(t, err)
		request.Header.Set("X-Api-Key", key)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	var granted, denied atomic.Int64
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			switch call("secret a") {
			case http.StatusOK:
				granted.Add(1)
			case http.StatusTooManyRequests:
				denied.Add(1)
			}
		})
	}
	callers.Wait()
	if granted.Load() != 5 || denied.Load() != 15 {
		t.Errorf("%d granted, %d denied", granted.Load(), denied.Load())
	}
	if got := call("secret b"); got != http.StatusOK {
		t.Errorf("another key: %d", got)
	}
	super := e.sessionAs(t, e.super)
	answers(super, 1, "select count(*) from lock.throttled_resource where resource_id = 'api:' || encode(sha256('secret a'), 'hex')")
	super.exec("revoke execute on function lock.lock_throttled_resource from locks_app")
	if got := call("secret c"); got != http.StatusServiceUnavailable {
		t.Errorf("without an answer of the database: %d", got)
	}
}

func TestRecipeRebuildCache(t *testing.T) {
	t.Parallel()
	e := opened(t, "create table cache (name text primary key, value text not null, built_at timestamptz not null)")
	gate := e.session(t)
	gate.exec("begin")
	gate.exec("select lock.exclusive('cache:prices')")
	var askers []*program
	for range 4 {
		askers = append(askers, recipe(t, "rebuild_cache", e.url, "prices"))
	}
	sessionsWait(t, e, len(askers))
	gate.exec("commit")
	built := 0
	for _, asker := range askers {
		said := asker.succeeds()
		built += strings.Count(said, "building prices")
		if !strings.Contains(said, "prices as of") {
			t.Errorf("it said %s", said)
		}
	}
	if built != 1 {
		t.Errorf("it was built %d times", built)
	}
	gate.exec("update cache set built_at = built_at - interval '1 hour'")
	if said := recipe(t, "rebuild_cache", e.url, "prices").succeeds(); !strings.Contains(said, "building") {
		t.Errorf("what is too old was not built anew: %s", said)
	}
}

func TestRecipeWorkQueue(t *testing.T) {
	t.Parallel()
	e := opened(t, "")
	s := e.session(t)
	directory := filepath.Join(t.TempDir(), "mail")
	worker := recipe(t, "work_queue", e.url, directory)
	s.exec(`select lock.create_task('to a/b', 'mail', timeout => '1 minute', payload => '{"text": "hello"}')`)
	eventually(t, "it has failed, as there is no directory", func() bool {
		return get[string](s, "select coalesce(max(message), '') from lock.list_tasks('mail', 'failed')") != ""
	})
	must(t, os.Mkdir(directory, 0o700))
	eventually(t, "it is delivered", func() bool {
		return get[string](s, "select status::text from lock.get_task('to a/b', 'mail')") == "done"
	})
	if text, err := os.ReadFile(filepath.Join(directory, "to%20a%2Fb.mail")); err != nil || string(text) != "hello" {
		t.Errorf("%s %v", text, err)
	}
	// The hour's digest makes the next hour's: as when all of the workers were down for long.
	answers(s, true, "select count(*) = 1 and bool_and(available_at > clock_timestamp()) from lock.list_tasks('mail', 'new', 10)")
	e.sessionAs(t, e.super).exec("delete from lock.task where id like 'digest %'")
	s.exec("select lock.create_task('digest 2000-01-01 00', 'mail', timeout => '1 minute')")
	eventually(t, "it is done", func() bool {
		return get[string](s, "select status::text from lock.get_task('digest 2000-01-01 00', 'mail')") == "done"
	})
	answers(s, true, "select count(*) = 1 and bool_and(available_at > clock_timestamp()) from lock.list_tasks('mail', 'new', 10)")
	worker.signal(syscall.SIGTERM)
	worker.succeeds()
}

func TestRecipeOutbox(t *testing.T) {
	t.Parallel()
	needsPsql(t)
	e := opened(t, "")
	script(t, e.super, "outbox/setup.sql").succeeds()
	s := e.sessionAs(t, e.super)
	var mu sync.Mutex
	var keys, bodies []string
	answer, victim := make(chan int, 10), make(chan *program, 1)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		keys, bodies = append(keys, r.Header.Get("Idempotency-Key")), append(bodies, string(body))
		mu.Unlock()
		switch code := <-answer; code {
		case 0: // the change has been sent, and then the program dies
			worker := <-victim
			worker.signal(syscall.SIGKILL)
			<-worker.done
		default:
			w.WriteHeader(code)
		}
	}))
	t.Cleanup(service.Close)
	t.Cleanup(func() { close(answer) })
	got := func(n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(keys) == n
		}
	}
	s.exec("begin; insert into shop_order (customer, item) values ('ann', 'never'); rollback")
	s.exec("insert into shop_order (customer, item) values ('ann', 'tea'); update shop_order set item = 'coffee'")
	answer <- 200
	answer <- 0
	worker := recipe(t, "outbox", e.url, service.URL)
	victim <- worker
	eventually(t, "both changes were sent", got(2))
	if err := worker.ended(); err == nil {
		t.Error("it was not killed")
	}
	answer <- 503
	worker = recipe(t, "outbox", e.url, service.URL)
	eventually(t, "the first is sent again", got(3))
	answer <- 200
	answer <- 200
	eventually(t, "and both, when the service is back", got(5))
	eventually(t, "both are settled", func() bool {
		return get[int](s, "select count(*) from lock.request where request_status = 'complete'") == 2
	})
	worker.signal(syscall.SIGTERM)
	worker.succeeds()
	mu.Lock()
	defer mu.Unlock()
	if keys[0] == keys[1] || strings.Join(keys, " ") != strings.Join([]string{keys[0], keys[1], keys[0], keys[0], keys[1]}, " ") {
		t.Errorf("the keys: %q", keys)
	}
	if !strings.Contains(bodies[0], "tea") || !strings.Contains(bodies[1], "coffee") || strings.Contains(strings.Join(bodies, ""), "never") {
		t.Errorf("the bodies: %q", bodies)
	}
}

func TestRecipeSeveralLocks(t *testing.T) {
	t.Parallel()
	e := opened(t, "create table account (id bigint primary key, balance bigint not null check (balance >= 0)); insert into account values (1, 100), (2, 100)")
	gate := e.session(t)
	gate.exec("begin")
	gate.exec("select lock.exclusive('account:1')")
	there := script(t, e.url, "several_locks/transfer.sql", "from=1", "to=2", "amount=10")
	sessionsWait(t, e, 1)
	back := script(t, e.url, "several_locks/transfer.sql", "from=2", "to=1", "amount=1")
	sessionsWait(t, e, 2)
	gate.exec("commit")
	there.succeeds()
	back.succeeds()
	if script(t, e.url, "several_locks/transfer.sql", "from=1", "to=3", "amount=10").ended() == nil {
		t.Error("an account that is not there got money")
	}
	if script(t, e.url, "several_locks/transfer.sql", "from=1", "to=2", "amount=1000").ended() == nil {
		t.Error("an account got into debt")
	}
	answers(gate, "1=91 2=109", "select string_agg(id || '=' || balance, ' ' order by id) from account")
}

func TestRecipeMigrateOnce(t *testing.T) {
	t.Parallel()
	e := opened(t, "")
	gate := e.sessionAs(t, e.super)
	gate.exec("begin")
	gate.exec("select lock.exclusive('migrate:shop')")
	var replicas []*program
	for range 4 {
		replicas = append(replicas, script(t, e.super, "migrate_once/migrate.sql"))
	}
	sessionsWait(t, e, len(replicas))
	gate.exec("commit")
	for _, replica := range replicas {
		replica.succeeds()
	}
	answers(gate, 1, "select count(*) from shop_version")
	answers(gate, 0, "select count(*) from shop_order")
}

// A payService charges once per idempotency key, and refuses a token that is smaller than one that it has seen.
type payService struct {
	mu       sync.Mutex
	greatest int64
	receipts map[string]string
	refused  int
	// arrived is called with each call before it counts, replying with each that was charged before it is answered.
	arrived, replying func(token int64)
}

func (p *payService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.arrived(token)
	p.mu.Lock()
	if token < p.greatest {
		p.refused++
		p.mu.Unlock()
		http.Error(w, "stale", http.StatusConflict)
		return
	}
	p.greatest = token
	key := r.Header.Get("Idempotency-Key")
	if p.receipts[key] == "" {
		p.receipts[key] = fmt.Sprint("receipt ", len(p.receipts)+1)
	}
	receipt := p.receipts[key]
	p.mu.Unlock()
	p.replying(token)
	fmt.Fprint(w, receipt)
}

func TestRecipeFencing(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (*env, *payService, string) {
		e := opened(t, `create table invoice (id bigint primary key, amount bigint not null, state text not null default 'open', receipt text, writes integer not null default 0);
			create function count_writes() returns trigger language plpgsql as $$ begin new.writes := old.writes + 1; return new; end; $$;
			create trigger count_writes before update on invoice for each row when (new.state = 'paid') execute function count_writes();
			insert into invoice values (12, 500)`)
		nothing := func(int64) {}
		service := &payService{receipts: map[string]string{}, arrived: nothing, replying: nothing}
		server := httptest.NewServer(service)
		t.Cleanup(server.Close)
		return e, service, server.URL
	}
	paid := func(t *testing.T, e *env, service *payService, refused int) {
		t.Helper()
		answers(e.session(t), "paid receipt 1 once", "select state || ' ' || receipt || case writes when 1 then ' once' else ' again' end from invoice where id = 12")
		service.mu.Lock()
		defer service.mu.Unlock()
		if len(service.receipts) != 1 || service.refused != refused {
			t.Errorf("%d charges, %d refused", len(service.receipts), service.refused)
		}
	}
	t.Run("a call that is late is refused by its token", func(t *testing.T) {
		t.Parallel()
		e, service, url := start(t)
		late, released := make(chan struct{}), make(chan struct{})
		service.arrived = func(token int64) {
			if token == 1 {
				close(late)
				<-released
			}
		}
		release := sync.OnceFunc(func() { close(released) })
		t.Cleanup(release)
		first := recipe(t, "fencing", e.url, url, "12")
		arrives(t, late)
		if recipe(t, "fencing", e.url, url, "12").ended() == nil {
			t.Error("two at once")
		}
		lockstest.Expire(t, openPool(t, e.owner, 1), "invoice:12")
		recipe(t, "fencing", e.url, url, "12").succeeds()
		release()
		if first.ended() == nil {
			t.Error("the first one did not notice")
		}
		paid(t, e, service, 1)
	})
	t.Run("one that stood still after the charge does not write", func(t *testing.T) {
		t.Parallel()
		e, service, url := start(t)
		charged, released := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(released) })
		t.Cleanup(release)
		service.replying = func(token int64) {
			if token == 1 {
				close(charged)
				<-released
			}
		}
		first := recipe(t, "fencing", e.url, url, "12")
		arrives(t, charged)
		lockstest.Expire(t, openPool(t, e.owner, 1), "invoice:12")
		recipe(t, "fencing", e.url, url, "12").succeeds()
		release()
		if first.ended() == nil {
			t.Error("the first one wrote all the same")
		}
		paid(t, e, service, 0)
	})
	t.Run("what was charged by one that died is not charged again", func(t *testing.T) {
		t.Parallel()
		e, service, url := start(t)
		var first *program
		started := make(chan struct{})
		service.replying = func(token int64) {
			if token == 1 {
				<-started
				first.signal(syscall.SIGKILL)
				<-first.done
			}
		}
		first = recipe(t, "fencing", e.url, url, "12")
		close(started)
		if first.ended() == nil {
			t.Error("it was not killed")
		}
		answers(e.session(t), "sending", "select state from invoice where id = 12")
		lockstest.Expire(t, openPool(t, e.owner, 1), "invoice:12")
		recipe(t, "fencing", e.url, url, "12").succeeds()
		recipe(t, "fencing", e.url, url, "12").succeeds() // there is nothing to do
		paid(t, e, service, 0)
	})
}

// TestRecipePages compares what the pages quote with the files that are tested.
func TestRecipePages(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile(filepath.Join(root(t), "docs", "recipes.md"))
	must(t, err)
	for _, kind := range []struct{ pattern, page string }{
		{"examples/*_*/*", "recipes"}, {"examples/leader/*", "recipes"}, {"examples/outbox/*", "recipes"}, {"examples/fencing/*", "recipes"},
		{"tests/telemetry/*", "recipes"}, {"examples/languages/*", "languages"},
	} {
		files, err := filepath.Glob(filepath.Join(root(t), kind.pattern))
		must(t, err)
		if len(files) == 0 {
			t.Errorf("no file is like %s", kind.pattern)
		}
		for _, file := range files {
			page := "docs/languages/" + strings.TrimPrefix(filepath.Ext(file), ".") + ".md"
			if kind.page == "recipes" {
				name := filepath.Base(filepath.Dir(file))
				page = "docs/recipes/" + name + ".md"
				if !strings.Contains(string(index), "(recipes/"+name+".md)") {
					t.Errorf("docs/recipes.md has no link to %s", page)
				}
			}
			for _, wrong := range quotes(t, page, file) {
				t.Error(wrong)
			}
		}
	}
	if wrong := quotes(t, "docs/recipes/leader.md", filepath.Join(root(t), "examples", "outbox", "main.go")); len(wrong) != 1 {
		t.Errorf("the checker takes a page that quotes another file: %q", wrong)
	}
}

// quotes says whether a page lacks the text of a file.
func quotes(t *testing.T, page, file string) (wrong []string) {
	t.Helper()
	quoted, err := os.ReadFile(filepath.Join(root(t), page))
	must(t, err)
	text, err := os.ReadFile(file)
	must(t, err)
	for _, block := range strings.Split(string(quoted), "\n```")[1:] {
		if _, code, _ := strings.Cut(block, "\n"); code+"\n" == string(text) {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s does not quote %s as it is", page, file)}
}
