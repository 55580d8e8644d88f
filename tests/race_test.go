package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// An arena knows who believes to hold which key, and notices two that must not hold it together.
//
// A client enters after its lock was granted and leaves before its transaction can end, so whatever the arena sees was true,
// with one exception: an error ends the holder's transaction before the client hears of it. So what contradicts a holder that is in
// the middle of a call counts only once that call has succeeded.
type arena struct {
	mu         sync.Mutex
	exclusive  map[int]map[*fighter]bool
	shared     map[int]map[*fighter]bool
	grants     int
	violations []string
}

func (a *arena) enter(f *fighter, key int, exclusive bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.doomed {
		return
	}
	a.grants++
	meet := func(holders map[*fighter]bool, mode string) {
		for other := range holders {
			if other == f {
				continue
			}
			violation := fmt.Sprintf("key %d: granted (exclusive: %v) beside a holder (%s)", key, exclusive, mode)
			if other.calling {
				other.claims = append(other.claims, violation)
			} else {
				a.violations = append(a.violations, violation)
			}
		}
	}
	meet(a.exclusive[key], "exclusive")
	if exclusive {
		meet(a.shared[key], "shared")
	}
	held := a.shared
	if exclusive {
		held = a.exclusive
	}
	if held[key] == nil {
		held[key] = map[*fighter]bool{}
	}
	held[key][f] = true
	f.held = append(f.held, heldKey{key, exclusive})
}

// call runs a statement of a holder.
func (a *arena) call(f *fighter, run func() error) error {
	a.mu.Lock()
	f.calling = true
	a.mu.Unlock()
	err := run()
	a.mu.Lock()
	defer a.mu.Unlock()
	f.calling = false
	if err != nil { // The server has let go of everything, and so must the arena before it hears of anybody else's grant.
		a.leaveLocked(f, 0)
	} else if !f.doomed {
		a.violations = append(a.violations, f.claims...)
	}
	f.claims = nil
	return err
}

// leave takes back what f entered after the first keep entries.
func (a *arena) leave(f *fighter, keep int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaveLocked(f, keep)
}

func (a *arena) leaveLocked(f *fighter, keep int) {
	if keep > len(f.held) {
		return
	}
	for _, h := range f.held[keep:] {
		delete(a.shared[h.key], f)
		delete(a.exclusive[h.key], f)
	}
	f.held = f.held[:keep]
	for _, h := range f.held { // what was held before a savepoint too
		if h.exclusive {
			a.exclusive[h.key][f] = true
		} else {
			a.shared[h.key][f] = true
		}
	}
}

// doom takes everything from f, because its backend is about to be killed.
func (a *arena) doom(f *fighter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f.doomed = true
	a.leaveLocked(f, 0)
}

type heldKey struct {
	key       int
	exclusive bool
}

type fighter struct {
	held    []heldKey
	doomed  bool
	calling bool
	claims  []string // what contradicts this holder, if its call succeeds
	pid     atomic.Uint32
}

// hammerGrants are the fewest that say something: a busy machine takes longer for them.
const hammerGrants = 1000

