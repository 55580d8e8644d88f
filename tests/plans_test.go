package tests

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks/lockstest/server"
)

// planCalls are calls of everything that is called often, each in the states that it meets.
const planCalls = `select lock.exclusive('a'); select lock.exclusive('a'); select lock.shared(5); select lock.try_exclusive(2, '1 s'); select lock.who('a'); select from lock.blocked;
select lock.acquire_mutex('a'); select lock.acquire_mutex('a'); select lock.release_mutex('a'); select lock.release_mutex('a'); select lock.acquire_mutex('a');
select lock.create_timeout('t', '1 microsecond'); select lock.acquire_timeout('t'); select lock.acquire_timeout('t');
select lock.acquire_time_slot('t', '1 microsecond'); select lock.acquire_time_slot('t', '1 day'); select lock.acquire_time_slot('t', '1 day');
select lock.create_throttled_resource('r', '1 hour'); select lock.lock_throttled_resource('r', 'x'); select lock.lock_throttled_resource('r', 'x');
select lock.create_throttled_resource('p', '1 hour', 2); select lock.lock_throttled_resource('p', 'x') from generate_series(1, 3); select lock.create_throttled_resource('p', '1 hour', 3);
select lock.take('r', 1, '1 hour'); select lock.take('r', 1, '1 hour'); select lock.take('r', 1000000, '1 second');
select lock.acquire_lease('a', 'me', '1 hour'); select lock.acquire_lease('a', 'me', '1 hour'); select lock.acquire_lease('a', 'me', '1 microsecond', 2);
select lock.acquire_lease('a', 'me', '1 hour', 2); select lock.await_lease('a', 'me', '1 hour', 2); select lock.renew_lease('a', 1, '1 hour');
select lock.assert_lease('a', 1); select lock.release_lease('a', 1); select lock.release_lease('a', 1);
begin isolation level repeatable read; savepoint s; select lock.assert_lease('a', 9); rollback;
select lock.create_task('a', timeout => '1 microsecond'); select lock.create_task('b', payload => '{}'); select lock.capture(5); select lock.capture(5); select lock.extend_task('b', 1, '1 s'); select lock.extend_tasks('{b}', '{1}', '1 s');
select lock.set_status('a', 'failed', delay => '1 microsecond'); select lock.settle_and_capture('{b}', '{1}', '{failed}', 5, delays => '{1 s}'); select lock.settle_and_capture('{b}', '{1}', '{done}', 0, reports => true);
select lock.next_task_in('default', '{new,failed}'); select lock.open_transactions(); select lock.open_transactions('{5}');
select lock.start_idling('lock_task', 'default', 'w', '1 min'); select lock.start_idling('lock_request', 'default', 'w', '1 min');
select lock.await_task('{a}', '{1}', '{retry}', worker => 'v'); select lock.await_task(worker => 'v'); select lock.await_task(worker => 'v'); select lock.await_task(worker => 'v');
select lock.await_request(gen_random_uuid()); select lock.await_request(gen_random_uuid()); select lock.await_request(gen_random_uuid());
select lock.pause_queue('task', 'q', 'why'); select lock.pause_queue('task', 'q', 'why'); select lock.resume_queue('task', 'q'); select lock.list_tasks(); select lock.list_tasks(status => 'in_progress'); select lock.check(); select lock.queue_sizes();
select lock.create_task('c'); select lock.enqueue('create', 'e'); select lock.enqueue('update', 'e'); select lock.enqueue('update', 'f');
begin; select lock.capture_request('00000000-0000-4000-8000-000000000001'); select lock.settle_request('00000000-0000-4000-8000-000000000001'); commit;
begin; select lock.capture_request('00000000-0000-4000-8000-000000000002'); select lock.settle_request('00000000-0000-4000-8000-000000000002', 'retry', delay => '1 s'); commit;
begin; select lock.capture_request('00000000-0000-4000-8000-000000000003'); rollback;
select lock.stop_idling('lock_task', 'default', 'w'); select lock.request_history('e');
create table tracked (id integer primary key, x text); select lock.track_changes('tracked', 'id'); insert into tracked select generate_series(1, 300);
update tracked set x = 'x'; update tracked set x = 'y' where id = 1; delete from tracked`

