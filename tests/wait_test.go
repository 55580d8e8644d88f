package tests

import (
	"testing"
	"time"
)

// What is granted after a wait counts from behind the wait, however long it was.
func TestWaitThenTheClock(t *testing.T) {
	t.Parallel()
	type wait struct {
		setup  string
		holder string // what the other has done in its open transaction
		ending string
		call   string
		stored string // the time that the call stored
	}
	waits := map[string]wait{
		"a timeout that somebody has only locked": {
			setup:  "select lock.create_timeout('t', '1 microsecond')",
			holder: "select from lock.timeout for update", ending: "commit",
			call: "select lock.acquire_timeout('t')", stored: "select ts from lock.timeout",
		},
		"a timeout that somebody changes": {
			setup:  "select lock.create_timeout('t', '1 microsecond')",
			holder: "update lock.timeout set ts = ts", ending: "rollback",
			call: "select lock.acquire_timeout('t')", stored: "select ts from lock.timeout",
		},
		"the slot of an id that somebody has only locked": {
			setup:  "select lock.acquire_time_slot('s', '1 microsecond')",
			holder: "select from lock.time_slot for update", ending: "commit",
			call: "select lock.acquire_time_slot('s', '1 microsecond')", stored: "select slot_start from lock.time_slot",
		},
		"the slot of a new id": {
			setup:  "select 1",
			holder: "select lock.acquire_time_slot('s', '1 microsecond')", ending: "rollback",
			call: "select lock.acquire_time_slot('s', '1 microsecond')", stored: "select slot_start from lock.time_slot",
		},
		"tokens of a bucket that somebody has only locked": {
			setup:  "select lock.take('b', 1, '1 microsecond')",
			holder: "select from lock.rate_limit for update", ending: "commit",
			call: "select lock.take('b', 1, '1 microsecond')", stored: "select least(full_at, taken_at) from lock.rate_limit",
		},
		"tokens of a new bucket": {
			setup:  "select 1",
			holder: "select lock.take('b', 1, '1 hour')", ending: "rollback",
			call: "select lock.take('b', 1, '1 hour')", stored: "select least(full_at - interval '1 hour', taken_at) from lock.rate_limit",
		},
		"a lease": {
			setup:  "select lock.release_lease('l', token) from lock.acquire_lease('l', 'somebody', '1 hour')",
			holder: "select lock.acquire_lease('l', 'other', '1 hour')", ending: "rollback",
			call: "select lock.acquire_lease('l', 'me', '1 hour')", stored: "select expires_at - interval '1 hour' from lock.lease",
		},
		"more time for a task": {
			setup:  "select lock.create_task('id', timeout => '1 hour'); select lock.capture(1)",
			holder: "update lock.task set changed_at = changed_at", ending: "rollback",
			call: "select lock.extend_task('id', 1, '1 hour')", stored: "select deadline - interval '1 hour' from lock.task",
		},
		"more time for tasks": {
			setup:  "select lock.create_task('id', timeout => '1 hour'); select lock.capture(1)",
			holder: "update lock.task set changed_at = changed_at", ending: "rollback",
			call: "select lock.extend_tasks('{id}', '{1}', '1 hour')", stored: "select deadline - interval '1 hour' from lock.task",
		},
	}
	// A change of the table's definition. The one mode keeps away whoever reads it, the other only who writes.
	for _, mode := range []string{"access exclusive", "share"} {
		for table, c := range map[string]struct{ setup, call, stored string }{
			"mutex":              {"lock.create_mutex('t')", "lock.acquire_mutex('t')", "acquired_at"},
			"timeout":            {"lock.create_timeout('t', '1 microsecond')", "lock.acquire_timeout('t')", "ts"},
			"time_slot":          {"lock.acquire_time_slot('t', '1 microsecond')", "lock.acquire_time_slot('t', '1 microsecond')", "slot_start"},
			"throttled_resource": {"lock.create_throttled_resource('t', '1 microsecond')", "lock.lock_throttled_resource('t', 'x')", "last_locked"},
			"throttled_permit":   {"lock.create_throttled_resource('t', '1 microsecond', 2)", "lock.lock_throttled_resource('t', 'x')", "max(last_locked)"},
			"rate_limit":         {"lock.take('t', 1, '1 microsecond')", "lock.take('t', 1, '1 microsecond')", "least(full_at, taken_at)"},
			"lease_name":         {"lock.release_lease('l', token) from lock.acquire_lease('l', 'somebody', '1 hour')", "lock.acquire_lease('l', 'me', '1 hour')", "max(granted_at)"},
			"lease":              {"1", "lock.acquire_lease('l', 'me', '1 hour')", "acquired_at"},
		} {
			waits[table+", "+mode] = wait{
				setup: "select " + c.setup, holder: "lock table lock." + table + " in " + mode + " mode", ending: "commit",
				call: "select " + c.call, stored: "select " + c.stored + " from lock." + table,
			}
		}
	}
	for name, c := range waits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			holder, waiter := e.sessionAs(t, e.super), e.session(t)
			holder.exec(c.setup)
			holder.exec("begin")
			holder.exec(c.holder)
			p := waiter.start(c.call).blocked()
			blocked := time.Now()
			eventually(t, "the wait counts as long", func() bool { return time.Since(blocked) > 20*time.Millisecond })
			behind := get[time.Time](holder, "select clock_timestamp()")
			holder.exec(c.ending)
			p.ends()
			if got := get[time.Time](holder, c.stored); got.Before(behind) {
				t.Errorf("stored %v, and the wait ended after %v", got, behind)
			}
		})
	}
}

// A row that somebody has only locked, and not changed, is waited for as well.
func TestWaitForALockedRow(t *testing.T) {
	t.Parallel()
	for table, c := range map[string]struct{ setup, call string }{
		"mutex":      {"select lock.create_mutex('id')", "select lock.acquire_mutex('id')"},
		"timeout":    {"select lock.create_timeout('id', '1 hour')", "select lock.acquire_timeout('id')"},
		"time_slot":  {"select lock.acquire_time_slot('id', '1 hour', '2001-01-01')", "select lock.acquire_time_slot('id', '1 hour')"},
		"rate_limit": {"select lock.take('id', 1, '1 hour')", "select granted from lock.take('id', 2, '1 hour', 4)"},
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			holder, waiter := e.sessionAs(t, e.super), e.session(t)
			holder.exec(c.setup)
			holder.exec("begin")
			holder.exec("select from lock." + table + " for update")
			waiter.exec("create temp table answer (granted boolean)")
			p := waiter.start("insert into answer " + c.call).blocked()
			holder.exec("commit")
			p.ends()
			answers(waiter, true, "select granted from answer")
		})
	}
}

// A length that dates cannot carry is refused, and does not stop a queue.
func TestWaitLengthsAreBounded(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	e.operates(t)
	s := e.session(t)
	for _, call := range []string{
		"lock.create_task('bad', timeout => '200000000 days')", "lock.create_timeout('bad', '200000000 days')",
		"lock.create_throttled_resource('bad', '200000000 days')", "lock.start_idling('lock_task', 'q', 'w', '200000000 days')",
		"lock.purge_tasks('10000000 years')", "lock.try_exclusive(1, '2000000000 days')", "lock.acquire_lease('l', 'me', '200000000 days')",
	} {
		s.fails("22023", "select "+call)
	}
	s.exec("select lock.create_task('good')")
	answers(s, "good:1", captured+"lock.capture(1)")
}
