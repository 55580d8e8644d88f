package tests

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// sharersMeet says whether two sharers of a key that nobody locked before go on together: the one thing that the row engine
// cannot do on PostgreSQL.
func (e *env) sharersMeet(known bool) bool { return known || e.engine == advisory || target.yugabyte }

func TestKeyMatrix(t *testing.T) {
	t.Parallel()
	arguments := map[string]string{
		"bigint":            "42::bigint",
		"text":              "'customer:42'",
		"text's own bigint": "lock.key('customer:42')",
	}
	eachEngine(t, func(t *testing.T, e *env) {
		for kind, argument := range arguments {
			for _, known := range []bool{false, true} {
				for _, first := range []string{"shared", "exclusive"} {
					for _, second := range []string{"shared", "exclusive"} {
						t.Run(fmt.Sprintf("%s then %s, known %v, %s", first, second, known, kind), func(t *testing.T) {
							a, b := e.session(t), e.session(t)
							a.exec("select lock.unlock(" + argument + ")")
							if known {
								a.exec("select lock.exclusive(" + argument + ")")
							}
							a.exec("begin")
							a.exec("select lock." + first + "(" + argument + ")")
							meet := first == "shared" && second == "shared" && e.sharersMeet(known)
							answers(b, meet, "select lock.try_"+second+"("+argument+")")
							lock := "select lock." + second + "(" + argument + ")"
							if meet {
								b.exec(lock)
								a.exec("rollback")
								return
							}
							p := b.start(lock).blocked()
							a.exec("commit")
							p.ends()
						})
					}
				}
			}
		}
	})
}

func TestKeyHolding(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		t.Run("is re-entrant in every order", func(t *testing.T) {
			a := e.session(t)
			a.exec("begin")
			for _, f := range []string{"shared", "exclusive", "shared", "exclusive", "exclusive"} {
				a.exec("select lock." + f + "(1)")
				answers(a, true, "select lock.try_"+f+"(1)")
			}
			answers(e.session(t), false, "select lock.try_shared(1)")
			a.exec("commit")
			answers(e.session(t), true, "select lock.try_exclusive(1)")
		})
		t.Run("upgrades from shared to exclusive alone", func(t *testing.T) {
			a, b := e.session(t), e.session(t)
			a.exec("select lock.shared(2)")
			a.exec("begin")
			a.exec("select lock.shared(2)")
			b.exec("begin")
			b.exec("select lock.shared(2)")
			answers(a, false, "select lock.try_exclusive(2)")
			p := a.start("select lock.exclusive(2)").blocked()
			b.exec("commit")
			p.ends()
			answers(b, false, "select lock.try_shared(2)")
			a.exec("commit")
		})
		t.Run("gives one of two upgraders 40P01", func(t *testing.T) {
			a, b := e.session(t), e.session(t)
			a.exec("select lock.shared(3)")
			for _, s := range []*session{a, b} {
				s.exec("begin")
				s.exec("select lock.shared(3)")
			}
			first := a.start("select lock.exclusive(3)").blocked()
			second := b.start("select lock.exclusive(3)")
			victims := 0
			for _, p := range []*pending{first, second} {
				if err := p.wait(); err != nil {
					wantCode(t, err, "40P01", p.sql)
					victims++
				}
				p.s.exec("rollback")
			}
			if victims != 1 {
				t.Fatalf("%d of two upgraders failed", victims)
			}
		})
		t.Run("ends with a rollback to an earlier savepoint", func(t *testing.T) {
			for i, f := range []string{"shared", "exclusive"} {
				for j, known := range []bool{false, true} {
					key := 10 + 2*i + j
					a, b := e.session(t), e.session(t)
					if known {
						a.exec(fmt.Sprintf("select lock.exclusive(%d)", key))
					}
					a.exec("begin; savepoint s")
					a.exec(fmt.Sprintf("select lock.%s(%d)", f, key))
					answers(b, false, fmt.Sprintf("select lock.try_exclusive(%d)", key))
					a.exec("rollback to savepoint s")
					answers(b, true, fmt.Sprintf("select lock.try_exclusive(%d)", key))
					a.exec("commit")
				}
			}
		})
		t.Run("survives a rollback to a later savepoint", func(t *testing.T) {
			for key, known := range map[int]bool{20: false, 21: true} {
				a, b := e.session(t), e.session(t)
				if known {
					a.exec("select lock.exclusive($1::bigint)", key)
				}
				a.exec("begin")
				a.exec("select lock.exclusive($1::bigint)", key)
				a.exec("savepoint s")
				a.exec("select lock.exclusive($1::bigint)", key)
				answers(a, true, "select lock.unlock($1::bigint)", key)
				a.exec("rollback to savepoint s")
				p := b.start("select lock.exclusive($1::bigint)", key).blocked()
				answers(e.session(t), false, "select lock.try_shared($1::bigint)", key)
				a.exec("commit")
				p.ends()
			}
		})
	})
}

func TestKeyRefusedWaits(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		holder, b := e.session(t), e.session(t)
		holder.exec("select lock.exclusive(1)")
		holder.exec("begin")
		holder.exec("select lock.exclusive(1)")
		for _, f := range []string{"lock.exclusive(1)", "lock.shared(1)"} {
			t.Run("lock_timeout ends "+f, func(t *testing.T) {
				onlyPostgreSQL(t, "lock_timeout does not apply to rows")
				b.exec("set lock_timeout = '50ms'")
				b.fails("55P03", "select "+f)
				b.exec("reset lock_timeout")
			})
			t.Run("statement_timeout ends "+f, func(t *testing.T) {
				b.exec("set statement_timeout = '50ms'")
				b.fails("57014", "select "+f)
				b.exec("reset statement_timeout")
			})
			t.Run("cancellation ends "+f, func(t *testing.T) {
				p := b.start("select " + f).blocked()
				answers(e.sessionAs(t, e.super), true, "select pg_cancel_backend($1)", b.pid)
				wantCode(t, p.wait(), "57014", p.sql)
			})
		}
		t.Run("statement_timeout ends try_exclusive", func(t *testing.T) {
			b.exec("set statement_timeout = '50ms'")
			b.fails("57014", "select lock.try_exclusive(1, '1 hour')")
			b.exec("reset statement_timeout")
		})
		t.Run("and leaves nothing held", func(t *testing.T) {
			holder.exec("commit")
			answers(e.session(t), true, "select lock.try_exclusive(1)")
			answers(b, int64(0), "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
		})
	})
}

func TestKeyTry(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		t.Run("waits and gets the key", func(t *testing.T) {
			for _, f := range []string{"try_exclusive", "try_shared"} {
				a, b := e.session(t), e.session(t)
				a.exec("begin")
				a.exec("select lock.exclusive(1)")
				b.exec("begin")
				b.exec("set local lock_timeout = '7s'")
				p := b.start("create temp table t on commit drop as select lock." + f + "(1, '1 minute') as locked")
				if e.engine == advisory {
					p.blocked()
				}
				a.exec("commit")
				p.ends()
				answers(b, true, "select locked from t")
				answers(b, "7s", "show lock_timeout")
				b.exec("commit")
			}
		})
		t.Run("gives up after its wait and keeps the transaction", func(t *testing.T) {
			a, b := e.session(t), e.session(t)
			for _, known := range []bool{false, true} {
				a.exec("begin")
				a.exec("select lock.exclusive(2)")
				b.exec("begin")
				b.exec("set local lock_timeout = '7s'")
				began := time.Now()
				answers(b, false, "select lock.try_shared(2, '30 milliseconds')")
				if waited := time.Since(began); waited < 30*time.Millisecond {
					t.Fatalf("known %v: gave up after %v", known, waited)
				}
				answers(b, false, "select lock.try_exclusive('two', '1 microsecond') and lock.try_exclusive(2)")
				answers(b, "7s", "show lock_timeout")
				b.exec("commit")
				a.exec("commit")
			}
		})
		t.Run("replaces a shorter lock_timeout while it waits", func(t *testing.T) {
			a, b := e.session(t), e.session(t)
			a.exec("begin")
			a.exec("select lock.exclusive(3)")
			b.exec("set lock_timeout = '1ms'")
			answers(b, false, "select lock.try_exclusive(3, '20 milliseconds')")
			answers(b, "1ms", "show lock_timeout")
			a.exec("commit")
		})
	})
}

