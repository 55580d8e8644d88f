package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks/lockstest/server"
)

// runbooks are the queries of docs/runbooks.md by their heading.
func runbooks(page string) map[string][]string {
	books := map[string][]string{}
	for _, section := range strings.Split(page, "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		for _, block := range regexp.MustCompile("(?s)\n```sql\n(.*?)\n```\n").FindAllStringSubmatch(body, -1) {
			books[heading] = append(books[heading], block[1])
		}
	}
	return books
}

// operator gives the role that the page asks for.
func operator(t *testing.T, super, owner *session) {
	t.Helper()
	super.exec("do $$ begin create role locks_operator login in role pg_monitor; exception when duplicate_object or unique_violation then end $$")
	owner.exec("select lock.grant_to('locks_operator')")
}

// A trouble makes what a runbook is about. It asks the section's queries by their number, before and after, each a line a row.
type trouble func(t *testing.T, e *env, ask func(query int) string)

// shows checks that an answer has a row with all of the words, or none.
func shows(t *testing.T, answer string, want bool, words ...string) {
	t.Helper()
	got := slices.ContainsFunc(strings.Split(answer, "\n"), func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
	if got != want {
		t.Errorf("a row with %q: %v, want %v, in\n%s", words, got, want, answer)
	}
}

var troubles = map[string]trouble{
	"A key that nobody seems to hold": func(t *testing.T, e *env, ask func(int) string) {
		shows(t, ask(0), false, "exclusive")
		holder := e.session(t)
		holder.exec("begin; select lock.exclusive('customer:42')")
		shows(t, ask(0), true, "exclusive|true|", fmt.Sprint(holder.pid), "locks_app", "idle in transaction")
		holder.exec("prepare transaction 'forgotten " + filepath.Base(e.url) + "'")
		shows(t, ask(0), true, "exclusive|true|0|", "forgotten")
		holder.exec("rollback prepared 'forgotten " + filepath.Base(e.url) + "'")
		shows(t, ask(0), false, "exclusive")
	},
	"A chain behind an idle session": func(t *testing.T, e *env, ask func(int) string) {
		root, middle, last := e.session(t), e.session(t), e.session(t)
		root.exec("begin; select lock.exclusive('a')")
		shows(t, ask(0), false, fmt.Sprint(root.pid))
		middle.exec("begin; select lock.exclusive('b')")
		first := middle.start("select lock.exclusive('a')").blocked()
		second := last.start("select lock.exclusive('b')").blocked()
		shows(t, ask(0), true, fmt.Sprint(root.pid)+"|locks_app|", "idle in transaction", "|2")
		// What the page says to do.
		e.sessionAs(t, e.super).exec("select pg_terminate_backend($1)", root.pid)
		first.ends()
		middle.exec("commit")
		second.ends()
		shows(t, ask(0), false, fmt.Sprint(root.pid))
	},
	"A mutex left by a crash": func(t *testing.T, e *env, ask func(int) string) {
		e.session(t).exec("select lock.create_mutex('free'), lock.acquire_mutex('nightly-report', 'host 7')")
		shows(t, ask(0), true, "nightly-report|host 7|")
		shows(t, ask(0), false, "free")
		e.sessionAs(t, e.owner).exec("select lock.force_release_mutex('nightly-report', 'host 7 is gone, its files are removed')")
		shows(t, ask(0), false, "nightly-report")
	},
	"A lease that flaps": func(t *testing.T, e *env, ask func(int) string) {
		s, super := e.session(t), e.sessionAs(t, e.super)
		s.exec("select lock.acquire_lease('leader', 'one', '1 hour'), lock.acquire_lease('late', 'slow', '1 hour'), lock.acquire_lease('sound', 'well', '1 hour')")
		super.exec("update lock.lease set acquired_at = acquired_at - interval '2 hours'")
		shows(t, ask(0), false, "1")
		super.exec("update lock.lease set renewed_at = renewed_at - interval '40 minutes', expires_at = expires_at - interval '40 minutes' where name = 'late'")
		for n, owner := range []string{"two", "one"} {
			super.exec("update lock.lease set expires_at = clock_timestamp() where name = 'leader'")
			s.exec("select lock.acquire_lease('leader', $1, '1 hour')", owner)
			shows(t, ask(0), true, fmt.Sprintf("leader|%d|%s|", n+2, owner))
		}
		shows(t, ask(0), true, "late|1|slow|")
		shows(t, ask(0), false, "sound")
	},
	"A pile of dead letters": func(t *testing.T, e *env, ask func(int) string) {
		s := e.session(t)
		s.exec("select lock.create_task('well'), lock.create_tasks('{a,b,c}')")
		s.exec("select lock.set_status(id, 'failed', attempt => attempt, message => 'no such file', dead => true) from lock.capture(3) where id <> 'well'")
		answers(s, true, "select count(*) >= 2 from lock.dead_letter")
		dead := get[int64](s, "select count(*) from lock.dead_letter")
		shows(t, ask(0), true, fmt.Sprintf("default|no such file|%d|", dead))
		answers(s, dead, "select lock.retry_tasks('default', retries_left => 3, max => 100)")
		shows(t, ask(0), false, "no such file")
	},
	"A queue that grows": func(t *testing.T, e *env, ask func(int) string) {
		e.operates(t)
		s := e.session(t)
		s.exec("select lock.create_tasks('{a,b,c}', 'reports'), lock.enqueue('update', 'x', queue_id => 'sheets'), lock.pause_queue('request', 'sheets', 'disk full')")
		shows(t, ask(0), true, "task|reports|3|0|0|0|")
		shows(t, ask(0), true, "request|sheets|1|0|", "disk full")
	},
	"A worker that hangs": func(t *testing.T, e *env, ask func(int) string) {
		s := e.session(t)
		s.exec("select lock.create_task('bounded', timeout => '1 microsecond'), lock.create_task('endless', timeout => null, available_at => '2020-01-01')")
		shows(t, ask(0), false, "default: ")
		s.exec("select lock.capture(2, owner => 'host 7')")
		shows(t, ask(0), true, "default: bounded|host 7|", "attempt 1")
		shows(t, ask(0), true, "default: endless|host 7|", "|null|")
		answers(s, true, "select lock.set_status('endless', 'new', queue_id => 'default')")
		shows(t, ask(0), false, "endless")
	},
	"An entity that is stuck": func(t *testing.T, e *env, ask func(int) string) {
		s := e.session(t)
		s.exec("select lock.enqueue('update', 'sheet 1')")
		s.exec("begin; select lock.capture_request(" + oneProcess + "); select lock.settle_request(" + oneProcess + ", 'retry', 'no licence', '1 hour'); commit")
		shows(t, ask(0), true, "update|new|1|", "no licence")
		shows(t, ask(1), false, "locks_app")
		e.sessionAs(t, e.super).exec("update lock.request set available_at = null")
		s.exec("begin; select lock.capture_request(" + oneProcess + ")")
		shows(t, ask(0), true, "update|new|") // until the worker commits
		shows(t, ask(1), true, fmt.Sprint(s.pid), "locks_app", "idle in transaction")
		s.exec("rollback")
		shows(t, ask(1), false, "locks_app")
	},
	"A growing history": func(t *testing.T, e *env, ask func(int) string) {
		first := func() string { return strings.SplitAfter(ask(0), "\n")[0] }
		shows(t, first(), false, "task|")
		e.session(t).exec("select lock.create_tasks(array(select k::text from generate_series(1, 5000) k), 'old', status => 'done')")
		shows(t, first(), true, "task|")
		e.operates(t)
		answers(e.session(t), int64(0), "select lock.purge_tasks('30 days', queue_id => 'default')")
	},
	"Upgrade": func(t *testing.T, e *env, ask func(int) string) {
		reader, migrator := e.session(t), e.sessionAs(t, e.owner)
		reader.exec("begin; select from lock.queue_depth")
		waiting := migrator.start("alter table lock.task add column planted integer").blocked()
		shows(t, ask(0), true, fmt.Sprint(migrator.pid), fmt.Sprintf("[%d]", reader.pid), "alter table lock.task")
		reader.exec("commit")
		waiting.ends()
		shows(t, ask(0), false, "alter table lock.task")
	},
	"Too many locks (53200)": func(t *testing.T, e *env, ask func(int) string) {
		s := e.session(t)
		s.exec("begin; select lock.exclusive(k) from generate_series(1, 500) k")
		room := get[string](s, "select (current_setting('max_locks_per_transaction')::int * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int))::text")
		shows(t, ask(0), true, fmt.Sprintf("%d|500|%s", s.pid, room))
	},
}

// ask runs a runbook's queries as a session, and marks them as run.
func (books runbookSet) ask(t *testing.T, s *session, heading string) func(int) string {
	return func(n int) string {
		t.Helper()
		if n >= len(books.queries[heading]) {
			t.Fatalf("%s has no query %d", heading, n)
		}
		books.run[heading][n] = true
		rows, _ := s.conn.Query(ctx, books.queries[heading][n])
		lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			values, err := row.Values()
			var texts []string
			for _, value := range values {
				if value == nil {
					value = "null"
				}
				texts = append(texts, fmt.Sprint(value))
			}
			return strings.ReplaceAll(strings.Join(texts, "|"), "\n", " "), err
		})
		must(t, err)
		return strings.Join(lines, "\n")
	}
}