// hammer lets many connections do everything at once on few keys, in the schema given, and returns what the arena saw.
func hammer(t *testing.T, e *env, schema string, lasting time.Duration, stopAtFirst bool) *arena {
	const fighters, keys = 24, 3
	_, err := e.admin.Exec(ctx, "do $$ begin execute format('alter database %I set deadlock_timeout = 5', current_database()); end $$")
	must(t, err)
	a := &arena{exclusive: map[int]map[*fighter]bool{}, shared: map[int]map[*fighter]bool{}}
	end := time.Now().Add(lasting)
	over := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		if stopAtFirst && len(a.violations) > 0 {
			return true
		}
		few := !stopAtFirst && !target.yugabyte && a.grants < hammerGrants && time.Now().Before(end.Add(perseverance))
		return time.Now().After(end) && !few
	}
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.ReadCommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

	fight := func(f *fighter, conn *pgx.Conn) error {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: levels[rand.IntN(len(levels))]})
		if err != nil {
			return err
		}
		exec := func(sql string, args ...any) error {
			return a.call(f, func() error { _, err := tx.Exec(ctx, sql, args...); return err })
		}
		for range 1 + rand.IntN(3) {
			key := 1 + rand.IntN(keys)
			if n := len(f.held); n > 0 && rand.IntN(4) > 0 { // mostly in one order, for fewer deadlocks and more grants
				key = max(key, f.held[n-1].key)
			}
			before := len(f.held)
			savepoint := rand.IntN(4) == 0
			if savepoint {
				if err := exec("savepoint s"); err != nil {
					return err
				}
			}
			exclusive := rand.IntN(2) == 0
			call := schema + ".shared"
			if exclusive {
				call = schema + ".exclusive"
			}
			granted := true
			if schema == "lock" && rand.IntN(3) == 0 {
				call = map[bool]string{false: "lock.try_shared", true: "lock.try_exclusive"}[exclusive]
				wait := []string{"0", "0", "3 milliseconds"}[rand.IntN(3)]
				err = a.call(f, func() error {
					return tx.QueryRow(ctx, "select "+call+"($1::bigint, $2::interval)", key, wait).Scan(&granted)
				})
			} else {
				err = exec("select "+call+"($1::bigint)", key)
			}
			if err != nil {
				return err
			}
			if granted {
				a.enter(f, key, exclusive)
			}
			if granted && exclusive && rand.IntN(3) == 0 {
				if err := exec("select "+schema+".unlock($1::bigint)", key); err != nil {
					return err
				}
			}
			if savepoint && rand.IntN(2) == 0 {
				a.leave(f, before)
				if err := exec("rollback to savepoint s"); err != nil {
					return err
				}
			}
		}
		a.leave(f, 0)
		if rand.IntN(4) == 0 {
			return tx.Rollback(ctx)
		}
		return tx.Commit(ctx)
	}

	var wg sync.WaitGroup
	var active sync.Map
	for range fighters {
		wg.Go(func() {
			for !over() {
				conn, err := pgx.Connect(ctx, e.url)
				if err != nil {
					t.Errorf("connect: %v", err)
					return
				}
				f := &fighter{}
				f.pid.Store(conn.PgConn().PID())
				active.Store(f, true)
				for !over() && !conn.IsClosed() {
					err := fight(f, conn)
					a.leave(f, 0)
					var pg *pgconn.PgError
					switch {
					case err == nil:
					case errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01"):
						conn.Exec(ctx, "rollback")
					case f.doomedNow(a):
						conn.Close(ctx)
					default:
						t.Errorf("unexpected: %v", err)
						conn.Close(ctx)
					}
				}
				active.Delete(f)
				conn.Close(ctx)
			}
		})
	}
	wg.Go(func() { // vacuums
		conn, err := pgx.Connect(ctx, e.url)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(ctx)
		for !over() {
			if _, err := conn.Exec(ctx, "select "+schema+".vacuum()"); err != nil && code(err) != "40001" && code(err) != "40P01" {
				t.Errorf("vacuum: %v", err)
			}
		}
	})
	wg.Go(func() { // kills
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for !over() {
			<-ticker.C
			active.Range(func(key, _ any) bool {
				f := key.(*fighter)
				if rand.IntN(8) == 0 {
					a.doom(f)
					if _, err := e.admin.Exec(ctx, "select pg_terminate_backend($1)", f.pid.Load()); err != nil {
						t.Errorf("kill: %v", err)
					}
					return false
				}
				return true
			})
		}
	})
	wg.Wait()
	return a
}

func (f *fighter) doomedNow(a *arena) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return f.doomed
}

// TestHammer runs for LOCKS_HAMMER (default 5s) per engine.
func TestHammer(t *testing.T) {
	t.Parallel()
	lasting := 5 * time.Second
	if text := os.Getenv("LOCKS_HAMMER"); text != "" {
		var err error
		lasting, err = time.ParseDuration(text)
		must(t, err)
	}
	t.Run("sees the usual recipe grant twice", func(t *testing.T) {
		t.Parallel()
		e := open(t, row)
		recipe, err := os.ReadFile("testdata/recipe.sql")
		must(t, err)
		e.sessionAs(t, e.super).exec(string(recipe))
		a := hammer(t, e, "recipe", time.Minute, true)
		if len(a.violations) == 0 {
			t.Fatalf("no violation in %d grants: the checker sees nothing", a.grants)
		}
		t.Logf("after %d grants: %s", a.grants, a.violations[0])
	})
	eachEngine(t, func(t *testing.T, e *env) {
		a := hammer(t, e, "lock", lasting, false)
		for i, violation := range a.violations {
			if i == 10 {
				t.Errorf("and %d more", len(a.violations)-i)
				break
			}
			t.Error(violation)
		}
		if a.grants < hammerGrants && !target.yugabyte || a.grants < 50 {
			t.Errorf("only %d grants", a.grants)
		}
		t.Logf("%d grants in %v, %d violations", a.grants, lasting, len(a.violations))
	})
}