// Many try the same new keys, and none of the waits that end meanwhile is taken for a cancel.
func TestKeyTryOfNewKeys(t *testing.T) {
	onlyPostgreSQL(t, "keys are inserted outside of the transaction there")
	t.Parallel()
	e := open(t, row)
	admin(t, e, "create sequence public.tries; grant usage on sequence public.tries to public")
	const clients, each = 40, 200
	results := make(chan error, clients*each)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				_, err := e.pool.Exec(ctx, "begin; select lock.try_exclusive(nextval('public.tries') / 40, '5 s'), pg_sleep(0.0005); rollback", pgx.QueryExecModeSimpleProtocol)
				results <- err
			}
		})
	}
	all.Wait()
	close(results)
	for err := range results {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestKeyForgetting(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		admin := e.sessionAs(t, e.super)
		// kept expects that a name's row is there, or is not: the advisory engine keeps nothing.
		kept := func(t *testing.T, name string, want bool) {
			t.Helper()
			if e.engine == row && get[bool](admin, "select exists (select from lock.locked_keys where key = lock.key($1))", name) != want {
				t.Errorf("%s is kept: %v", name, !want)
			}
		}
		meet := func(t *testing.T, names ...string) {
			t.Helper()
			for _, name := range names {
				e.session(t).exec("select lock.exclusive($1::text)", name)
				kept(t, name, true)
			}
		}
		t.Run("unlock forgets at commit and frees nothing before", func(t *testing.T) {
			meet(t, "one")
			a, b := e.session(t), e.session(t)
			a.exec("begin")
			a.exec("select lock.exclusive('one')")
			answers(a, true, "select lock.unlock('one')")
			kept(t, "one", true)
			answers(b, false, "select lock.try_shared('one')")
			a.exec("commit")
			kept(t, "one", false)
			answers(b, e.engine == advisory, "select lock.unlock('one')")
		})
		t.Run("unlock of a new key in the transaction that locked it frees nothing either", func(t *testing.T) {
			a, b := e.session(t), e.session(t)
			a.exec("begin")
			a.exec("select lock.exclusive(2)")
			answers(a, true, "select lock.unlock(2)")
			answers(b, false, "select lock.try_shared(2)")
			p := b.start("select lock.exclusive(2)").blocked()
			a.exec("commit")
			p.ends()
		})
		t.Run("unlock leaves what another transaction holds", func(t *testing.T) {
			meet(t, "three")
			a, b := e.session(t), e.session(t)
			a.exec("begin")
			a.exec("select lock.shared('three')")
			answers(b, false, "select lock.unlock('three')")
			b.exec("begin")
			b.exec("select lock.shared('three')")
			answers(b, false, "select lock.unlock('three')")
			b.exec("rollback")
			answers(a, true, "select lock.unlock('three')")
			a.exec("rollback")
			kept(t, "three", true)
		})
		t.Run("vacuum forgets what nobody holds", func(t *testing.T) {
			meet(t, "held", "shared", "free", "free too")
			admin.exec("select lock.unlock('one'), lock.unlock('three'), lock.unlock(2)")
			a, b := e.session(t), e.session(t)
			a.exec("begin")
			a.exec("select lock.exclusive('held'), lock.shared('shared')")
			wait := b.start("select lock.exclusive('held')").blocked()
			answers(e.session(t), map[string]int64{row: 2, advisory: 0}[e.engine], "select lock.vacuum()")
			for name, want := range map[string]bool{"held": true, "shared": true, "free": false, "free too": false} {
				kept(t, name, want)
			}
			a.exec("commit")
			wait.ends()
		})
		t.Run("unlock and vacuum wait for nobody who forgets the same", func(t *testing.T) {
			meet(t, "both")
			a, b := e.session(t), e.session(t)
			b.exec("set statement_timeout = '10s'")
			for _, first := range []string{"lock.vacuum()", "lock.unlock('both')"} {
				a.exec("begin")
				a.exec("select " + first)
				b.exec("select lock.vacuum()")
				b.exec("select lock.unlock('both')")
				a.exec("rollback")
			}
		})
	})
}

// The three faults of the usual recipe, each seen there first.
func TestKeyRecipeFaults(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "it bounds its waits by lock_timeout, which rows do not have there")
	recipe, err := os.ReadFile("testdata/recipe.sql")
	must(t, err)
	// doubleGrant lets a forget key 1 while b waits for it, and says whether b and c hold it together afterwards.
	doubleGrant := func(t *testing.T, e *env, exclusive, forget string) bool {
		a, b, c := e.session(t), e.session(t), e.session(t)
		a.exec("select " + exclusive)
		a.exec("begin")
		a.exec("select " + exclusive)
		b.exec("begin")
		p := b.start("select " + exclusive).blocked()
		a.exec("select " + forget)
		a.exec("commit")
		p.ends()
		c.exec("set lock_timeout = '100ms'")
		_, err := c.conn.Exec(ctx, "select "+exclusive)
		if err != nil {
			wantCode(t, err, "55P03", exclusive)
		}
		b.exec("commit")
		return err == nil
	}
	for _, forget := range []string{"unlock(1)", "vacuum()"} {
		t.Run("double grant after "+forget, func(t *testing.T) {
			t.Parallel()
			broken := open(t, row)
			broken.sessionAs(t, broken.super).exec(string(recipe))
			if !doubleGrant(t, broken, "recipe.exclusive(1)", "recipe."+forget) {
				t.Error("the recipe's double grant was not seen: this test could not fail")
			}
			for _, engine := range engines() {
				if doubleGrant(t, open(t, engine), "lock.exclusive(1)", "lock."+forget) {
					t.Errorf("%s: granted twice", engine)
				}
			}
		})
	}
	t.Run("a setting that PostgreSQL does not know", func(t *testing.T) {
		t.Parallel()
		e := open(t, row)
		admin := e.sessionAs(t, e.super)
		admin.exec(string(recipe))
		admin.fails("42704", "select recipe.shared_as_printed(1)")
		admin.exec("select lock.shared(1)")
	})
	t.Run("a row that cannot be seen", func(t *testing.T) {
		t.Parallel()
		for _, engine := range engines() {
			e := open(t, engine)
			a, b := e.session(t), e.session(t)
			a.exec("begin isolation level repeatable read")
			a.exec("select 1 from pg_class limit 1") // takes the snapshot
			b.exec("select lock.exclusive(1)")
			_, err := a.conn.Exec(ctx, "select lock.exclusive(1)")
			switch {
			case err != nil && code(err) != "40001":
				t.Errorf("%s: %v", engine, err)
			case err == nil:
				answers(b, false, "select lock.try_exclusive(1)")
			}
		}
	})
}

// crosswise lets two sessions ask for the same keys, stops each at a gate behind the first that it gets, and says whether both had
// all of them in the end. With one order the second gets none before the first has all. The keys are exclusive ones: a shared key at the
// end of one way is not in the way of who shares it.
func crosswise(t *testing.T, e *env, call string) bool {
	t.Helper()
	gate, a, b := e.session(t), e.session(t), e.session(t)
	gate.exec("begin")
	gate.exec("select pg_advisory_xact_lock(4711)")
	a.exec("set test.direction = 1")
	b.exec("set test.direction = -1")
	first := a.start(call).blocked()
	second := b.start(call)
	eventually(t, "the second waits", func() bool {
		return e.waiting(t, b.pid) || get[bool](gate, "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'PgSleep')", b.pid)
	})
	gate.exec("commit")
	one, two := first.wait(), second.wait()
	for _, err := range []error{one, two} {
		if err != nil && code(err) != "40P01" && code(err) != "22012" {
			t.Fatalf("%s: %v", call, err)
		}
	}
	return one == nil && two == nil
}