// planResort is a plan that the planner takes for want of any other that is allowed: its cost has ten digits (before PostgreSQL 18), so that it is compiled
// first, which takes longer than anything that it does. Leases come and go, so that a scan of their table, which is right when
// it is empty, would soon read mostly dead rows.
var planResort = regexp.MustCompile(`cost=\d{10}|Disabled: true|\nJIT:|Seq Scan on lease `)

// TestPlans looks for statements that what a function sets for the planner leaves without a good plan.
func TestPlans(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "auto_explain's output is another")
	// resorts are the texts of the statements that had such a plan.
	resorts := func(t *testing.T, e *env) (texts []string) {
		t.Helper()
		config, err := pgx.ParseConfig(e.super)
		must(t, err)
		plans := 0
		config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
			if !strings.Contains(notice.Message, "plan:") {
				return
			}
			plans++
			if planResort.MatchString(notice.Message) {
				texts = append(texts, notice.Message)
			}
		}
		conn, err := pgx.ConnectConfig(ctx, config)
		must(t, err)
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "load 'auto_explain'"); err != nil {
			t.Skipf("auto_explain is not installed: %v", err)
		}
		_, err = conn.Exec(ctx, "set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on; set client_min_messages = log")
		must(t, err)
		for statement := range strings.SplitSeq("vacuum analyze;"+planCalls, ";") {
			if _, err := conn.Exec(ctx, statement); err != nil && code(err) != "40001" {
				t.Fatalf("%s: %v", strings.TrimSpace(statement), err)
			}
		}
		if plans < 200 {
			t.Fatalf("only %d plans were seen", plans)
		}
		return texts
	}
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			for _, text := range resorts(t, open(t, engine)) {
				t.Error(text)
			}
		})
	}
	for _, broken := range []struct{ function, from, sees string }{
		{"add_lease_name", "    where lease_floor.only_row\n", "lease_floor"},
		{"release_lease", " SET enable_seqscan TO 'off'\n", "Seq Scan on lease "},
	} {
		t.Run("catches a worse "+broken.function, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, broken.function, broken.from, "")
			if texts := resorts(t, e); len(texts) == 0 || !strings.Contains(texts[0], broken.sees) {
				t.Fatalf("got %q", texts)
			}
		})
	}
}

