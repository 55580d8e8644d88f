package tests

import "testing"

func TestSmoke(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *env) {
		a, b := e.session(t), e.session(t)
		a.exec("begin")
		a.exec("select lock.exclusive(1)")
		p := b.start("select lock.exclusive(1)").blocked()
		answers(e.session(t), false, "select lock.try_exclusive(1)")
		a.exec("commit")
		p.ends()
		answers(b, e.engine, "select lock.engine()")
	})
}