// Sets are taken in one order, or callers meet crosswise. A call that is not granted divides by zero here.
func TestKeySetsInOneOrder(t *testing.T) {
	t.Parallel()
	const stop = "perform pg_advisory_xact_lock_shared(4711); "
	for function, c := range map[string]struct{ step, order, call string }{
		"exclusive_all": {"perform lock.exclusive(next_name);", "order by lock.key(wanted.name)", "select lock.exclusive_all('{a, b, c}') /* %s */"},
		"try_all":       {"end loop;", "order by asked.key", "select 1 / lock.try_all('{a, b, c}', '{1, 2}', wait => '%s')::integer"},
	} {
		t.Run(function, func(t *testing.T) {
			eachEngine(t, func(t *testing.T, e *env) {
				after := c.step + " " + stop
				if function == "try_all" {
					after = stop + c.step
				}
				mutate(t, e, function, c.step, after)
				if !crosswise(t, e, fmt.Sprintf(c.call, "1 minute")) {
					t.Error("not both had them all")
				}
				mutate(t, e, function, c.order, c.order+" * current_setting('test.direction')::bigint")
				if crosswise(t, e, fmt.Sprintf(c.call, "2 seconds")) {
					t.Error("without the order both had them all: this test could not fail")
				}
			})
		})
	}
}

func TestKeyExclusiveAll(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.session(t)
		s.exec("begin")
		s.exec("select lock.exclusive_all('{b, a, b, c}')")
		s.exec("select lock.exclusive_all('{}')")
		other := e.session(t)
		for _, name := range []string{"a", "b", "c"} {
			answers(other, false, "select lock.try_shared($1::text)", name)
		}
		s.exec("commit")
		s.fails("22004", "select lock.exclusive_all(null)")
		s.fails("22004", "select lock.exclusive_all('{a, null}')")
		s.fails("22023", "select lock.exclusive_all('{a, \"\"}')")
		answers(other, true, "select lock.try_exclusive('a')")
	})
}

func TestKeyTryAll(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		// Known keys, so that sharers meet on the row engine, too.
		e.session(t).exec("select lock.exclusive_all('{a, b, c}'), lock.exclusive(1), lock.exclusive(2), lock.exclusive(3), lock.exclusive(9)")
		others := e.session(t)
		free := func(key string) bool { return get[bool](others, "select lock.try_exclusive("+key+")") }
		t.Run("takes names and numbers, exclusively and shared", func(t *testing.T) {
			s := e.session(t)
			s.exec("begin")
			answers(s, true, "select lock.try_all(array['b', 'a', 'b'], '{1}', '{c}', '{2}')")
			for key, shared := range map[string]bool{"'a'": false, "'b'": false, "1": false, "'c'": true, "2": true} {
				answers(others, false, "select lock.try_exclusive("+key+")")
				answers(others, shared, "select lock.try_shared("+key+")")
			}
			s.exec("commit")
			answers(s, true, "select lock.try_all()")
		})
		// strongest says that a key which is asked for in both ways is held exclusively, by number and by name.
		strongest := func(t *testing.T) bool {
			s := e.session(t)
			s.exec("begin")
			answers(s, true, "select lock.try_all(array['a'], array[1, 2], array['a'], array[1, lock.key('a')])")
			held := get[bool](others, "select not lock.try_shared(1) and not lock.try_shared('a') and not lock.try_shared(2)")
			s.exec("rollback")
			return held
		}
		// clean says that a set which cannot be had leaves nothing held but what was held before, wherever the one that is missing stands.
		clean := func(t *testing.T, wait string) bool {
			holder, s := e.session(t), e.session(t)
			for _, taken := range []string{"1", "2", "3"} {
				holder.exec("begin")
				holder.exec("select lock.shared(" + taken + ")")
				s.exec("begin")
				s.exec("select lock.exclusive('c'), lock.shared('b')")
				s.exec("set local lock_timeout = '7s'")
				answers(s, false, "select lock.try_all(array['a', 'b'], '{3, 2, 1}', wait => '"+wait+"')")
				answers(s, "7s", "show lock_timeout")
				for key, want := range map[string]bool{"'a'": true, "1": taken != "1", "2": taken != "2", "3": taken != "3", "'b'": false, "'c'": false} {
					if free(key) != want {
						return false
					}
				}
				answers(others, true, "select lock.try_shared('b')")
				s.exec("commit")
				holder.exec("commit")
			}
			return true
		}
		t.Run("takes what is asked for in both ways exclusively", func(t *testing.T) {
			if !strongest(t) {
				t.Error("it is shared")
			}
		})
		t.Run("leaves nothing held when one cannot be had", func(t *testing.T) {
			for _, wait := range []string{"0", "20 milliseconds"} {
				if !clean(t, wait) {
					t.Errorf("wait %s: something is left, or lost", wait)
				}
			}
		})
		t.Run("waits and gets them all", func(t *testing.T) {
			holder, s := e.session(t), e.session(t)
			holder.exec("begin")
			holder.exec("select lock.exclusive(2), lock.exclusive('b')")
			s.exec("begin")
			p := s.start("create temp table t on commit drop as select lock.try_all('{a}', '{3}', '{b}', '{1, 2}', '1 hour') as locked")
			eventually(t, "it holds the first, or waits", func() bool {
				return e.waiting(t, s.pid) || get[bool](others, "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'PgSleep')", s.pid)
			})
			holder.exec("commit")
			p.ends()
			answers(s, true, "select locked from t")
			for _, key := range []string{"'a'", "3", "'b'", "1", "2"} {
				if free(key) {
					t.Errorf("%s is free", key)
				}
			}
			s.exec("commit")
		})
		t.Run("ends a deadlock with keys that were held before", func(t *testing.T) {
			a, b := e.session(t), e.session(t)
			wait := map[string]string{advisory: "1 hour", row: "1 second"}[e.engine]
			a.exec("begin")
			a.exec("select lock.exclusive(1)")
			b.exec("begin")
			b.exec("select lock.exclusive(2)")
			one := a.start("select 1 / lock.try_all(exclusive_keys => '{2}', wait => '" + wait + "')::integer")
			two := b.start("select 1 / lock.try_all(exclusive_keys => '{1}', wait => '" + wait + "')::integer")
			refused := 0
			for _, p := range []*pending{one, two} {
				if err := p.wait(); err != nil {
					wantCode(t, err, map[string]string{advisory: "40P01", row: "22012"}[e.engine], p.sql)
					refused++
				}
				p.s.exec("rollback")
			}
			if refused == 0 {
				t.Error("both have both")
			}
		})
		t.Run("refuses bad input and changes nothing", func(t *testing.T) {
			s := e.session(t)
			s.exec("begin")
			for call, want := range map[string]string{
				"null": "22004", "exclusive_keys => null": "22004", "shared_names => null": "22004", "shared_keys => null": "22004", "'{a}', wait => null": "22004",
				"'{a, null}'": "22004", "'{a}', '{1, null}'": "22004", "'{a}', shared_names => '{null}'": "22004", "'{a}', shared_keys => '{null}'": "22004",
				`'{a, ""}'`: "22023", `'{a}', shared_names => '{""}'`: "22023", "'{a}', wait => '-1 second'": "22023", "'{a}', wait => '1 month'": "22023",
				"array['a', repeat('x', 10485760)]": "22023",
			} {
				s.exec("savepoint s")
				if pg := s.fails(want, "select lock.try_all("+call+")"); pg.Hint == "" || len(pg.Message) > 200 {
					t.Errorf("%s: %.300s, hint %q", call, pg.Message, pg.Hint)
				}
				s.exec("rollback to savepoint s")
			}
			s.exec("savepoint s")
			s.fails("22021", "select lock.try_all(array['a', $1::text])", "a\x00b")
			s.exec("rollback to savepoint s")
			if !free("'a'") || !free("1") {
				t.Error("something is held")
			}
			s.exec("rollback")
		})
		t.Run("the checkers catch a set that is left half, and one that is too weak", func(t *testing.T) {
			mutate(t, e, "try_all", "bool_and(", "bool_or(")
			if strongest(t) {
				t.Error("a shared key is not noticed")
			}
			mutate(t, e, "try_all", "raise exception using errcode = 'LK000'", "return false")
			if clean(t, "0") {
				t.Error("a half set is not noticed")
			}
		})
	})
}