// roundCalls are calls of every function of schema lock in the states that it meets, # being the number of the round: each round is as
// the first. What a function needs is prepared by others before it in its own group.
var roundCalls = []string{
	`begin; select lock.exclusive(#); select lock.exclusive('#'); select lock.shared(#); select lock.shared('#'); select lock.try_exclusive(#); select lock.try_exclusive('#', '1 s');
		select lock.try_shared(#); select lock.try_shared('#', '1 s'); commit; select lock.unlock(#); select lock.unlock('#'); select lock.key('#'); select lock.advisory_key(#); select lock.engine(); select lock.vacuum()`,
	`select lock.exclusive_all('{#,a}')`, `select lock.try_all('{#,a}', '{#}', '{b}', '{7}', '1 s')`,
	`select lock.create_mutex('#'); select lock.create_mutex('#'); select lock.acquire_mutex('#', 'me'); select lock.acquire_mutex('#', 'me'); select lock.release_mutex('#', 'me'); select lock.release_mutex('#');
		select lock.acquire_mutex('new #'); select lock.force_release_mutex('new #', 'why'); select lock.drop_unused_mutexes('1 day')`,
	`select lock.create_timeout('#', '1 h'); select lock.create_timeout('#', '2 h'); select lock.acquire_timeout('#'); select lock.acquire_timeout('#'); select lock.force_release_timeout('#', 'why');
		select lock.drop_unused_timeouts('1 day')`,
	`select lock.acquire_time_slot('#', '1 microsecond'); select lock.acquire_time_slot('#', '1 microsecond'); select lock.acquire_time_slot('#', '1 day'); select lock.acquire_time_slot('#', '1 day');
		select lock.force_release_time_slot('#', 'why'); select lock.drop_unused_time_slots('1 day')`,
	`select lock.create_throttled_resource('#', '1 h'); select lock.create_throttled_resource('#', '1 h'); select lock.lock_throttled_resource('#', 'x'); select lock.lock_throttled_resource('#', 'x');
		select lock.force_release_throttled_resource('#', 'why'); select lock.create_throttled_resource('many #', '1 h', 2); select lock.lock_throttled_resource('many #', 'x');
		select lock.lock_throttled_resource('many #', 'x'); select lock.lock_throttled_resource('many #', 'x'); select lock.create_throttled_resource('many #', '1 h', 3);
		select lock.create_throttled_resource('many #', '1 h', 1); select lock.force_release_throttled_resource('many #', 'why'); select lock.drop_unused_throttled_resources('1 day')`,
	`select lock.take('#', 1, '1 h'); select lock.take('#', 1, '1 h'); select lock.take('#', 1000000, '1 s', 100000000); select lock.force_release_rate_limit('#', 'why'); select lock.drop_unused_rate_limits('1 day')`,
	`select lock.acquire_lease('#', 'me', '1 h'); select lock.acquire_lease('#', 'me', '1 h'); select lock.await_lease('#', 'me', '1 h'); select lock.renew_lease('#', 1, '1 h'); select lock.assert_lease('#', 1);
		select lock.release_lease('#', 1); select lock.await_lease('#', 'me', '1 h', 2); select lock.acquire_lease('#', 'me', '1 microsecond', 2); select lock.acquire_lease('#', 'me', '1 h', 2);
		select lock.force_release_lease('#', (select max(token) from lock.lease where name = '#'), 'why'); select lock.drop_unused_leases('1 day')`,
	`select lock.start_idling('lock_task', 'q', 'w', '1 min'); select lock.start_idling('lock_task', 'q', 'w', '1 min'); select lock.open_transactions(); select lock.open_transactions('{5}');
		select lock.create_task('woken #', 'q'); select lock.stop_idling('lock_task', 'q', 'w');
		select lock.pause_queue('task', 'q', 'why'); select lock.pause_queue('task', 'q', 'why'); select lock.capture(1, 'q'); select lock.resume_queue('task', 'q'); select lock.resume_queue('task', 'q');
		select lock.record_action('task', 'q', 'why', '{}')`,
	`select lock.create_task('#'); select lock.create_task('#', status => 'done', available_at => 'tomorrow'); select lock.create_task('timed #', timeout => '1 h', payload => '{}', retries_left => 3);
		select lock.get_task('#'); select lock.capture(1, owner => 'me', since => '-infinity', max_tries => 5); select lock.extend_task('#', 1, '1 h'); select lock.extend_tasks('{#}', '{1}', '1 h'); select lock.set_status('#', 'failed', 1, delay => '1 s', message => 'm');
		select lock.set_status('#', 'done'); select lock.set_status('timed #', 'failed', dead => true); select lock.retry_task('timed #', 1); select lock.set_status('timed #', 'failed', dead => true);
		select lock.retry_tasks(retries_left => 1); select lock.set_status('timed #', 'done'); select lock.set_status('#', 'new'); select lock.list_tasks(); select lock.next_task_in(); select lock.purge_tasks('1 day');
		select lock.set_status('timed #', 'done'); select lock.create_task('timed #', again => true); select lock.create_task('gone #'); select lock.delete_task('gone #'); select lock.set_status('timed #', 'done')`,
	`select lock.limit_queue('keyed', 2); select lock.create_tasks('{k1 #,k2 #,k3 #}', 'keyed', keys => '{k,k,k}'); select lock.create_task('k4 #', 'keyed', key => 'k', available_at => clock_timestamp() + interval '1 microsecond');
		select lock.capture(3, 'keyed'); select lock.settle_and_capture('{k1 #,k2 #}', '{1,1}', '{done,retry}', 1, 'keyed', shortest => '1 microsecond', longest => '1 microsecond'); select lock.next_task_in('keyed');
		select lock.list_tasks('keyed', key => 'k'); select lock.list_tasks('keyed', 'in_progress', key => 'k'); select lock.set_statuses('{k3 #}', '{1}', 'done', 'keyed'); select lock.capture(3, 'keyed');
		select lock.set_status('k2 #', 'done', queue_id => 'keyed'); select lock.set_status('k4 #', 'done', queue_id => 'keyed')`,
	`select lock.create_tasks('{a #,b #,c #}', payloads => '{1,2,3}'); select lock.capture(2); select lock.set_statuses('{a #}', '{1}', 'failed', delay => '1 microsecond', message => 'm'); select lock.set_statuses('{b #}', '{1}', 'done');
		select lock.settle_and_capture('{}', '{}', '{}', 1); select lock.settle_and_capture('{c #}', '{1}', '{retry}', 5, messages => '{m}'); select lock.await_task('{a #}', '{2}', '{done}', queue_id => 'nothing', worker => 'w');
		select lock.await_task(queue_id => 'nothing', worker => 'w'); select lock.await_task(queue_id => 'nothing', worker => 'w'); select lock.stop_idling('lock_task', 'nothing', 'w');
		select lock.set_status('a #', 'done'); select lock.set_status('c #', 'done')`,
	`select lock.enqueue('create', '#'); select lock.enqueue('update', '#', '{}'); select lock.enqueue('update', '#');
		begin; select lock.capture_request(md5('#')::uuid); select lock.settle_request(md5('#')::uuid, 'error', 'm'); commit;
		begin; select lock.capture_request(md5('#')::uuid, (select max(request_id) - 2 from lock.request)); select lock.settle_request(md5('#')::uuid, 'retry', 'm', '1 microsecond'); commit;
		begin; select lock.await_request(md5('#')::uuid); select lock.settle_request(md5('#')::uuid); commit;
		select lock.await_request(md5('#')::uuid, queue_id => 'nothing', worker => 'w'); select lock.await_request(md5('#')::uuid, queue_id => 'nothing', worker => 'w');
		select lock.await_request(md5('#')::uuid, queue_id => 'nothing', worker => 'w'); select lock.stop_idling('lock_request', 'nothing', 'w');
		select lock.retry_request((select max(request_id) from lock.request where failed)); select lock.cancel_request((select max(request_id) from lock.request), 'why');
		select lock.request_history('#'); select lock.purge_requests('1 day')`,
	`insert into tracked select n from generate_series(#00, #50) n; update tracked set x = 'x' where id between #00 and #50; update tracked set x = 'y' where id = #00; delete from tracked where id between #00 and #50;
		insert into tracked_rows values (#); update tracked_rows set x = 'y' where id = #; delete from tracked_rows where id = #`,
	`select lock.help(); select lock.help('lock.who'); select lock.queue_sizes(); select lock.who(1); select lock.who('a')`,
}

