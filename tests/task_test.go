package tests

import "testing"

func TestTaskSmoke(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	answers(s, 3, "select lock.create_tasks('{a,b,c}')")
	answers(s, "a b", "select string_agg(id, ' ') from lock.capture(2)")
	answers(s, true, "select lock.set_status('a', 'done', 1)")
	answers(s, "c", "select string_agg(id, ' ') from lock.settle_and_capture('{b}', '{1}', '{failed}', 1)")
	answers(s, "b", "select string_agg(id, ' ') from lock.capture(1)")
	answers(s, 0, "select count(*) from lock.capture(1)")
}