func TestKeyIsolationLevels(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		key := 0
		for _, level := range levels {
			for _, known := range []bool{false, true} {
				for _, first := range []string{"shared", "exclusive"} {
					for _, forget := range []bool{false, true} {
						key++
						t.Run(fmt.Sprintf("%s, known %v, %s, forget %v", level, known, first, forget), func(t *testing.T) {
							if target.disguised && level != "read committed" && (!known || forget) {
								t.Skip("the key is newer than the snapshot, or inserted inside the transaction, where a try waits for it")
							}
							a, b := e.session(t), e.session(t)
							if known {
								a.exec("select lock.exclusive($1::bigint)", key)
							}
							a.exec("begin isolation level " + level)
							a.exec("select lock."+first+"($1::bigint)", key)
							b.exec("begin isolation level " + level)
							p := b.start("select lock.exclusive($1::bigint)", key).blocked()
							if forget {
								// Before PostgreSQL 17 a sharer with a waiter behind it does not get the exclusive advisory lock by a try.
								forgot := get[bool](a, "select lock.unlock($1::bigint)", key)
								if !forgot && (first == "exclusive" || e.engine == row || target.number >= 170000) {
									t.Error("not forgotten")
								}
							}
							a.exec("commit")
							if err := p.wait(); err != nil {
								// The row engine may ask for a retry; advisory locks have no snapshot to fail by.
								if e.engine == advisory || level == "read committed" || code(err) != "40001" {
									t.Fatal(err)
								}
								b.exec("rollback")
								b.exec("begin isolation level " + level)
								b.exec("select lock.exclusive($1::bigint)", key)
							}
							answers(e.session(t), false, "select lock.try_shared($1::bigint)", key)
							b.exec("commit")
						})
					}
				}
			}
		}
	})
}

func TestKeyReadOnly(t *testing.T) {
	t.Parallel()
	t.Run("the advisory engine locks, waits and forgets", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "it has the row engine alone")
		e := open(t, advisory)
		a, b := e.session(t), e.session(t)
		a.exec("begin read only")
		a.exec("select lock.exclusive(1), lock.shared('two'), lock.try_exclusive(3, '1 second')")
		answers(b, false, "select lock.try_shared(1)")
		b.exec("begin read only")
		p := b.start("select lock.exclusive('two')").blocked()
		a.exec("rollback")
		p.ends()
		answers(a, false, "select lock.try_shared('two')")
		answers(b, true, "select lock.unlock('two')")
		answers(b, int64(0), "select lock.vacuum()")
		b.exec("rollback")
	})
	t.Run("the row engine refuses", func(t *testing.T) {
		t.Parallel()
		e := open(t, row)
		a := e.session(t)
		a.exec("set default_transaction_read_only = on")
		a.fails("25006", "select lock.exclusive(1)")
		a.fails("25006", "select lock.try_shared('one')")
	})
}

func TestKeyStandby(t *testing.T) {
	if target.own == nil {
		t.Skip("needs a server of its own, to make a standby of it")
	}
	if _, err := os.Stat(target.own.BinDir + "/pg_basebackup"); err != nil {
		t.Skip("pg_basebackup is not installed beside the server")
	}
	t.Parallel()
	envs := []*env{open(t, advisory), open(t, row)}
	for _, e := range envs {
		e.session(t).exec("select lock.exclusive(1)")
	}
	standby, err := target.own.Standby(ctx)
	must(t, err)
	t.Cleanup(func() { standby.Stop() })
	for _, e := range envs {
		config, err := pgx.ParseConfig(e.url)
		must(t, err)
		s := e.sessionAs(t, standby.URL("locks_app", config.Database))
		answers(s, true, "select pg_is_in_recovery()")
		answers(s, true, "select exists (select from lock.check() where subject = 'standby')")
		for _, call := range []string{
			"lock.exclusive(1)", "lock.shared(1)", "lock.exclusive('a')", "lock.shared('a')", "lock.try_exclusive(1)", "lock.try_shared(1)",
			"lock.try_exclusive('a', '1 second')", "lock.try_shared('a')", "lock.exclusive_all('{a}')", "lock.try_all('{a}')", "lock.unlock(1)", "lock.unlock('a')",
			"lock.vacuum()",
		} {
			s.fails("25006", "select "+call)
		}
		for _, look := range []string{"table lock.activity", "table lock.blocked", "table lock.queue_depth", "select lock.who('a')", "select lock.who(1)"} {
			s.exec(look)
		}
	}
}

// One engine after the other, and nothing beside them: the advisory engine's part fills the whole server's lock table.
func TestKeyManyInOneTransaction(t *testing.T) {
	for _, engine := range engines() {
		e := open(t, engine)
		s := e.session(t)
		s.exec("begin")
		s.exec("select lock.exclusive(k), lock.exclusive('k' || k) from generate_series(1, 2500) k")
		if e.engine == advisory {
			answers(s, int64(5000), "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
			s.exec("set local statement_timeout = '10s'") // a view that compares each with each takes minutes
			for _, view := range []string{"locked_keys", "activity"} {
				answers(s, int64(5000), "select count(*) from (select name, key from lock."+view+" where key is not null offset 0) as held")
			}
			s.exec("set local statement_timeout = 0")
		}
		s.exec("commit")
		_, err := s.conn.Exec(ctx, "select lock.exclusive(k) from generate_series(1, 10000) k")
		if err != nil && (e.engine == row || code(err) != "53200") {
			t.Fatal(err)
		}
		if e.engine == advisory {
			// The lock table is finite: at some number there is a clear error, and nothing stays held.
			pg := s.fails("53200", "select lock.exclusive(k) from generate_series(1, 1000000) k")
			if !strings.Contains(pg.Hint, "max_locks_per_transaction") {
				t.Errorf("hint: %q", pg.Hint)
			}
		}
		answers(e.session(t), true, "select lock.try_exclusive(1) and lock.try_exclusive(10000)")
	}
}

func TestKeyBadInput(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10<<20)
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.session(t)
		for _, f := range []string{"exclusive", "shared", "try_exclusive", "try_shared", "unlock"} {
			for call, want := range map[string]string{
				"(null::bigint)": "22004", "(null::text)": "22004", "('')": "22023",
			} {
				if pg := s.fails(want, "select lock."+f+call); pg.Hint == "" {
					t.Errorf("%s%s: no hint", f, call)
				}
			}
			if pg := s.fails("22023", "select lock."+f+"($1::text)", long); !strings.Contains(pg.Message, "10485760 bytes") || len(pg.Message) > 200 {
				t.Errorf("%s: %.300s", f, pg.Message)
			}
			s.fails("22021", "select lock."+f+"($1::text)", "a\x00b")
			s.exec("select lock."+f+"($1::text)", `it's "quoted" \ and ; -- so`)
		}
		for _, f := range []string{"try_exclusive", "try_shared"} {
			for _, argument := range []string{"1", "'one'"} {
				for wait, want := range map[string]string{
					"null": "22004", "'-1 second'": "22023", "'1 month'": "22023", "'1 year -11 months'": "22023", "'-1 day 25 hours'": "",
				} {
					sql := fmt.Sprintf("select lock.%s(%s, %s)", f, argument, wait)
					if want == "" {
						s.exec(sql)
					} else {
						s.fails(want, sql)
					}
				}
				if target.number >= 170000 {
					s.fails("22023", fmt.Sprintf("select lock.%s(%s, 'infinity')", f, argument))
				}
				answers(s, true, fmt.Sprintf("select lock.%s(%s, '100 days')", f, argument))
			}
		}
		s.fails("22004", "select lock.key(null)")
		s.fails("22023", "select lock.key('')")
		answers(e.sessionAs(t, e.super), int64(0), `select count(*) from lock.locked_keys where name = '' or length(name) > 1024`)
		for _, f := range []string{"hold_key(null, $1, false)", "try_key(null, $1, true, '1 second')"} {
			e.sessionAs(t, e.super).fails("22023", "select lock_internal."+f, long)
		}
	})
}