type runbookSet struct {
	queries map[string][]string
	run     map[string][]bool
}

func TestRunbooks(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "pg_locks is another there")
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "runbooks.md"))
	must(t, err)
	books := runbookSet{runbooks(string(page)), map[string][]bool{}}
	for heading, queries := range books.queries {
		books.run[heading] = make([]bool, len(queries))
		if troubles[heading] == nil && heading != "Failover" { // which has a test of its own
			t.Errorf("no test makes the trouble of %q", heading)
		}
	}
	if headings := strings.Count(string(page), "\n## "); headings != len(books.queries) || headings != len(troubles)+1 {
		t.Errorf("%d runbooks, %d with a query, %d troubles", headings, len(books.queries), len(troubles))
	}
	t.Run("all", func(t *testing.T) {
		for heading, make := range troubles {
			t.Run(heading, func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				operator(t, e.sessionAs(t, e.super), e.sessionAs(t, e.owner))
				at, err := pgx.ParseConfig(e.url)
				must(t, err)
				make(t, e, books.ask(t, e.sessionAs(t, as(e.url, "locks_operator", at.Database)), heading))
			})
		}
	})
	for heading, run := range books.run {
		if n := slices.Index(run, false); n >= 0 && heading != "Failover" {
			t.Errorf("no test runs query %d of %q", n+1, heading)
		}
	}
}

func TestRunbookFailover(t *testing.T) {
	t.Parallel()
	primary, replicate := openPair(t)
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "runbooks.md"))
	must(t, err)
	books := runbookSet{runbooks(string(page)), map[string][]bool{"Failover": {false}}}
	if len(books.queries["Failover"]) != 1 {
		t.Fatalf("%d queries", len(books.queries["Failover"]))
	}
	e := &env{}
	super := e.sessionAs(t, primary.URL("postgres", "postgres"))
	operator(t, super, e.sessionAs(t, primary.URL("locks_owner", "postgres")))
	ask := func(on *server.Server) string {
		return books.ask(t, e.sessionAs(t, on.URL("locks_operator", "postgres")), "Failover")(0)
	}
	shows(t, ask(primary), false, "synchronous_standby_names")
	standby := replicate()
	eventually(t, "the standby streams", func() bool {
		return get[bool](super, "select exists (select from pg_stat_replication where state = 'streaming' and application_name <> 'pg_basebackup')")
	})
	shows(t, ask(primary), true, "warning|synchronous_standby_names|")
	shows(t, ask(standby), true, "error|standby|")
}