// notPlanned says of the rest why it may plan whenever it is called.
var notPlanned = map[string]string{
	"grant_to": "rare, and GRANT makes the plans of every session void", "grant_monitor_to": "as grant_to", "grant_operator_to": "as grant_to",
	"grant_tracking_to": "as grant_to", "revoke_from": "as grant_to", "clean": "rare: once a day",
	"track_changes": "rare, and DDL", "untrack_changes": "as track_changes",
	"check": "rare, and dynamic SQL about what later migrations bring",
}

// trackedTables are those that roundCalls change.
const trackedTables = `create table tracked (id integer primary key, x text);
	create table tracked_rows (id integer primary key, x text) partition by range (id); create table tracked_part partition of tracked_rows default;
	select lock.track_changes('tracked', 'id'), lock.track_changes('tracked_rows', 'id')`

// crowdedTables makes the tables large.
const crowdedTables = `select lock.create_mutex('m' || n), lock.create_timeout('m' || n, '1 h'), lock.acquire_time_slot('m' || n, '1 day'), lock.create_throttled_resource('m' || n, '1 h', 1 + n % 2),
	lock.start_idling('lock_task', 'm' || n, 'w', '1 h'), lock.pause_queue('task', 'm' || n, 'why'), lock.create_task('m' || n, 'm' || n % 10),
	lock.create_task('d' || n, 'm' || n % 10, status => 'done'), lock.enqueue('create', 'm' || n, queue_id => 'm' || n % 10), lock.enqueue('update', 'm' || n % 100, queue_id => 'm' || n % 10)
	from generate_series(1, 2000) n;
	select lock.acquire_lease('m' || n, 'me', '1 h'), lock.take('m' || n, 1, '1 h') from generate_series(1, 2000) n`