func TestKeyNames(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.session(t)
		t.Run("hash the same everywhere and for ever", func(t *testing.T) {
			for name, key := range map[string]int64{
				"customer:42": -3722596630171212579, "a": -6241313783998493816, "\u00dcn\u00efc\u00f6d\u00e9 \U0001f512": 8647133866191253843, strings.Repeat("x", 1024): 5933893244469349704,
			} {
				answers(s, key, "select lock.key($1)", name)
			}
			answers(s, true, `select lock.key('a') = lock.advisory_key(hashtextextended('a' collate "C", lock.advisory_key(0)))`)
		})
		t.Run("are the same key whatever their collation", func(t *testing.T) {
			_, err := e.admin.Exec(ctx, "create collation public.blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
			if err != nil {
				t.Skip(err)
			}
			other := e.session(t)
			for _, f := range []string{"exclusive", "shared", "try_exclusive", "try_shared"} {
				s.exec("begin")
				s.exec("select lock." + f + "('Name' collate public.blind)")
				answers(other, false, "select lock.try_exclusive('Name')")
				answers(other, false, "select lock.try_exclusive(lock.key('Name' collate public.blind))")
				answers(other, true, "select lock.try_exclusive('name' collate public.blind)")
				s.exec("commit")
			}
		})
		t.Run("win over numbers for an untyped parameter", func(t *testing.T) {
			s.exec("begin")
			s.exec("select lock.exclusive('77')")
			s.exec("select lock.exclusive(78)")
			answers(e.session(t), true, "select not lock.try_shared(lock.key('77')) and not lock.try_shared(78) and lock.try_shared(77)")
			s.exec("commit")
		})
	})
}

