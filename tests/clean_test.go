package tests

import (
	"testing"
	"time"

	"github.com/seed4787c507/locks/db"
)

func TestClean(t *testing.T) {
	t.Parallel()
	const said, of = "select string_agg(kind || ' ' || removed, ', ') from lock.clean", " where kind <> 'key'" // of keys the row engine has some
	eachEngine(t, func(t *testing.T, e *env) {
		e.operates(t)
		s := e.session(t)
		// Of each kind two that are old, one that is new, and one that somebody has.
		s.exec("select lock.create_tasks('{old 1,old 2}', 'a', status => 'done'), lock.create_task('dead', 'a', retries_left => 1), lock.create_task('runs', 'a')")
		s.exec("select lock.create_task('old 3', 'b', status => 'done', retries_left => 1)")
		answers(s, true, "select lock.set_status('dead', 'failed', attempt, 'a', dead => true) from lock.capture(1, 'a')")
		s.exec("select lock.capture(1, 'a')")
		for _, entity := range []string{"x", "y"} {
			s.exec("select lock.enqueue('update', $1)", entity)
		}
		for range 2 {
			s.exec("begin; select lock.capture_request(" + oneProcess + "); select lock.settle_request(" + oneProcess + "); commit")
		}
		s.exec("select lock.enqueue('update', 'z')")
		s.exec("select lock.create_mutex('old'), lock.create_mutex('older'), lock.acquire_mutex('held')")
		s.exec("select lock.acquire_time_slot('old', '1 hour'), lock.acquire_time_slot('long', '36000 days')")
		s.exec("select lock.take('old', 1, '1 hour'), lock.take('empty', 1, '36000 days')")
		s.exec("select lock.create_timeout('t', '1 second'), lock.acquire_timeout('t'), lock.create_throttled_resource('r', '1 second'), lock.lock_throttled_resource('r', 'me')")
		s.exec("select lock.release_lease('old', token) from lock.acquire_lease('old', 'me', '1 hour')")
		s.exec("select lock.acquire_lease('held', 'me', '36000 days')")
		answers(s, "task 0, request 0, mutex 0, time_slot 0, rate_limit 0, lease 0", said+"()"+of)
		for _, sql := range []string{
			"update lock.task set available_at = available_at - interval '40 days', changed_at = changed_at - interval '40 days'",
			"update lock.request set settled_at = settled_at - interval '40 days' where settled_at is not null",
			"update lock.mutex set unused_since = unused_since - interval '40 days', released_at = released_at - interval '40 days'",
			"update lock.time_slot set unused_since = unused_since - interval '40 days', granted_at = granted_at - interval '40 days', slot_start = slot_start - interval '40 days' where task_id = 'old'",
			"update lock.rate_limit set unused_since = unused_since - interval '40 days', full_at = full_at - interval '40 days', taken_at = taken_at - interval '40 days'",
			"update lock.timeout set unused_since = unused_since - interval '40 days', ts = ts - interval '40 days'",
			"update lock.throttled_resource set unused_since = unused_since - interval '40 days', last_locked = last_locked - interval '40 days'",
			"update lock.lease_name set granted_at = granted_at - interval '40 days'",
		} {
			if _, err := e.admin.Exec(ctx, sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		s.exec("select lock.create_task('young', 'a', status => 'done')")
		holder := e.session(t)
		holder.exec("begin; select lock.exclusive('held')") // nothing waits for it, and it for nothing
		answers(s, "task 0, request 0, mutex 0, time_slot 0, rate_limit 0, lease 0", said+"('60 days')"+of)
		answers(s, "task 1, request 1, mutex 1", "select string_agg(kind || ' ' || removed, ', ') from lock.clean(max => 1) where kind in ('task', 'request', 'mutex')")
		q := db.New(e.pool)
		left, err := q.Clean(ctx, 30*24*time.Hour, 1000)
		must(t, err)
		got := map[string]int64{}
		for _, c := range left {
			got[c.Kind] = c.Removed
		}
		if got["task"] != 2 || got["request"] != 1 || got["mutex"] != 1 {
			t.Errorf("got %v", got)
		}
		answers(s, "task 0, request 0, mutex 0, time_slot 0, rate_limit 0, lease 0", said+"()"+of)
		owner := e.sessionAs(t, e.owner)
		for what, left := range map[string]string{
			"task": "dead runs young", "request": "z", "mutex": "held", "time_slot": "long", "timeout": "t", "throttled_resource": "r", "lease_name": "held",
		} {
			id := map[string]string{"task": "id", "request": "entity_id", "throttled_resource": "resource_id", "lease_name": "name"}[what]
			if id == "" {
				id = "task_id"
			}
			answers(owner, left, "select string_agg("+id+", ' ' order by "+id+") from lock."+what)
		}
		holder.exec("commit")
		for code, call := range map[string]string{
			"22004": "lock.clean(null)", "22023": "lock.clean('-1 day')",
		} {
			s.fails(code, "select "+call)
		}
		s.fails("22023", "select lock.clean(max => 0)")
	})
	t.Run("lock.check says when there is much", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		const findings = "select count(*) from lock.check() where subject = 'history'"
		s.exec("select lock.create_tasks(array(select n::text from generate_series(1, 9999) n), 'q' || q, status => 'done', available_at => now() - interval '61 days') from generate_series(1, 1) q")
		answers(s, 0, findings)
		s.exec("select lock.create_task('one', 'other', status => 'done', available_at => now() - interval '61 days')")
		answers(s, 1, findings)
	})
}

// A task that never times out is somebody's for ever when that worker has died: people must see it.
func TestTaskWithoutTimeout(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("select lock.create_task('plain'), lock.create_task('endless', timeout => null)")
	q := db.New(e.pool)
	for _, params := range []db.CreateTaskParams{{ID: "go", QueueID: "default"}, {ID: "go, endless", QueueID: "default", Timeout: db.Forever}} {
		if made, err := q.CreateTask(ctx, params); err != nil || !made {
			t.Fatal(made, err)
		}
	}
	_, err := q.CreateTasks(ctx, db.CreateTasksParams{IDs: []string{"many"}, QueueID: "default"})
	must(t, err)
	answers(s, "go:00:05:00, many:00:05:00, plain:00:05:00, endless:-, go, endless:-",
		"select string_agg(id || ':' || coalesce(timeout::text, '-'), ', ' order by length(id), id) from lock.list_tasks()")
	answers(s, 5, "select count(*) from lock.capture(9)")
	for _, where := range []string{"lock.queue_depth", "lock.queue_sizes()"} {
		answers(s, "running 5, endless 2", "select concat('running ', running, ', endless ', endless) from "+where)
	}
	answers(s, 1, "select running from lock.queue_sizes(1)")
	answers(s, "endless go, endless", "select string_agg(id, ' ' order by id) from lock.list_tasks(status => 'in_progress') where deadline is null")
	answers(s, 0, "select count(*) from lock.check() where subject = 'tasks'")
	taskOwner(t, e, "update lock.task set changed_at = changed_at - interval '61 minutes'")
	answers(s, 1, "select count(*) from lock.check() where subject = 'tasks' and finding like 'tasks in progress for over an hour without a timeout: 2%'")
}