// readsAll says of functions why they may read a table from end to end.
var readsAll = map[string]string{
	"who": "it reads what everybody holds", "waiters": "as who", "queue_sizes": "it counts", "manual": "it reads the catalogue", "drop_unused_leases": "it says so",
}

// planRows finds how many rows a node of a plan has read, and how many it has thrown away.
var planRows = regexp.MustCompile(`Scan[^\n]*on (\w+)[^\n]*actual[^\n]*rows=(\d+)|Rows Removed by [ \w]+: (\d+)`)

// planCaller finds the function that ran a statement.
var planCaller = regexp.MustCompile(`function (?:lock|lock_internal)\.(\w+)\(`)

// TestPlansKept looks for plans that a session made while tables were tiny, and that read all of them when they have grown.
func TestPlansKept(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "auto_explain's output is another")
	// readers are the functions that read many rows, with what they ran.
	readers := func(t *testing.T, e *env) map[string]string {
		t.Helper()
		config, err := pgx.ParseConfig(e.super)
		must(t, err)
		found, plans := map[string]string{}, 0
		config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
			if !strings.Contains(notice.Message, "plan:") {
				return
			}
			plans++
			for _, node := range planRows.FindAllStringSubmatch(notice.Message, -1) {
				caller := planCaller.FindStringSubmatch(notice.Where)
				if n, _ := strconv.Atoi(node[2] + node[3]); n > 500 && caller != nil {
					found[caller[1]] = notice.Message
				}
			}
		}
		conn, err := pgx.ConnectConfig(ctx, config)
		must(t, err)
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "load 'auto_explain'"); err != nil {
			t.Skipf("auto_explain is not installed: %v", err)
		}
		calls := func(round int) {
			for _, group := range roundCalls {
				for statement := range strings.SplitSeq(strings.ReplaceAll(group, "#", strconv.Itoa(round)), ";") {
					if _, err := conn.Exec(ctx, statement); err != nil {
						t.Fatalf("%s: %v", strings.TrimSpace(statement), err)
					}
				}
			}
		}
		_, err = conn.Exec(ctx, trackedTables)
		must(t, err)
		_, err = conn.Exec(ctx, `do $$ declare place regclass; begin
			for place in select oid from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'r' loop
				execute format('alter table %s set (autovacuum_enabled = off)', place); -- an analyze makes plans void
			end loop;
		end $$`)
		must(t, err)
		calls(1)
		_, err = conn.Exec(ctx, "vacuum analyze")
		must(t, err)
		for round := range 7 {
			calls(2 + round)
		}
		e.sessionAs(t, e.super).exec(crowdedTables)
		_, err = conn.Exec(ctx, `set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on; set auto_explain.log_analyze = on;
			set auto_explain.log_timing = off; set client_min_messages = log`)
		must(t, err)
		calls(9)
		if plans < 500 {
			t.Fatalf("only %d plans were seen", plans)
		}
		return found
	}
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			for function, text := range readers(t, open(t, engine)) {
				if readsAll[function] == "" {
					t.Errorf("%s: %s", function, text)
				}
			}
		})
	}
	t.Run("catches a function without its setting", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "acquire_mutex", " SET enable_seqscan TO 'off'\n", "")
		if readers(t, e)["acquire_mutex"] == "" {
			t.Fatal("not seen")
		}
	})
}