// On the advisory engine whoever waits for a name shows it, and nobody else does.
func TestKeyNamesOfTheAdvisoryEngine(t *testing.T) {
	onlyPostgreSQL(t, "it has the row engine alone")
	t.Parallel()
	e := open(t, advisory)
	admin := e.sessionAs(t, e.super)
	const app = "billing worker, number one"
	named := func(t *testing.T) *session {
		s := e.sessionAs(t, e.app)
		s.exec("set application_name = '" + app + "'")
		return s
	}
	// names are what the views say of the key of a name: of who holds it, and of who waits for it.
	names := func(name string) string {
		return get[string](admin, `
			select concat_ws(', ',
				(select coalesce(name, 'none') from lock.locked_keys where key = lock.key($1)),
				(select string_agg(name, ' ' order by granted desc) from lock.activity where key = lock.key($1)),
				(select string_agg(coalesce(name, 'none') || ' ' || application, ' ') from lock.blocked where key = lock.key($1)),
				(select string_agg(name || ' ' || application, ' ' order by granted desc) from lock.who(lock.key($1))))`, name)
	}
	shows := func(t *testing.T, s *session, want string) {
		t.Helper()
		answers(admin, want, "select application_name from pg_stat_activity where pid = $1", s.pid)
	}

	t.Run("nobody waits: no name", func(t *testing.T) {
		a, b := named(t), named(t)
		key := get[string](a, "select lock.key('quiet')::text")
		a.exec("begin")
		a.exec("select lock.exclusive('quiet')")
		answers(b, false, "select lock.try_exclusive('quiet')")
		answers(b, false, "select lock.try_shared('quiet', '1 millisecond')")
		answers(admin, fmt.Sprintf("none, %s, %[1]s %[2]s", key, app), "select $1::text", names("quiet"))
		a.exec("commit")
	})
	for _, call := range []string{"exclusive('loud')", "shared('loud')", "try_exclusive('loud', '1 hour')", "try_shared('loud', '1 hour')", "exclusive_all('{loud}')", "try_all('{loud}', wait => '1 hour')"} {
		t.Run("while somebody waits the name shows, for the holder too: "+call, func(t *testing.T) {
			a, b := named(t), named(t)
			a.exec("begin")
			a.exec("select lock.exclusive('loud')")
			b.exec("begin")
			p := b.start("select lock." + call).blocked()
			shows(t, b, app+" waits for loud")
			answers(admin, fmt.Sprintf("loud, loud loud, loud %s, loud %[1]s loud %[1]s", app), "select $1::text", names("loud"))
			a.exec("commit")
			p.ends()
			shows(t, b, app)
			answers(admin, true, "select name is null from lock.locked_keys where key = lock.key('loud')")
			b.exec("commit")
			if got := b.conn.PgConn().ParameterStatus("application_name"); got != app {
				t.Errorf("the client was told %q", got)
			}
		})
	}
	t.Run("what does not fit shows as its beginning", func(t *testing.T) {
		for name, want := range map[string][2]string{
			strings.Repeat("n", 26):                    {app + " waits for " + strings.Repeat("n", 26), strings.Repeat("n", 26)},
			strings.Repeat("n", 40):                    {"billing work waits for " + strings.Repeat("n", 40), strings.Repeat("n", 40)},
			strings.Repeat("n", 52):                    {" waits for " + strings.Repeat("n", 52), strings.Repeat("n", 52)},
			strings.Repeat("n", 53):                    {" waits for " + strings.Repeat("n", 49) + "...", strings.Repeat("n", 49) + "..."},
			strings.Repeat("n", 1024):                  {" waits for " + strings.Repeat("n", 49) + "...", strings.Repeat("n", 49) + "..."},
			"Kunde \u00dc\u00df waits for 42":          {app + " waits for Kunde ?? waits for 42...", "Kunde ?? waits for 42..."},
			strings.Repeat("\u00fc", 51):               {" waits for " + strings.Repeat("?", 49) + "...", strings.Repeat("?", 49) + "..."},
			"a\n\tname":                                {app + " waits for a??name...", "a??name..."},
			"'; drop table \\ x waits for y waits for": {"billing worke waits for '; drop table \\ x waits for y waits for", "'; drop table \\ x waits for y waits for"},
		} {
			a, b := named(t), named(t)
			a.exec("begin")
			a.exec("select lock.exclusive($1::text)", name)
			p := b.start("select lock.shared($1::text)", name).blocked()
			shows(t, b, want[0])
			answers(admin, want[1], "select name from lock.locked_keys where key = lock.key($1)", name)
			answers(admin, want[1], "select name from lock.blocked")
			a.exec("commit")
			p.ends()
			shows(t, b, app)
		}
	})
	t.Run("what a session only says of a key is not believed", func(t *testing.T) {
		a, liar, honest := named(t), named(t), named(t)
		key := get[int64](a, "select lock.key('true')")
		a.exec("begin")
		a.exec("select lock.exclusive('true')")
		liar.exec("set application_name = 'app waits for false'")
		lie := liar.start("select lock.exclusive($1::bigint)", key).blocked()
		answers(admin, true, "select bool_and(name is null) and count(*) = 1 from lock.blocked")
		answers(admin, true, "select name is null from lock.locked_keys")
		answers(admin, fmt.Sprint(key, " ", key), "select string_agg(name, ' ') from lock.activity where kind = 'key'")
		_, err := e.admin.Exec(ctx, "select pg_cancel_backend($1)", liar.pid)
		must(t, err)
		if code(lie.wait()) != "57014" {
			t.Error("not cancelled")
		}
		liar.exec("set application_name = 'app waits for a beginning...'")
		lie = liar.start("select lock.exclusive($1::bigint)", key).blocked()
		p := honest.start("select lock.shared('true')").blocked()
		answers(admin, "true", "select name from lock.locked_keys")
		answers(admin, "true true", "select string_agg(name, ' ') from lock.blocked")
		a.exec("commit")
		lie.ends()
		p.ends()
	})
	t.Run("a wait that fails leaves nothing of it", func(t *testing.T) {
		a, b := named(t), named(t)
		a.exec("begin")
		a.exec("select lock.exclusive('taken')")
		// each is what a session runs once it has begun a transaction, and waits in the last of it.
		for _, setting := range []string{"", "set local application_name = 'of this transaction'", "set application_name = 'of this session'"} {
			want := app
			if setting != "" {
				want = strings.Split(setting, "'")[1]
			}
			begin := func() {
				b.exec("set application_name = '" + app + "'")
				b.exec("begin")
				if setting != "" {
					b.exec(setting)
				}
				b.exec("savepoint s")
			}
			behind := func(what string) {
				t.Helper()
				want := want
				b.exec("rollback to savepoint s")
				answers(b, want, "show application_name")
				shows(t, b, want)
				b.exec("commit")
				if strings.HasPrefix(setting, "set local") {
					want = app
				}
				shows(t, b, want)
				if got := b.conn.PgConn().ParameterStatus("application_name"); strings.Contains(got, "waits") {
					t.Errorf("%s: the client was told %q", what, got)
				}
			}
			for _, timeout := range []string{"lock_timeout", "statement_timeout"} {
				begin()
				b.exec("set local " + timeout + " = '20ms'")
				b.fails(map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"}[timeout], "select lock.exclusive('taken')")
				behind(timeout)
			}
			begin()
			p := b.start("select lock.exclusive('taken')").blocked()
			shows(t, b, want+" waits for taken")
			_, err := e.admin.Exec(ctx, "select pg_cancel_backend($1)", b.pid)
			must(t, err)
			if code(p.wait()) != "57014" {
				t.Error("not cancelled")
			}
			behind("a cancel")
			begin()
			answers(b, false, "select lock.try_exclusive('taken', '20 ms')")
			answers(b, want, "show application_name")
			answers(b, false, "select lock.try_all('{taken, free}', wait => '20 ms')")
			answers(b, want, "show application_name")
			b.exec("set local lock_timeout = '20ms'")
			b.exec("do $$ begin perform lock.exclusive('taken'); exception when lock_not_available then null; end $$")
			answers(b, want, "show application_name")
			behind("a try")
			// The wait is the only statement of its transaction.
			b.exec("set application_name = '" + app + "'")
			b.exec("set lock_timeout = '20ms'")
			b.fails("55P03", "select lock.shared('taken')")
			b.exec("reset lock_timeout")
			answers(b, app, "show application_name")
		}
		a.exec("commit")
	})
	t.Run("a deadlock's victim too", func(t *testing.T) {
		a, b := named(t), named(t)
		for s, name := range map[*session]string{a: "one", b: "other"} {
			s.exec("begin")
			s.exec("select lock.exclusive($1::text)", name)
		}
		p := a.start("select lock.exclusive('other')").blocked()
		q := b.start("select lock.exclusive('one')")
		one, other := p.wait(), q.wait()
		if code(one) != "40P01" && code(other) != "40P01" {
			t.Fatalf("no victim: %v, %v", one, other)
		}
		for _, s := range []*session{a, b} {
			s.exec("rollback")
			shows(t, s, app)
		}
	})
	t.Run("a snapshot of long ago and SERIALIZABLE are no different", func(t *testing.T) {
		holder := e.session(t)
		holder.exec("begin")
		holder.exec("select lock.exclusive('serial')")
		var waiting []*pending
		for range 2 {
			s := e.session(t)
			s.exec("begin isolation level serializable")
			waiting = append(waiting, s.start("select lock.exclusive('serial')").blocked())
		}
		answers(admin, "serial", "select name from lock.locked_keys")
		holder.exec("commit")
		for _, p := range waiting {
			p.ends()
			p.s.exec("commit")
		}
	})
}

// A free lock is one advisory lock, whatever calls it and however it is planned: the planner puts the function's text in its
// place, and the key is used in it twice.
func TestKeyIsLockedOnce(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		super := e.sessionAs(t, e.super)
		super.exec(`
			create sequence public.number;
			grant all on sequence public.number to public;
			create table public.thing (id bigint, name text);
			insert into public.thing select n, 'thing ' || n from generate_series(1, 5) n;
			create table public.guarded (id bigint, locked boolean default lock.try_exclusive(nextval('public.number')));
			grant all on public.thing, public.guarded to public;
			create function public.in_sql(key bigint) returns void language sql as 'select lock.exclusive(key)';
			create function public.in_atomic(key bigint) returns boolean language sql return lock.try_exclusive(key);
			create function public.in_plpgsql(key bigint) returns boolean language plpgsql as $$ begin perform lock.exclusive(key); return lock.try_exclusive(key); end $$;
			create view public.view as select id from public.thing where lock.try_exclusive(id);
			grant select on public.view to public`)
		s := e.session(t)
		held := func(t *testing.T, want ...int64) {
			t.Helper()
			if e.engine == row {
				return // the row engine's locks cannot be listed
			}
			got := get[[]int64](super, "select coalesce(array_agg(key order by key), '{}') from lock.locked_keys join pg_locks on pg_locks.pid = $1 and lock.advisory_key((classid::bigint << 32) | objid::bigint) = key", s.pid)
			if !slices.Equal(got, want) {
				t.Errorf("held: %v, want %v", got, want)
			}
		}
		next := int64(0)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			s.exec("set plan_cache_mode = " + mode)
			for _, f := range []string{"lock.exclusive", "lock.shared", "lock.try_exclusive", "lock.try_shared", "public.in_sql", "public.in_atomic", "public.in_plpgsql"} {
				t.Run(f+", prepared, "+mode, func(t *testing.T) {
					s.exec("prepare p (bigint) as select " + f + "($1)")
					for key := range int64(7) { // the sixth execution may be the first of a generic plan
						s.exec("begin")
						s.exec(fmt.Sprintf("execute p (%d)", 100+key))
						held(t, 100+key)
						s.exec("commit")
					}
					s.exec("deallocate p")
				})
				t.Run(f+", a volatile key, "+mode, func(t *testing.T) {
					s.exec("begin")
					s.exec("select " + f + "(nextval('public.number'))")
					next++
					answers(s, next, "select last_value from public.number")
					held(t, next)
					s.exec("commit")
				})
			}
			t.Run("a name from a volatile expression, "+mode, func(t *testing.T) {
				for _, f := range []string{"exclusive", "shared", "try_exclusive", "try_shared"} {
					s.exec("begin")
					s.exec("select lock." + f + "('n' || nextval('public.number'))")
					next++
					answers(s, next, "select last_value from public.number")
					held(t, get[int64](s, "select lock.key('n' || $1::bigint)", next))
					s.exec("commit")
				}
			})
			t.Run("a where clause, a subselect, a view, "+mode, func(t *testing.T) {
				for _, sql := range []string{
					"select id from public.thing where lock.try_exclusive(id)",
					"select id from public.thing where lock.try_shared(id) and id > 0",
					"select id from public.thing where not (not lock.try_exclusive(id, '0'))",
					"select lock.exclusive((select thing.id)) from public.thing",
					"select id from public.view",
					"update public.thing set name = name where lock.try_exclusive(id)",
				} {
					s.exec("begin")
					s.exec(sql)
					held(t, 1, 2, 3, 4, 5)
					s.exec("commit")
				}
				s.exec("begin")
				s.exec("select id from public.thing where id = 3 and lock.try_exclusive(id)")
				held(t, 3)
				s.exec("commit")
				s.exec("begin")
				s.exec("select lock.shared(random()::bigint) from public.thing where id = 1 and lock.try_exclusive(name)")
				answers(super, true, "select lock.engine() = 'row' or count(*) = 2 from pg_locks where locktype = 'advisory' and pid = $1", s.pid)
				s.exec("commit")
			})
			t.Run("a column default, "+mode, func(t *testing.T) {
				s.exec("begin")
				s.exec("insert into public.guarded (id) values (1)")
				next++
				held(t, next)
				s.exec("commit")
			})
		}
		t.Run("is not called when the case is not met", func(t *testing.T) {
			s.exec("begin")
			s.exec("select case when id = 2 then lock.try_exclusive(id) end, coalesce(id > 0, lock.try_exclusive(77)) from public.thing")
			held(t, 2)
			s.exec("commit")
		})
		t.Run("PostgreSQL puts the text for numbers in its place", func(t *testing.T) {
			onlyPostgreSQL(t, "its plans are not looked at")
			for _, call := range []string{
				"lock.exclusive(id)", "lock.shared(id)", "lock.try_exclusive(id)", "lock.try_shared(id)",
			} {
				rows, err := s.conn.Query(ctx, "explain (verbose, costs off) select "+call+" from public.thing")
				must(t, err)
				lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
				must(t, err)
				plan := strings.Join(lines, "\n")
				inlined := strings.Contains(plan, "lock_internal.") && !strings.Contains(plan, "lock."+call[5:strings.Index(call, "(")])
				if !inlined || strings.Contains(plan, "pg_try_advisory_xact_lock") != (e.engine == advisory) || strings.Contains(plan, "is_advisory") {
					t.Errorf("%s: %s", call, plan)
				}
			}
		})
	})
}

