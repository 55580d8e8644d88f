package tests

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// planCalls are calls of everything that is called often, each in the states that it meets.
const planCalls = `select lock.exclusive('a'); select lock.exclusive('a'); select lock.shared(5); select lock.try_exclusive(2, '1 s'); select lock.who('a'); select from lock.blocked;
select lock.acquire_mutex('a'); select lock.acquire_mutex('a'); select lock.release_mutex('a'); select lock.release_mutex('a'); select lock.acquire_mutex('a');
select lock.create_timeout('t', '1 microsecond'); select lock.acquire_timeout('t'); select lock.acquire_timeout('t');
select lock.acquire_time_slot('t', '1 microsecond'); select lock.acquire_time_slot('t', '1 day'); select lock.acquire_time_slot('t', '1 day');
select lock.create_throttled_resource('r', '1 hour'); select lock.lock_throttled_resource('r', 'x'); select lock.lock_throttled_resource('r', 'x');
select lock.create_throttled_resource('p', '1 hour', 2); select lock.lock_throttled_resource('p', 'x') from generate_series(1, 3); select lock.create_throttled_resource('p', '1 hour', 3);
select lock.acquire_lease('a', 'me', '1 hour'); select lock.acquire_lease('a', 'me', '1 hour'); select lock.acquire_lease('a', 'me', '1 microsecond', 2);
select lock.acquire_lease('a', 'me', '1 hour', 2); select lock.await_lease('a', 'me', '1 hour', 2); select lock.renew_lease('a', 1, '1 hour');
select lock.assert_lease('a', 1); select lock.release_lease('a', 1); select lock.release_lease('a', 1);
begin isolation level repeatable read; savepoint s; select lock.assert_lease('a', 9); rollback;
select lock.create_task('a', timeout => '1 microsecond'); select lock.create_task('b', payload => '{}'); select lock.capture(5); select lock.capture(5); select lock.extend_task('b', 1, '1 s');
select lock.set_status('a', 'failed', delay => '1 microsecond'); select lock.settle_and_capture('{b}', '{1}', '{failed}', 5, delays => '{1 s}');
select lock.next_task_in('default', '{new,failed}'); select lock.open_transactions(); select lock.open_transactions('{5}');
select lock.start_idling('lock_task', 'default', 'w', '1 min'); select lock.start_idling('lock_request', 'default', 'w', '1 min');
select lock.await_task('{a}', '{1}', '{retry}', worker => 'v'); select lock.await_task(worker => 'v'); select lock.await_task(worker => 'v'); select lock.await_task(worker => 'v');
select lock.await_request(gen_random_uuid()); select lock.await_request(gen_random_uuid()); select lock.await_request(gen_random_uuid());
select lock.pause_queue('task', 'q', 'why'); select lock.pause_queue('task', 'q', 'why'); select lock.resume_queue('task', 'q'); select lock.list_tasks(); select lock.list_tasks(status => 'in_progress'); select lock.check(); select lock.queue_sizes();
select lock.create_task('c'); select lock.enqueue('create', 'e'); select lock.enqueue('update', 'e'); select lock.enqueue('update', 'f');
begin; select lock.capture_request('00000000-0000-4000-8000-000000000001'); select lock.settle_request('00000000-0000-4000-8000-000000000001'); commit;
begin; select lock.capture_request('00000000-0000-4000-8000-000000000002'); select lock.settle_request('00000000-0000-4000-8000-000000000002', 'new', delay => '1 s'); commit;
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
