package tests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed4787c507/locks/db"
)

func TestActivity(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	a, b := e.session(t), e.session(t)
	a.exec("select lock.create_timeout('t', '1 hour'), lock.create_throttled_resource('r', '1 hour'), lock.create_task('id', 'q', timeout => '1 hour')")
	a.exec("select lock.create_task('waiting', 'q'), lock.enqueue('update', 'entity', queue_id => 'q')")
	activity := func() []string {
		rows, err := db.New(e.pool).Activity(ctx)
		must(t, err)
		var lines []string
		for _, row := range rows {
			owner := "-"
			if row.Owner != nil {
				owner = *row.Owner
			}
			line := strings.Join([]string{row.Kind, row.Name, row.Mode, map[bool]string{true: "held", false: "waits"}[row.Granted], owner}, " ")
			if row.Until != nil {
				line += " until"
			}
			if row.Since == nil {
				t.Errorf("%s: since when?", line)
			}
			if (row.Pid != nil) != (row.Kind == "key") {
				t.Errorf("%s: pid %v", line, row.Pid)
			}
			lines = append(lines, line)
		}
		return lines
	}
	if got := activity(); len(got) > 0 {
		t.Errorf("at rest: %q", got)
	}
	a.exec("select lock.acquire_mutex('m', 'me'), lock.acquire_timeout('t'), lock.lock_throttled_resource('r', 'why'), lock.acquire_lease('l', 'leader', '1 hour')")
	a.exec("select lock.capture(1, 'q', owner => 'worker')")
	e.contend(t, "k")
	a.exec("begin")
	a.exec("select lock.exclusive('k'), lock.shared(7), pg_advisory_xact_lock(1), pg_advisory_xact_lock(-1), pg_advisory_xact_lock(4294967295), pg_advisory_xact_lock(1, 2)")
	waiter := b.start("select lock.shared('k')").blocked()
	want := []string{
		"key 7 shared held locks_app",
		"key k exclusive held locks_app",
		"key k shared waits locks_app",
		"lease l permit held leader until",
		"mutex m exclusive held me",
		"task q: id exclusive held worker until",
		"throttle r exclusive held - until",
		"timeout t exclusive held - until",
	}
	got := activity()
	if strings.Join(got, "\n") != strings.Join(want, "\n") && strings.Join(got, "\n") != strings.Join(append([]string{want[0], want[2], want[1]}, want[3:]...), "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	a.exec("rollback")
	waiter.ends()

	depths, err := db.New(e.pool).QueueDepth(ctx)
	must(t, err)
	var lines []string
	for _, d := range depths {
		lines = append(lines, fmt.Sprint(d.Kind, " ", d.QueueID, " ", d.Ready))
		if d.OldestReady == nil {
			t.Errorf("%+v", d)
		}
	}
	if got := strings.Join(lines, ", "); got != "request q 1, task q 1" {
		t.Error(got)
	}
}