func TestKeyWritesNothing(t *testing.T) {
	onlyPostgreSQL(t, "transaction ids say nothing there")
	t.Parallel()
	e := open(t, advisory)
	holder, s := e.session(t), e.session(t)
	holder.exec("begin")
	holder.exec("select lock.exclusive(2), lock.exclusive('two')")
	for _, call := range []string{
		"lock.exclusive(1)", "lock.shared(1)", "lock.exclusive('one')", "lock.shared('one')", "lock.try_exclusive(1)", "lock.try_exclusive(1, '1 second')",
		"lock.try_exclusive('one', '1 second')", "lock.exclusive_all('{a, b}')", "lock.try_all('{a, b}', '{1}', '{c}', wait => '1 second')", "lock.try_all('{a, two}', '{1, 2}')", "lock.try_exclusive(2)", "lock.try_shared(2)", "lock.try_exclusive('two')", "lock.try_shared('two')",
	} {
		s.exec("begin")
		s.exec("select " + call)
		answers(s, true, "select pg_current_xact_id_if_assigned() is null")
		answers(s, int64(0), "select count(*) from pg_locks where pid = pg_backend_pid() and relation in (select oid from pg_class where relnamespace = 'lock'::regnamespace)")
		s.exec("commit")
	}
	for _, call := range []string{"lock.exclusive('two')", "lock.try_shared('two', '1 hour')"} {
		s.exec("begin")
		p := s.start("select " + call).blocked()
		holder.exec("commit")
		p.ends()
		answers(s, true, "select pg_current_xact_id_if_assigned() is null")
		s.exec("commit")
		holder.exec("begin")
		holder.exec("select lock.exclusive('two')")
	}
}

func TestKeySharersOfANewKey(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	var sharers []*session
	for range 8 {
		s := e.session(t)
		s.exec("begin")
		s.exec("select lock.shared('new')")
		sharers = append(sharers, s)
	}
	p := e.session(t).start("select lock.exclusive('new')").blocked()
	for _, s := range sharers {
		s.exec("commit")
	}
	p.ends()
}