// TestPlanning looks for statements inside functions that a session goes on planning.
func TestPlanning(t *testing.T) {
	t.Parallel()
	if target.own == nil {
		t.Skip("needs a server of its own, with pg_stat_statements")
	}
	s, err := server.Start(ctx, server.Options{Settings: []string{
		"shared_preload_libraries=pg_stat_statements", "compute_query_id=on", "pg_stat_statements.track=all", "pg_stat_statements.track_planning=on",
		"autovacuum=off", // an analyze makes plans void
	}})
	if err != nil && strings.Contains(err.Error(), "pg_stat_statements") {
		t.Skipf("pg_stat_statements is not installed: %v", err)
	}
	must(t, err)
	t.Cleanup(func() { s.Stop() })
	boss, err := pgx.Connect(ctx, s.URL("postgres", "postgres"))
	must(t, err)
	defer boss.Close(ctx)
	_, err = boss.Exec(ctx, "create role locks_owner login")
	must(t, err)
	openOn := func(t *testing.T, engine string) *env {
		t.Helper()
		name := newDatabase()
		must(t, create(boss, name, "template0", engine))
		e := &env{engine: engine, owner: s.URL("locks_owner", name), super: s.URL("postgres", name)}
		must(t, migrate(e.owner, 0))
		e.admin = openPool(t, e.super, 1)
		super := e.sessionAs(t, e.super)
		super.exec("create extension pg_stat_statements")
		super.exec(trackedTables)
		return e
	}
	// late are the statements that later rounds of a session planned.
	late := func(t *testing.T, e *env, group string, first int) (texts []string) {
		t.Helper()
		super, looker := e.sessionAs(t, e.super), e.sessionAs(t, e.super)
		defer super.conn.Close(ctx)
		defer looker.conn.Close(ctx)
		looker.exec("select pg_stat_statements_reset()")
		plans := func() map[string]int {
			rows, err := looker.conn.Query(ctx, `select concat_ws(' ', userid, queryid, query), plans from pg_stat_statements
				where dbid = (select oid from pg_database where datname = current_database()) and not toplevel`)
			must(t, err)
			planned := map[string]int{}
			text, n := "", 0
			_, err = pgx.ForEachRow(rows, []any{&text, &n}, func() error {
				planned[text] += n
				return nil
			})
			must(t, err)
			return planned
		}
		var before map[string]int
		for round := range 10 {
			if round == 6 {
				before = plans()
			}
			for statement := range strings.SplitSeq(strings.ReplaceAll(group, "#", strconv.Itoa(first+round)), ";") {
				super.exec(statement)
			}
		}
		after := plans()
		for text, n := range after {
			if n > before[text] {
				texts = append(texts, fmt.Sprintf("%d plans in 4 rounds, %d in 6 before: %s", n-before[text], before[text], text))
			}
		}
		if len(after) < 3 {
			t.Fatalf("only %d statements were seen", len(after))
		}
		slices.Sort(texts)
		return texts
	}
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			e := openOn(t, engine)
			for _, group := range roundCalls {
				for _, text := range late(t, e, group, 1) {
					t.Error(text)
				}
			}
			super := e.sessionAs(t, e.super)
			super.exec(crowdedTables)
			super.exec("vacuum analyze")
			for _, group := range roundCalls {
				for _, text := range late(t, e, group, 101) {
					t.Error("large tables:", text)
				}
			}
		})
	}
	e := openOn(t, advisory)
	t.Run("every function is called", func(t *testing.T) {
		rows, err := e.admin.Query(ctx, "select distinct proname::text from pg_proc where pronamespace = 'lock'::regnamespace and prorettype <> 'trigger'::regtype")
		must(t, err)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		all := strings.Join(roundCalls, "")
		for _, name := range names {
			if strings.Contains(all, "lock."+name+"(") == (notPlanned[name] != "") {
				t.Errorf("lock.%s must be either in roundCalls or, with a reason, in notPlanned", name)
			}
		}
	})
	for i, function := range []string{"capture_request", "settle_request"} {
		t.Run("catches "+function+" without its setting", func(t *testing.T) {
			mutate(t, e, function, " SET plan_cache_mode TO 'force_generic_plan'\n", "")
			found := ""
			for _, group := range roundCalls {
				if strings.Contains(group, "lock."+function+"(") {
					found += strings.Join(late(t, e, group, 1+100*i), "")
				}
			}
			if found == "" {
				t.Fatal("not seen")
			}
		})
	}
}