func TestKeyGo(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		t.Run("db calls every function", func(t *testing.T) {
			err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
				q := db.New(tx)
				must(t, q.Exclusive(ctx, 1))
				must(t, q.Shared(ctx, 2))
				must(t, q.ExclusiveName(ctx, "one"))
				must(t, q.SharedName(ctx, "two"))
				must(t, q.ExclusiveAll(ctx, []string{"a", "b"}))
				all, err := q.TryAll(ctx, db.TryAllParams{ExclusiveKeys: []int64{3}, SharedNames: []string{"two"}})
				must(t, err)
				if !all {
					t.Error("TryAll: not granted")
				}
				other := db.New(e.pool)
				for _, got := range []struct {
					want bool
					call func() (bool, error)
				}{
					{false, func() (bool, error) {
						return other.TryExclusive(ctx, 1, 10*time.Millisecond)
					}},
					{false, func() (bool, error) { return other.TryShared(ctx, 1, 0) }},
					{false, func() (bool, error) { return other.TryExclusiveName(ctx, "two", 0) }},
					{e.sharersMeet(false), func() (bool, error) { return other.TrySharedName(ctx, "two", 0) }},
					{true, func() (bool, error) { return q.Unlock(ctx, 1) }},
					{true, func() (bool, error) { return q.UnlockName(ctx, "one") }},
				} {
					locked, err := got.call()
					must(t, err)
					if locked != got.want {
						t.Errorf("got %v, want %v", locked, got.want)
					}
				}
				key, err := q.Key(ctx, "two")
				must(t, err)
				answers(e.session(t), key, "select lock.key('two')")
				engine, err := q.Engine(ctx)
				must(t, err)
				if engine != e.engine {
					t.Errorf("engine %s", engine)
				}
				return nil
			})
			must(t, err)
			forgotten, err := db.New(e.pool).Vacuum(ctx)
			must(t, err)
			if want := map[string]int64{row: 5}[e.engine]; forgotten != want { // 2, two, a, b and 3; nobody waited for a name
				t.Errorf("vacuum forgot %d keys, want %d", forgotten, want)
			}
		})
		t.Run("Exclusive excludes and Shared shares", func(t *testing.T) {
			e.session(t).exec("select lock.exclusive('k'), lock.exclusive(-7)")
			must(t, locks.Exclusive(ctx, e.pool, "k", func(pgx.Tx) error {
				answers(e.session(t), false, "select lock.try_shared('k')")
				return nil
			}))
			type account int64
			must(t, locks.Shared(ctx, e.pool, account(-7), func(tx pgx.Tx) error {
				answers(e.session(t), true, "select lock.try_shared(-7) and not lock.try_exclusive(-7)")
				_, err := tx.Exec(ctx, "select lock.shared(8)")
				return err
			}))
			answers(e.session(t), true, "select lock.try_exclusive('k') and lock.try_exclusive(-7) and lock.try_exclusive(8)")
		})
		t.Run("a try answers, and calls its closure only when it has the key", func(t *testing.T) {
			holder := e.session(t)
			holder.exec("select lock.exclusive_all('{p, q}'), lock.exclusive(5)")
			for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
				pool := openPool(t, e.url+"&default_query_exec_mode="+strings.ReplaceAll(mode.String(), " ", "_"), 2)
				if pool.Config().ConnConfig.DefaultQueryExecMode != mode {
					t.Fatalf("mode %v", mode)
				}
				// ask returns the answer, and whether the closure was called with the key in hand.
				ask := func(t *testing.T, try func(fn func(pgx.Tx) error) (bool, error), key string) (bool, bool) {
					t.Helper()
					called := false
					got, err := try(func(tx pgx.Tx) error {
						called = true
						answers(holder, false, "select lock.try_exclusive("+key+")")
						return nil
					})
					must(t, err)
					return got, called
				}
				exclusive := func(fn func(pgx.Tx) error) (bool, error) {
					return locks.TryExclusive(ctx, pool, "p", 10*time.Millisecond, fn)
				}
				shared := func(fn func(pgx.Tx) error) (bool, error) { return locks.TryShared(ctx, pool, int32(5), 0, fn) }
				all := func(fn func(pgx.Tx) error) (bool, error) {
					return true, locks.ExclusiveAll(ctx, pool, []string{"q", "p", "q"}, fn)
				}
				for range 2 {
					for _, c := range []struct {
						try func(func(pgx.Tx) error) (bool, error)
						key string
					}{{exclusive, "'p'"}, {shared, "5"}, {all, "'q'"}} {
						if got, called := ask(t, c.try, c.key); !got || !called {
							t.Errorf("%v, %s, free: %v, called %v", mode, c.key, got, called)
						}
					}
				}
				holder.exec("begin")
				holder.exec("select lock.shared('p'), lock.exclusive(5)")
				if got, called := ask(t, exclusive, ""); got || called {
					t.Errorf("%v, exclusive, taken: %v, called %v", mode, got, called)
				}
				if got, called := ask(t, shared, ""); got || called {
					t.Errorf("%v, shared, taken: %v, called %v", mode, got, called)
				}
				holder.exec("commit")
				if acquired, all := pool.Stat().AcquiredConns(), pool.Stat().NewConnsCount(); acquired != 0 || all > 1 {
					t.Errorf("%v: %d connections are not given back, %d were opened", mode, acquired, all)
				}
				const odd = `it's "quoted" \ and ; -- so`
				must(t, locks.Exclusive(ctx, pool, odd, func(pgx.Tx) error {
					answers(holder, false, "select lock.try_shared($1::text)", odd)
					return nil
				}))
				if err := locks.Exclusive(ctx, pool, "a\x00b", func(pgx.Tx) error { t.Error("called"); return nil }); err == nil {
					t.Errorf("%v: a NUL is no error", mode)
				}
			}
			must(t, locks.ExclusiveAll(ctx, e.pool, nil, func(pgx.Tx) error { return nil }))
			never := func(pgx.Tx) error { t.Error("called"); return nil }
			_, err := locks.TryExclusive(ctx, e.pool, "p", -time.Second, never)
			wantCode(t, err, "22023", "a negative wait")
			wantCode(t, locks.ExclusiveAll(ctx, e.pool, []string{"a", ""}, never), "22023", "an empty name")
			oops := errors.New("oops")
			if got, err := locks.TryShared(ctx, e.pool, "p", 0, func(pgx.Tx) error { return oops }); got || err != oops {
				t.Errorf("%v, %v", got, err)
			}
		})
		t.Run("the closure's transaction has all that pgx has", func(t *testing.T) {
			var kept pgx.Tx
			must(t, locks.Exclusive(ctx, e.pool, "k", func(tx pgx.Tx) error {
				kept = tx
				inner, err := tx.Begin(ctx)
				must(t, err)
				_, err = inner.Exec(ctx, "select 1 / 0")
				wantCode(t, err, "22012", "inside")
				must(t, inner.Rollback(ctx))
				must(t, tx.SendBatch(ctx, &pgx.Batch{}).Close())
				return tx.QueryRow(ctx, "select 1").Scan(new(int))
			}))
			if _, err := kept.Exec(ctx, "select 1"); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("after the end: %v", err)
			}
		})
		t.Run("rolls back on an error and on a panic", func(t *testing.T) {
			oops := fmt.Errorf("oops")
			err := locks.Exclusive(ctx, e.pool, `k'"\`, func(pgx.Tx) error { return oops })
			if err != oops {
				t.Fatal(err)
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic was swallowed")
					}
				}()
				locks.Exclusive(ctx, e.pool, `k'"\`, func(pgx.Tx) error { panic("oops") })
			}()
			answers(e.session(t), true, "select lock.try_exclusive($1::text)", `k'"\`)
			answers(e.session(t), true, "select lock.try_exclusive($1::text)", `k'"\`)
		})
		t.Run("runs the closure again after 40001 and 40P01, and not for ever", func(t *testing.T) {
			for _, state := range []string{"40001", "40P01", "23505"} {
				calls := 0
				err := locks.Exclusive(ctx, e.pool, 9, func(tx pgx.Tx) error {
					calls++
					if calls <= 3 {
						_, err := tx.Exec(ctx, "do $$ begin raise sqlstate '"+state+"'; end $$")
						return err
					}
					return nil
				})
				if retried := state != "23505"; retried != (err == nil) || retried != (calls == 4) {
					t.Errorf("%s: %d calls, %v", state, calls, err)
				}
			}
			calls := 0
			err := locks.Exclusive(ctx, e.pool, 9, func(tx pgx.Tx) error {
				calls++
				return &pgconn.PgError{Code: "40001"}
			})
			if !locks.IsRetryable(err) || calls != 11 {
				t.Errorf("%d calls, %v", calls, err)
			}
		})
		t.Run("the transaction is not the closure's to end", func(t *testing.T) {
			super := e.sessionAs(t, e.super)
			super.exec("create table written (what text); grant insert on written to locks_app")
			end := func(what string, end func(tx pgx.Tx) error) error {
				return locks.Exclusive(ctx, e.pool, "ended", func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "insert into written values ($1)", what)
					return errors.Join(err, end(tx))
				})
			}
			must(t, end("habit", func(tx pgx.Tx) error { tx.Rollback(ctx); return nil }))
			for what, method := range map[string]func(pgx.Tx) error{
				"commit":   func(tx pgx.Tx) error { return tx.Commit(ctx) },
				"rollback": func(tx pgx.Tx) error { return tx.Rollback(ctx) },
			} {
				if end(what, method) == nil {
					t.Errorf("%s: no error", what)
				}
			}
			for _, sql := range []string{"commit", "rollback"} {
				err := end("SQL "+sql, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err })
				if err == nil || !strings.Contains(err.Error(), "ended the transaction") {
					t.Errorf("%s: %v", sql, err)
				}
			}
			answers(super, "SQL commit habit", "select string_agg(what, ' ' order by what collate \"C\") from written")
		})
		t.Run("the closure sees what those before it did, whatever the default isolation", func(t *testing.T) {
			onlyPostgreSQL(t, "its waits cannot be seen at once")
			super := e.sessionAs(t, e.super)
			super.exec("create table booking (seat integer); grant select, insert on booking to locks_app")
			for _, level := range levels {
				super.exec("truncate booking")
				pool := openPool(t, e.url+"&default_transaction_isolation="+url.PathEscape(level), 2)
				book := func(before func()) error {
					return locks.Exclusive(ctx, pool, "seat", func(tx pgx.Tx) error {
						before()
						_, err := tx.Exec(ctx, "insert into booking select 7 where not exists (select from booking)")
						return err
					})
				}
				second := make(chan error, 1)
				must(t, book(func() {
					go func() { second <- book(func() {}) }()
					eventually(t, "the second waits", func() bool {
						return get[bool](super, "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')")
					})
				}))
				must(t, <-second)
				answers(super, int64(1), "select count(*) from booking")
			}
		})
		t.Run("a name is the same key in every encoding of the connection", func(t *testing.T) {
			onlyPostgreSQL(t, "it has UTF-8 alone")
			pool := openPool(t, e.url+"&client_encoding=LATIN1", 2)
			must(t, locks.Exclusive(ctx, pool, "caf\u00e9", func(pgx.Tx) error {
				got, err := db.New(pool).TryExclusiveName(ctx, "caf\u00e9", 0)
				if got {
					t.Error("granted twice")
				}
				return err
			}))
		})
		t.Run("keeps the SQLSTATE and leaves nothing behind when refused", func(t *testing.T) {
			never := func(pgx.Tx) error { t.Error("called"); return nil }
			wantCode(t, locks.Exclusive(ctx, e.pool, "", never), "22023", "empty name")
			wantCode(t, locks.Shared(ctx, e.pool, strings.Repeat("x", 1025), never), "22023", "long name")
			wantCode(t, locks.Exclusive(ctx, e.pool, "a\x00b", never), "22021", "a NUL")
			a := e.session(t)
			a.exec("begin")
			a.exec("select lock.exclusive('held')")
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if err := locks.Exclusive(short, e.pool, "held", never); short.Err() == nil || err == nil {
				t.Errorf("not cancelled: %v", err)
			}
			a.exec("commit")
			must(t, locks.Exclusive(ctx, e.pool, "held", func(pgx.Tx) error { return nil }))
		})
	})
}
