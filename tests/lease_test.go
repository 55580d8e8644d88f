package tests

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

const leaseTake = "select coalesce((select token from lock.acquire_lease($1, $2, '1 hour', $3)), 0)"

// lease acquires a lease of an hour, and returns its token, or 0.
func (s *session) lease(name string, permits int) int64 {
	s.t.Helper()
	return get[int64](s, leaseTake, name, fmt.Sprint("pid ", s.pid), permits)
}

// leaseExpire moves the end of every lease on a name into the past.
func leaseExpire(t *testing.T, e *env, name string) {
	t.Helper()
	_, err := e.admin.Exec(ctx, "update lock.lease set expires_at = clock_timestamp() - interval '1 second' where name = $1", name)
	must(t, err)
}

func TestLease(t *testing.T) {
	t.Parallel()
	t.Run("is granted once, and its token grows", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		lease, err := db.New(s.conn).AcquireLease(ctx, db.AcquireLeaseParams{Name: "a", Owner: "me", TTL: time.Hour, Permits: 1})
		must(t, err)
		if lease.Name != "a" || lease.Token != 1 || lease.Owner != "me" || lease.ExpiresAt.Sub(lease.AcquiredAt) != time.Hour || lease.RenewedAt != lease.AcquiredAt {
			t.Fatalf("got %+v", lease)
		}
		answers(s, int64(0), leaseTake, "a", "you", 1)
		answers(s, int64(1), leaseTake, "b", "you", 1)
		answers(s, true, "select lock.release_lease('a', 1)")
		answers(s, false, "select lock.release_lease('a', 1)")
		answers(s, int64(2), leaseTake, "a", "you", 1)
		leaseExpire(t, e, "a")
		answers(s, false, "select lock.release_lease('a', 2)")
		answers(s, int64(3), leaseTake, "a", "you", 1)
		answers(e.sessionAs(t, e.owner), true, "select lock.force_release_lease('a', 3, 'it hangs')")
		answers(s, int64(4), leaseTake, "a", "you", 1)
		s.exec("begin")
		answers(s, int64(5), leaseTake, "a", "you", 2)
		s.exec("rollback")
		answers(s, "{4}", "select array_agg(token)::text from lock.lease_holder where name = 'a'")
	})

	t.Run("is renewed by its holder alone, and never after its end", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		token := s.lease("a", 1)
		answers(s, false, "select lock.renew_lease('a', $1, '1 day')", token+1)
		answers(s, false, "select lock.renew_lease('b', $1, '1 day')", token)
		answers(s, true, "select lock.renew_lease('a', $1, '1 day')", token)
		answers(s, true, "select expires_at - renewed_at = '24 hours' and renewed_at > acquired_at and expires_in <= '1 day' from lock.lease_holder")
		answers(s, true, "select lock.renew_lease('a', $1, '1 minute')", token)
		answers(s, true, "select expires_in between '0' and '1 minute' from lock.lease_holder")
		leaseExpire(t, e, "a")
		answers(s, false, "select lock.renew_lease('a', $1, '1 day')", token)
		s.fails("LK001", "select lock.assert_lease('a', $1)", token)
		answers(s, int64(0), "select count(*) from lock.lease_holder")
	})

	t.Run("takes a ttl of a millisecond and of a year", func(t *testing.T) {
		t.Parallel()
		s := open(t, advisory).session(t)
		s.exec("set timezone = 'America/New_York'")
		for _, days := range []int{1, 91, 182, 273, 365, 36525} {
			answers(s, days*24*3600, "select extract(epoch from expires_at - acquired_at)::bigint from lock.acquire_lease($1, 'me', make_interval(days => $2))", fmt.Sprint(days), days)
			answers(s, true, "select lock.renew_lease($1, 1, make_interval(days => $2))", fmt.Sprint(days), days)
			answers(s, days*24*3600, "select extract(epoch from expires_at - renewed_at)::bigint from lock.lease_holder where name = $1", fmt.Sprint(days))
		}
		token := get[int64](s, "select token from lock.acquire_lease('short', 'me', '1 millisecond')")
		eventually(t, "a millisecond passes", func() bool { return s.lease("short", 1) > token })
	})

	t.Run("denied, writes nothing", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		holder, s := e.session(t), e.session(t)
		token := holder.lease("a", 1)
		s.exec("begin")
		answers(s, int64(0), leaseTake, "a", "me", 1)
		answers(s, false, "select lock.renew_lease('a', $1, '1 day')", token+1)
		answers(s, false, "select lock.release_lease('a', $1)", token+1)
		answers(s, true, "select pg_current_xact_id_if_assigned() is null")
		s.exec("commit")
		answers(s, int64(0), "select token from lock.await_lease('a', 'me', '1 hour')")
		s.exec("begin")
		answers(s, int64(0), "select token from lock.await_lease('a', 'me', '1 hour')")
		answers(s, true, "select pg_current_xact_id_if_assigned() is null")
		s.exec("commit")
	})

	t.Run("is shown, and released by an operator for the record", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, operator := e.session(t), e.sessionAs(t, e.owner)
		token := s.lease("a", 1)
		s.fails("42501", "select lock.force_release_lease('a', $1, 'why')", token)
		s.fails("42501", "select lock.drop_unused_leases('1 day')")
		answers(operator, false, "select lock.force_release_lease('a', $1, 'why')", token+1)
		answers(operator, true, "select lock.force_release_lease('a', $1, 'it hangs')", token)
		answers(operator, false, "select lock.force_release_lease('a', $1, 'again')", token)
		answers(operator, fmt.Sprintf("a/%d/pid %d/locks_owner/it hangs/t", token, s.pid),
			`select concat_ws('/', id, previous ->> 'token', previous ->> 'owner', released_by, reason, released_at between clock_timestamp() - interval '1 minute' and clock_timestamp())
			from lock.forced_release where kind = 'lease'`)
		answers(s, false, "select lock.renew_lease('a', $1, '1 day')", token)
		lost := s.fails("LK001", "select lock.assert_lease('a', $1)", token)
		if !strings.Contains(lost.Detail, "locks_owner released it by force") || !strings.Contains(lost.Detail, "it hangs") {
			t.Fatalf("the error does not say who released it: %q", lost.Detail)
		}
		answers(s, token+1, leaseTake, "a", "next", 1)
	})

	t.Run("refuses bad input and changes nothing", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, operator := e.session(t), e.sessionAs(t, e.owner)
		s.lease("a", 1)
		before := leaseState(t, e)
		acquire := []struct{ code, arguments string }{
			{"22004", "null, 'me', '1 s'"}, {"22023", "'', 'me', '1 s'"}, {"22023", "repeat('x', 1 << 20), 'me', '1 s'"}, {"22023", "repeat('ä', 513), 'me', '1 s'"},
			{"22004", "'a', null, '1 s'"}, {"22023", "'a', '', '1 s'"}, {"22023", "'a', repeat('x', 1025), '1 s'"},
			{"22004", "'a', 'me', null"}, {"22023", "'a', 'me', '0'"}, {"22023", "'a', 'me', '-1 s'"}, {"22023", "'a', 'me', '1 month'"}, {"22023", "'a', 'me', '1 year'"},
			{"22023", "'a', 'me', '1 year -364 days'"}, {"22023", "'a', 'me', '-1 month 90 days'"}, {"22023", "'a', 'me', '36526 days'"}, {"22023", "'a', 'me', '100000000 days'"},
			{"22004", "'a', 'me', '1 s', null"}, {"22023", "'a', 'me', '1 s', 0"}, {"22023", "'a', 'me', '1 s', -1"},
		}
		if target.number >= 170000 {
			acquire = append(acquire, struct{ code, arguments string }{"22023", "'a', 'me', 'infinity'"})
		}
		for _, bad := range acquire {
			for _, function := range []string{"acquire_lease", "await_lease"} {
				if s.fails(bad.code, fmt.Sprintf("select * from lock.%s(%s)", function, bad.arguments)).Hint == "" {
					t.Errorf("%s(%s) has no hint", function, bad.arguments)
				}
			}
		}
		for _, bad := range []struct{ code, call string }{
			{"22004", "renew_lease(null, 1, '1 s')"}, {"22023", "renew_lease('', 1, '1 s')"}, {"22004", "renew_lease('a', null, '1 s')"},
			{"22004", "renew_lease('a', 1, null)"}, {"22023", "renew_lease('a', 1, '0')"}, {"22023", "renew_lease('a', 1, '1 month')"},
			{"22004", "release_lease(null, 1)"}, {"22023", "release_lease('', 1)"}, {"22004", "release_lease('a', null)"}, {"22023", "release_lease(repeat('x', 1 << 20), 1)"},
			{"22004", "assert_lease(null, 1)"}, {"22023", "assert_lease('', 1)"}, {"22004", "assert_lease('a', null)"}, {"LK001", "assert_lease('a', 2)"}, {"LK001", "assert_lease('b', 1)"},
		} {
			if s.fails(bad.code, "select lock."+bad.call).Hint == "" {
				t.Errorf("%s has no hint", bad.call)
			}
		}
		for _, bad := range []struct{ code, call string }{
			{"22004", "force_release_lease(null, 1, 'why')"}, {"22004", "force_release_lease('a', null, 'why')"}, {"22004", "force_release_lease('a', 1, null)"},
			{"22023", "force_release_lease('a', 1, '')"}, {"22023", "force_release_lease('a', 1, repeat('x', 1025))"},
			{"22004", "drop_unused_leases(null)"}, {"22023", "drop_unused_leases('0')"}, {"22004", "drop_unused_leases('1 s', null)"}, {"22023", "drop_unused_leases('1 s', 0)"},
		} {
			if operator.fails(bad.code, "select lock."+bad.call).Hint == "" {
				t.Errorf("%s has no hint", bad.call)
			}
		}
		if after := leaseState(t, e); after != before {
			t.Fatalf("before: %s\nafter: %s", before, after)
		}
		s.exec("set default_transaction_read_only = on")
		s.fails("25006", "select * from lock.acquire_lease('b', 'me', '1 s')")
		s.fails("25006", "select lock.assert_lease('a', 1)")
		s.fails("25006", "select lock.renew_lease('a', 1, '1 s')")
		s.fails("25006", "select lock.release_lease('a', 1)")
	})
}

// leaseState is everything that is stored about leases.
func leaseState(t *testing.T, e *env) (state string) {
	t.Helper()
	must(t, e.admin.QueryRow(ctx, `select concat_ws(' ',
		(select jsonb_agg(l order by name, token) from lock.lease l), (select jsonb_agg(n order by name) from lock.lease_name n),
		(select jsonb_agg(f) from lock.lease_floor f), (select jsonb_agg(r) from lock.forced_release r))`).Scan(&state))
	return state
}

func TestLeasePermits(t *testing.T) {
	t.Parallel()
	t.Run("are counted from live leases, whatever their number was before", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		for token := range int64(3) {
			answers(s, token+1, leaseTake, "a", "me", 3)
		}
		answers(s, int64(0), leaseTake, "a", "me", 3)
		answers(s, int64(0), leaseTake, "a", "me", 2)
		answers(s, int64(4), leaseTake, "a", "me", 4)
		answers(s, true, "select lock.release_lease('a', 1)")
		answers(s, int64(0), leaseTake, "a", "me", 3)
		answers(s, true, "select lock.release_lease('a', 3)")
		answers(s, int64(5), leaseTake, "a", "me", 3)
		leaseExpire(t, e, "a")
		answers(s, int64(6), leaseTake, "a", "me", 1)
		answers(s, int64(0), leaseTake, "a", "me", 1)
		answers(s, int64(7), leaseTake, "a", "me", 2)
	})

	// Two acquirers of the last permit, the first one's transaction still open when the second asks.
	for _, level := range levels {
		for _, name := range []string{"a new name", "a known name", "an expired lease"} {
			t.Run(fmt.Sprintf("the last one goes to one of two, %s, %s", name, level), func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				a, b, c := e.session(t), e.session(t), e.session(t)
				permits := 1
				switch name {
				case "a known name":
					c.lease("a", 1)
					permits = 2
				case "an expired lease":
					c.lease("a", 1)
					leaseExpire(t, e, "a")
				}
				for _, end := range []string{"rollback", "commit"} {
					a.exec("begin isolation level " + level)
					a.lease("a", permits)
					b.exec("begin isolation level " + level)
					p := b.start("create temp table got as " + strings.NewReplacer("$1", "'a'", "$2", "'b'", "$3", fmt.Sprint(permits)).Replace(leaseTake) + " as token").blocked()
					a.exec(end)
					err := p.wait()
					switch {
					case end == "rollback":
						must(t, err)
						if get[int64](b, "select token from got") == 0 {
							t.Fatal("denied, although the other had rolled back")
						}
						b.exec("rollback")
					case level == "read committed":
						must(t, err)
						answers(b, int64(0), "select token from got")
						// Who was denied stands in nobody's way, as long as its transaction may go on.
						if c.lease("a", permits+1) == 0 {
							t.Fatal("denied")
						}
						b.exec("rollback")
					default:
						wantCode(t, err, "40001", "the second acquirer")
						b.exec("rollback")
					}
				}
			})
		}
	}

	for _, level := range levels[1:] {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprintf("is not granted on a snapshot that misses a grant, %s, known %v", level, known), func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				a, b := e.session(t), e.session(t)
				if known {
					token := a.lease("a", 1)
					answers(a, true, "select lock.release_lease('a', $1)", token)
				}
				b.exec("begin isolation level " + level)
				b.exec("select count(*) from pg_class")
				if a.lease("a", 1) == 0 {
					t.Fatal("denied")
				}
				b.fails("40001", leaseTake, "a", "b", 1)
			})
		}
	}

	t.Run("free themselves by expiry, once each", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		for round := range 20 {
			for range 3 {
				s.lease("a", 3)
			}
			leaseExpire(t, e, "a")
			if granted := leaseRush(t, e, 8, 3); granted != 3 {
				t.Fatalf("round %d: %d of 8 got one of 3 permits", round, granted)
			}
			leaseExpire(t, e, "a")
			leaseExpire(t, e, "a")
		}
	})

	t.Run("are never held by more", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		if most := leaseCrowd(t, e, 400); most != 0 {
			t.Fatalf("%d leases too many at once", most)
		}
	})

	t.Run("the checker catches acquirers that do not count", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "acquire_lease", "offset acquire_lease.permits - 1\n              )", "offset 1000000\n              )")
		if most := leaseCrowd(t, e, math.MaxInt64); most == 0 {
			t.Fatal("the broken function was not caught")
		}
	})

	// A gate holds the acquirer between its snapshot and its lock on the row, while another is granted and commits.
	const guard = "and free.token = (select before.token from lock.lease_name as before where before.name = acquire_lease.name)\n"
	const gate = "and case when acquire_lease.owner = 'late' then pg_advisory_xact_lock(4711) is not null else true end\n"
	for _, guarded := range []bool{true, false} {
		t.Run(fmt.Sprintf("are counted no earlier than the gate is locked, guarded %v", guarded), func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			pieces := []string{guard, guard + gate}
			if !guarded {
				pieces[1] = gate
			}
			mutate(t, e, "acquire_lease", pieces...)
			s, late := e.session(t), e.session(t)
			answers(s, true, "select lock.release_lease('a', $1)", s.lease("a", 1))
			s.exec("begin")
			s.exec("select pg_advisory_xact_lock(4711)")
			p := late.start("create temporary table got as select coalesce((select token from lock.acquire_lease('a', 'late', '1 hour')), 0) as token").blocked()
			token := s.lease("a", 1)
			if token == 0 {
				t.Fatal("denied")
			}
			s.exec("commit")
			p.ends()
			if granted := get[int64](late, "select token from got") != 0; granted == guarded {
				t.Fatalf("the late one was granted: %v", granted)
			}
		})
	}

	t.Run("the check catches an acquirer that counts before the gate", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "acquire_lease", "where acquire_lease.permits > (select count(*) from lock.lease where lease.name = acquire_lease.name)", "where acquire_lease.permits > 0")
		s := e.session(t)
		other := e.session(t)
		s.lease("a", 1)
		leaseExpire(t, e, "a")
		s.exec("begin")
		s.lease("a", 1)
		p := other.start("select from lock.acquire_lease('a', 'other', '1 hour')").blocked()
		s.exec("commit")
		p.ends()
		answers(s, int64(2), "select count(*) from lock.lease_holder")
	})
}

// leaseRush lets some sessions acquire at once, and returns how many succeeded.
func leaseRush(t *testing.T, e *env, sessions, permits int) (granted int64) {
	t.Helper()
	var group sync.WaitGroup
	var count atomic.Int64
	start := make(chan struct{})
	for range sessions {
		group.Go(func() {
			<-start
			_, err := db.New(e.pool).AcquireLease(ctx, db.AcquireLeaseParams{Name: "a", Owner: "me", TTL: time.Hour, Permits: int32(permits)})
			if err == nil {
				count.Add(1)
			} else if err != pgx.ErrNoRows {
				t.Error(err)
			}
		})
	}
	close(start)
	group.Wait()
	return count.Load()
}

// leaseCrowd lets 12 clients acquire and release until there were so many grants, at random isolation levels, and returns by how
// many holders the number of permits was exceeded at most, or at once when it was.
func leaseCrowd(t *testing.T, e *env, grants int64) int64 {
	t.Helper()
	const permits = 2
	var holders, most atomic.Int64
	var tokens sync.Map
	var granted atomic.Int64
	end := time.Now().Add(perseverance)
	var group sync.WaitGroup
	for range 12 {
		group.Go(func() {
			for granted.Load() < grants && time.Now().Before(end) && most.Load() == 0 && !t.Failed() {
				var lease db.Lease
				level := pgx.TxIsoLevel(levels[rand.N(len(levels))])
				err := pgx.BeginTxFunc(ctx, e.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) (err error) {
					lease, err = db.New(tx).AcquireLease(ctx, db.AcquireLeaseParams{Name: "a", Owner: "me", TTL: time.Hour, Permits: permits})
					return err
				})
				if err == pgx.ErrNoRows || locks.IsRetryable(err) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if over := holders.Add(1) - permits; over > 0 {
					most.Store(over)
				}
				granted.Add(1)
				if _, used := tokens.LoadOrStore(lease.Token, true); used {
					t.Errorf("token %d was granted twice", lease.Token)
				}
				if renewed, err := db.New(e.pool).RenewLease(ctx, db.RenewLeaseParams{Name: "a", Token: lease.Token, TTL: time.Hour}); err != nil || !renewed {
					t.Errorf("renewal of %d: %v, %v", lease.Token, renewed, err)
				}
				holders.Add(-1)
				released, err := db.New(e.pool).ReleaseLease(ctx, "a", lease.Token)
				if err != nil || !released {
					t.Errorf("release of %d: %v, %v", lease.Token, released, err)
				}
			}
		})
	}
	group.Wait()
	if granted.Load() < grants && most.Load() == 0 {
		t.Errorf("only %d grants within %v", granted.Load(), perseverance)
	}
	return most.Load()
}

func TestLeaseFence(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run("asserted first, holds against everybody, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			if leaseStale(t, e, level) {
				t.Fatal("a guarded write was committed after the successor's")
			}
		})

		t.Run("the checker catches an assertion that takes no lock, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, "assert_lease", "    for key share;", "    ;")
			if !leaseStale(t, e, level) {
				t.Fatal("the stale write was not caught")
			}
		})

		t.Run("the checker catches a takeover that does not need the row, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, "acquire_lease", "where acquire_lease.permits > (", "where acquire_lease.permits > (select 0) * (")
			if !leaseStale(t, e, level) {
				t.Fatal("the stale write was not caught")
			}
		})

		for _, ending := range []string{"release_lease('a', 1)", "force_release_lease('a', 1, 'why')"} {
			function, _, _ := strings.Cut(ending, "(")
			t.Run("asserted first, is waited for by "+function+", "+level, func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				a, b := e.session(t), e.sessionAs(t, e.owner)
				a.lease("a", 1)
				a.exec("begin isolation level " + level)
				a.exec("select lock.assert_lease('a', 1)")
				p := b.start("select lock." + ending).blocked()
				a.exec("commit")
				p.ends()
				a.fails("LK001", "select lock.assert_lease('a', 1)")
			})

			t.Run("asserted behind "+function+", waits and fails, "+level, func(t *testing.T) {
				t.Parallel()
				e := open(t, advisory)
				a, b := e.session(t), e.sessionAs(t, e.owner)
				a.lease("a", 1)
				for _, end := range []string{"rollback", "commit"} {
					b.exec("begin isolation level " + level)
					answers(b, true, "select lock."+ending)
					a.exec("begin isolation level " + level)
					p := a.start("select lock.assert_lease('a', 1)").blocked()
					b.exec(end)
					err := p.wait()
					switch {
					case end == "rollback":
						must(t, err)
					case level == "read committed":
						wantCode(t, err, "LK001", "assert_lease")
					default:
						wantCode(t, err, "40001", "assert_lease")
					}
					a.exec("rollback")
				}
				a.fails("LK001", "select lock.assert_lease('a', 1)")
			})
		}

		t.Run("asserted behind a takeover, waits and fails, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b := e.session(t), e.session(t)
			a.lease("a", 1)
			leaseExpire(t, e, "a")
			for _, end := range []string{"rollback", "commit"} {
				b.exec("begin isolation level " + level)
				answers(b, int64(2), leaseTake, "a", "b", 1)
				a.exec("begin isolation level " + level)
				p := a.start("select lock.assert_lease('a', 1)").blocked()
				b.exec(end)
				want := "LK001"
				if end == "commit" && level != "read committed" {
					want = "40001"
				}
				wantCode(t, p.wait(), want, "assert_lease")
				a.exec("rollback")
			}
		})

		t.Run("lets renewals pass, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b, c := e.session(t), e.session(t), e.session(t)
			a.lease("a", 1)
			a.exec("begin isolation level " + level)
			a.exec("select lock.assert_lease('a', 1)")
			answers(b, true, "select lock.renew_lease('a', 1, '1 day')")
			// The lock goes with the row's new version, too.
			leaseExpire(t, e, "a")
			answers(c, int64(0), leaseTake, "a", "c", 1)
			answers(c, int64(2), leaseTake, "a", "c", 2)
			a.exec("commit")
		})

		t.Run("does not wait for a renewal, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b, c := e.session(t), e.session(t), e.session(t)
			a.lease("a", 1)
			b.exec("begin isolation level " + level)
			answers(b, true, "select lock.renew_lease('a', 1, '1 day')")
			a.exec("begin isolation level " + level)
			a.exec("select lock.assert_lease('a', 1)")
			b.exec("commit")
			leaseExpire(t, e, "a")
			answers(c, int64(0), leaseTake, "a", "c", 1)
			a.exec("commit")
			answers(c, int64(2), leaseTake, "a", "c", 1)
		})
	}

	for _, level := range levels[1:] {
		t.Run("on an old snapshot, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b := e.session(t), e.session(t)
			a.lease("a", 1)
			look := func() {
				t.Helper()
				a.exec("begin isolation level " + level)
				a.exec("select count(*) from pg_class")
			}
			look()
			answers(b, true, "select lock.renew_lease('a', 1, '1 day')")
			_, err := a.conn.Exec(ctx, "select lock.assert_lease('a', 1)")
			if err != nil {
				wantCode(t, err, "40001", "an assertion behind a renewal")
			}
			a.exec("rollback")

			// It looks expired, and was renewed.
			leaseExpire(t, e, "a")
			look()
			admin(t, e, "update lock.lease set renewed_at = clock_timestamp(), expires_at = clock_timestamp() + interval '1 day'")
			a.fails("40001", "select lock.assert_lease('a', 1)")
			a.exec("rollback")

			look()
			answers(b, int64(2), leaseTake, "a", "b", 2)
			answers(b, int64(1), leaseTake, "b", "b", 1)
			a.fails("40001", "select lock.assert_lease('a', 2)")
			a.exec("rollback")
			look()
			answers(b, int64(2), leaseTake, "b", "b", 2)
			answers(b, int64(1), leaseTake, "c", "b", 1)
			a.fails("40001", "select lock.assert_lease('c', 1)")
			a.exec("rollback")

			look()
			answers(b, true, "select lock.release_lease('a', 1)")
			a.fails("40001", "select lock.assert_lease('a', 1)")
			a.exec("rollback")
			look()
			a.fails("LK001", "select lock.assert_lease('a', 1)")
			a.exec("rollback")
		})
	}
}

// leaseStale lets a holder assert its lease, the lease run out, a successor write and commit if it is granted the lease, and only
// then the holder write and commit. It says whether the holder's commit came after a grant and succeeded.
func leaseStale(t *testing.T, e *env, level string) bool {
	t.Helper()
	_, err := e.admin.Exec(ctx, "create table history (n integer generated always as identity, token bigint); grant select, insert on history to locks_app")
	must(t, err)
	a, b := e.session(t), e.session(t)
	for _, s := range []*session{a, b} {
		s.exec("set default_transaction_isolation = '" + level + "'")
	}
	old := a.lease("a", 1)
	a.exec("begin")
	a.exec("select lock.assert_lease('a', $1)", old)
	leaseExpire(t, e, "a")
	next := b.lease("a", 1)
	if next != 0 {
		b.exec("insert into history (token) values ($1)", next)
	}
	a.exec("insert into history (token) values ($1)", old)
	_, err = a.conn.Exec(ctx, "commit")
	if next == 0 {
		must(t, err)
		if next = b.lease("a", 1); next <= old {
			t.Fatalf("the successor got token %d after %d", next, old)
		}
		b.exec("insert into history (token) values ($1)", next)
		answers(b, fmt.Sprintf("{%d,%d}", old, next), "select array_agg(token order by n)::text from history")
		return false
	}
	return err == nil
}

// leaseNotified says whether a name has been notified since it was last asked: a notification sent later comes later.
func leaseNotified(t *testing.T, e *env, listener *session, name string) (notified bool) {
	t.Helper()
	_, err := e.admin.Exec(ctx, "select pg_notify('lock_lease', 'nothing more')")
	must(t, err)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		note, err := listener.conn.WaitForNotification(limited)
		must(t, err)
		if note.Payload == "nothing more" {
			return notified
		}
		notified = notified || note.Payload == name
	}
}

func TestLeaseWait(t *testing.T) {
	t.Parallel()
	const await = "select token from lock.await_lease('a', 'waiter', '1 hour')"

	t.Run("is granted, or says how long to sleep", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		answers(s, int64(1), "select token from lock.await_lease('a', 'me', '1 hour', 3)")
		answers(s, int64(2), "select token from lock.await_lease('a', 'me', '2 hours', 3)")
		answers(s, int64(3), "select token from lock.await_lease('a', 'me', '3 hours', 3)")
		for permits := 1; permits <= 3; permits++ {
			// With three leases the first end frees one of three permits, the last end the only one.
			answers(s, fmt.Sprint(0, 4-permits), "select token || ' ' || ceil(extract(epoch from expires_in) / 3600) from lock.await_lease('a', 'me', '1 hour', $1)", permits)
		}
		leaseExpire(t, e, "a")
		answers(s, int64(4), "select token from lock.await_lease('a', 'me', '1 hour')")
	})

	t.Run("behind an open assertion, comes back in 5 seconds at most", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b := e.session(t), e.session(t)
		a.lease("a", 1)
		a.exec("begin")
		a.exec("select lock.assert_lease('a', 1)")
		leaseExpire(t, e, "a")
		answers(b, "0 00:00:05", "select token || ' ' || expires_in from lock.await_lease('a', 'b', '7 s')")
		a.exec("commit")
		answers(b, int64(2), await)
	})

	for _, level := range levels {
		t.Run("makes releases notify, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b, listener := e.session(t), e.session(t), e.session(t)
			listener.exec("listen lock_lease")
			for _, s := range []*session{a, b} {
				s.exec("set default_transaction_isolation = '" + level + "'")
			}
			a.lease("a", 1)
			a.exec("select lock.release_lease('a', 1)")
			if leaseNotified(t, e, listener, "a") {
				t.Fatal("nobody waits, and the release notified")
			}
			a.lease("a", 1)
			answers(b, int64(0), leaseTake, "a", "b", 1)
			a.exec("select lock.release_lease('a', 2)")
			if leaseNotified(t, e, listener, "a") {
				t.Fatal("a denied caller does not wait, and the release notified")
			}
			for token := int64(3); token < 7; token += 2 {
				a.lease("a", 1)
				answers(b, int64(0), await)
				answers(b, int64(0), await)
				if token == 3 {
					answers(a, true, "select lock.release_lease('a', $1)", token)
				} else {
					answers(e.sessionAs(t, e.owner), true, "select lock.force_release_lease('a', $1, 'why')", token)
				}
				if !leaseNotified(t, e, listener, "a") {
					t.Fatal("somebody waits, and the release did not notify")
				}
				answers(a, token+1, leaseTake, "a", "a", 1)
				answers(a, true, "select lock.release_lease('a', $1)", token+1)
				if leaseNotified(t, e, listener, "a") {
					t.Fatal("the mark survived its notification")
				}
			}
		})

		t.Run("behind an open release, waits for it, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b := e.session(t), e.session(t)
			a.lease("a", 1)
			for _, end := range []string{"rollback", "commit"} {
				a.exec("begin isolation level " + level)
				answers(a, true, "select lock.release_lease('a', 1)")
				p := b.start("create temp table got as " + await).blocked()
				a.exec(end)
				p.ends()
				if granted := get[int64](b, "select token from got") != 0; granted != (end == "commit") {
					t.Fatalf("after a %s: granted %v", end, granted)
				}
				b.exec("drop table got")
				if end == "rollback" {
					// The mark is there now, and makes the next one not wait.
					_, err := e.admin.Exec(ctx, "update lock.lease set awaited = false")
					must(t, err)
				}
			}
		})

		t.Run("before a release, is seen by it, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			if leaseMissed(t, e, level) {
				t.Fatal("the release did not notify the waiter")
			}
		})
	}

	t.Run("the checker catches a release that reads the mark on its snapshot", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "release_lease", "lease.awaited into", "(select before.awaited from lock.lease as before where before.name = release_lease.name and before.token = release_lease.token) into")
		if !leaseMissed(t, e, "read committed") {
			t.Fatal("the missed waiter was not caught")
		}
	})

	t.Run("asks again soon, rather than wait for one of several while it holds another", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b, listener := e.session(t), e.session(t), e.session(t)
		listener.exec("listen lock_lease")
		for range 3 {
			a.lease("a", 3)
		}
		a.exec("begin")
		answers(a, true, "select lock.release_lease('a', 3)")
		b.exec("begin")
		answers(b, "0 00:00:00.1", "select token || ' ' || expires_in from lock.await_lease('a', 'waiter', '1 hour', 3)")
		p := a.start("select lock.release_lease('a', 1)").blocked()
		b.exec("commit")
		p.ends()
		a.exec("rollback")
		answers(b, true, "select token = 0 and expires_in > '50 minutes' from lock.await_lease('a', 'waiter', '1 hour', 3)")
		answers(a, true, "select lock.release_lease('a', 3)")
		if !leaseNotified(t, e, listener, "a") {
			t.Fatal("the release did not notify the waiter")
		}
	})

	t.Run("with several permits, an open renewal of one does not hide the release of another", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b, c := e.session(t), e.session(t), e.session(t)
		a.lease("a", 2)
		a.lease("a", 2)
		a.exec("begin")
		answers(a, true, "select lock.renew_lease('a', 1, '1 hour')")
		for range 2 {
			answers(b, "0 00:00:00.1", "select token || ' ' || expires_in from lock.await_lease('a', 'waiter', '1 hour', 2)")
		}
		answers(c, true, "select lock.release_lease('a', 2)")
		answers(b, int64(3), "select token from lock.await_lease('a', 'waiter', '1 hour', 2)")
		a.exec("commit")
	})

	t.Run("for the only permit, it waits for one lease while it holds no other", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b := e.session(t), e.session(t)
		a.lease("a", 2)
		a.lease("a", 2)
		b.exec("set lock_timeout = '10 s'")
		a.exec("begin")
		answers(a, true, "select lock.renew_lease('a', 1, '1 hour') and lock.renew_lease('a', 2, '1 hour')")
		answers(b, "0 00:00:00.1", "select token || ' ' || expires_in from lock.await_lease('a', 'waiter', '1 hour')")
		a.exec("rollback; begin")
		answers(a, true, "select lock.release_lease('a', 2)")
		answers(b, "0 00:00:00.1", "select token || ' ' || expires_in from lock.await_lease('a', 'waiter', '1 hour')")
		p := b.start("create temp table got as " + await).blocked()
		answers(a, true, "select lock.release_lease('a', 1)")
		a.exec("commit")
		p.ends()
		answers(b, int64(3), "select token from got")
	})

	t.Run("the lease that takes an expired one's place is awaited, too", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		a, b, listener := e.session(t), e.session(t), e.session(t)
		listener.exec("listen lock_lease")
		a.lease("a", 1)
		answers(b, int64(0), await)
		leaseExpire(t, e, "a")
		answers(a, int64(2), leaseTake, "a", "a", 1)
		answers(a, true, "select lock.release_lease('a', 2)")
		if !leaseNotified(t, e, listener, "a") {
			t.Fatal("the release did not notify the waiter")
		}
	})

	// Denied by a live lease that is released before the waiter looks, which then sees an expired one only.
	for _, guarded := range []bool{true, false} {
		t.Run(fmt.Sprintf("an expired lease that nobody asserted is taken over, guarded %v", guarded), func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			a, b, c := e.session(t), e.session(t), e.sessionAs(t, e.super)
			a.lease("a", 1)
			leaseExpire(t, e, "a")
			c.exec("insert into lock.lease (name, token, owner, acquired_at, renewed_at, expires_at) values ('a', 2, 'me', now(), now(), now() + interval '1 hour')")
			look := "        select\n            lease.name, 0,"
			pause := "        perform pg_advisory_xact_lock_shared(99);\n"
			if !guarded {
				pause += "        again := true;\n"
			}
			mutate(t, e, "await_lease", look, pause+look)
			c.exec("begin; select pg_advisory_xact_lock(99)")
			p := b.start("create temp table got as " + await).blocked()
			answers(a, true, "select lock.release_lease('a', 2)")
			c.exec("commit")
			p.ends()
			answers(b, guarded, "select token <> 0 from got")
		})
	}

	t.Run("a waiter that does not check what it has marked would oversleep an open release", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "await_lease", "get diagnostics marked = row_count;", "marked := cardinality(silent);")
		a, b, listener := e.session(t), e.session(t), e.session(t)
		listener.exec("listen lock_lease")
		a.lease("a", 1)
		a.exec("begin")
		answers(a, true, "select lock.release_lease('a', 1)")
		answers(b, true, "select token = 0 and expires_in > '50 minutes' from lock.await_lease('a', 'waiter', '1 hour')")
		a.exec("commit")
		if leaseNotified(t, e, listener, "a") {
			t.Fatal("the release notified: the guard guards nothing")
		}
	})

	t.Run("in a crowd, nobody oversleeps", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		var group sync.WaitGroup
		var runs atomic.Int64
		limited, cancel := context.WithTimeout(ctx, perseverance)
		defer cancel()
		for range 8 {
			group.Go(func() {
				for range 20 {
					err := locks.WithLease(limited, e.pool, "a", time.Hour, func(context.Context, locks.Lease) error {
						runs.Add(1)
						return nil
					}, &locks.LeaseOptions{Wait: true, Permits: 2})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		if n := runs.Load(); n != 160 {
			t.Errorf("%d of 160 got the lease", n)
		}
	})
}

// leaseMissed lets a waiter set its mark in an open transaction, a release come meanwhile, and the waiter commit: it says
// whether the lease is free and nobody was notified.
func leaseMissed(t *testing.T, e *env, level string) bool {
	t.Helper()
	a, b, listener := e.session(t), e.session(t), e.session(t)
	listener.exec("listen lock_lease")
	a.lease("a", 1)
	a.exec("begin isolation level " + level)
	a.exec("select count(*) from lock.lease_holder") // its snapshot, unless the level is read committed
	b.exec("begin")
	answers(b, int64(0), "select token from lock.await_lease('a', 'waiter', '1 hour')")
	p := a.start("select lock.release_lease('a', 1)").blocked()
	b.exec("commit")
	if err := p.wait(); level != "read committed" {
		wantCode(t, err, "40001", "a release whose snapshot is older than the mark")
		a.exec("rollback")
		answers(a, true, "select lock.release_lease('a', 1)")
	} else {
		must(t, err)
		a.exec("commit")
	}
	return !leaseNotified(t, e, listener, "a")
}

func TestLeaseDropUnused(t *testing.T) {
	t.Parallel()
	idle := func(t *testing.T, e *env) {
		t.Helper()
		_, err := e.admin.Exec(ctx, "update lock.lease_name set granted_at = granted_at - interval '2 days'; update lock.lease set expires_at = expires_at - interval '2 days'")
		must(t, err)
	}

	t.Run("forgets idle names, and no token comes twice", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s, operator := e.session(t), e.sessionAs(t, e.owner)
		for token := range int64(5) {
			answers(s, token+1, leaseTake, "a", "me", 1)
			s.exec("select lock.release_lease('a', $1)", token+1)
		}
		answers(s, int64(1), leaseTake, "expired", "me", 1)
		answers(operator, int64(0), "select lock.drop_unused_leases('1 day')")
		idle(t, e)
		answers(s, int64(1), leaseTake, "live", "me", 1)
		answers(operator, int64(1), "select lock.drop_unused_leases('1 day', 1)")
		answers(operator, int64(1), "select lock.drop_unused_leases('1 day', 1)")
		answers(operator, int64(0), "select lock.drop_unused_leases('1 day', 1)")
		answers(e.sessionAs(t, e.super), "{live}", "select array_agg(name)::text from lock.lease_name")
		answers(s, int64(6), leaseTake, "a", "me", 1)
		answers(s, int64(6), leaseTake, "new", "me", 1)
		answers(s, int64(2), leaseTake, "live", "me", 2)
	})

	for _, level := range levels {
		t.Run("waits for who makes a name, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			s, operator := e.session(t), e.sessionAs(t, e.owner)
			s.lease("a", 1)
			s.exec("select lock.release_lease('a', 1)")
			idle(t, e)
			s.exec("begin isolation level " + level)
			s.lease("b", 1)
			p := operator.start("select lock.drop_unused_leases('1 day')").blocked()
			s.exec("commit")
			p.ends()
			answers(s, int64(2), leaseTake, "a", "me", 1)
		})

		t.Run("is waited for by who makes a name, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			s, operator := e.session(t), e.sessionAs(t, e.owner)
			s.lease("a", 1)
			s.exec("select lock.release_lease('a', 1)")
			idle(t, e)
			operator.exec("begin isolation level " + level)
			answers(operator, int64(1), "select lock.drop_unused_leases('1 day')")
			p := s.start("create temp table got as select token from lock.acquire_lease('a', 'me', '1 hour')").blocked()
			operator.exec("commit")
			p.ends()
			answers(s, int64(2), "select token from got")
		})
	}

	for _, level := range levels[1:] {
		reused := func(t *testing.T, e *env) bool {
			t.Helper()
			s, other, operator := e.session(t), e.session(t), e.sessionAs(t, e.owner)
			s.exec("begin isolation level " + level)
			s.exec("select count(*) from pg_class")
			other.lease("a", 1)
			other.exec("select lock.release_lease('a', 1)")
			idle(t, e)
			answers(operator, int64(1), "select lock.drop_unused_leases('1 day')")
			var token int64
			err := s.conn.QueryRow(ctx, leaseTake, "a", "me", 1).Scan(&token)
			if err != nil {
				wantCode(t, err, "40001", "acquire_lease")
				return false
			}
			s.exec("commit")
			return token == 1
		}
		t.Run("behind a snapshot, "+level, func(t *testing.T) {
			t.Parallel()
			if reused(t, open(t, advisory)) {
				t.Fatal("a token was granted twice")
			}
		})
		t.Run("the checker catches a floor that is not locked, "+level, func(t *testing.T) {
			t.Parallel()
			e := open(t, advisory)
			mutate(t, e, "add_lease_name", "    for share;", "    ;")
			if !reused(t, e) {
				t.Fatal("the reused token was not caught")
			}
		})
	}
}

// A name on which a lease is granted between a vacuum's snapshot and its lock stays.
func TestLeaseDropUnusedRace(t *testing.T) {
	t.Parallel()
	times := rounds(t, 500)
	lost := func(e *env) (lost int64) {
		var wg sync.WaitGroup
		var count atomic.Int64
		done := make(chan struct{})
		for i := range 4 {
			s := e.sessionAs(t, e.super)
			wg.Go(func() {
				for range times {
					var token int64
					var known, released bool
					name := fmt.Sprint("n", i)
					err := s.conn.QueryRow(ctx, "select token from lock.acquire_lease($1, 'me', '1 hour')", name).Scan(&token)
					if err == nil {
						err = s.conn.QueryRow(ctx, "select exists (select from lock.lease_name where name = $1)", name).Scan(&known)
					}
					if err == nil {
						err = s.conn.QueryRow(ctx, "select lock.release_lease($1, $2)", name, token).Scan(&released)
					}
					if err != nil {
						t.Error(err)
						return
					}
					if !known || !released {
						count.Add(1)
					}
				}
			})
		}
		var vacuums sync.WaitGroup
		for range 2 {
			vacuum := e.sessionAs(t, e.owner)
			vacuums.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					if _, err := vacuum.conn.Exec(ctx, "select lock.drop_unused_leases('1 microsecond')"); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		close(done)
		vacuums.Wait()
		return count.Load()
	}
	if n := lost(open(t, advisory)); n != 0 {
		t.Fatalf("%d names of live leases were forgotten", n)
	}
	t.Run("the checker catches a vacuum that looks once", func(t *testing.T) {
		e := open(t, advisory)
		recheck := "          and not exists (\n            select\n            from lock.lease\n            where lease.name = lease_name.name\n          )\n"
		mutate(t, e, "drop_unused_leases", recheck+"        returning", "        returning")
		for range 20 {
			if lost(e) > 0 {
				return
			}
		}
		t.Fatal("the forgotten name was not caught")
	})
}

func TestLeaseCost(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	admin := e.sessionAs(t, e.super)
	admin.exec(`insert into lock.lease_name (name, token, granted_at) select 'l' || n, 1, now() from generate_series(1, 200000) n;
		insert into lock.lease select 'l' || n, 1, 'me', now(), now(), now() + interval '1 day' from generate_series(1, 200000) n;
		analyze lock.lease; analyze lock.lease_name`)
	for _, call := range []string{
		"acquire_lease('l7', 'me', '1 s')", "acquire_lease('l7', 'me', '1 s', 2)", "acquire_lease('new', 'me', '1 s')", "await_lease('l8', 'me', '1 s')",
		"renew_lease('l8', 1, '1 day')", "assert_lease('l8', 1)", "release_lease('l8', 1)", "force_release_lease('l9', 1, 'why')",
	} {
		admin.exec("begin")
		admin.exec("select * from lock." + call)
		answers(admin, "none", `select coalesce(string_agg(relname || ': ' || seq_scan || ' scans, ' || idx_tup_fetch || ' rows', ', '), 'none')
			from pg_stat_xact_user_tables where schemaname = 'lock' and relname in ('lease', 'lease_name', 'forced_release') and (seq_scan > 0 or idx_tup_fetch > 40)`)
		admin.exec("commit")
	}
	// Why a token is refused is looked up as well, among all that operators ever released.
	admin.exec(`insert into lock.forced_release (kind, id, reason, released_by, previous) select 'lease', 'l' || n, 'test', 'me', '{"token": 1}' from generate_series(1, 20000) n;
		analyze lock.forced_release`)
	admin.exec(`create function pg_temp.refused(name text) returns text language plpgsql as $$
		declare
			detail text;
		begin
			perform lock.assert_lease(name, 1);
		exception when sqlstate 'LK001' then
			get stacked diagnostics detail = pg_exception_detail;
			return detail;
		end $$`)
	admin.exec("delete from lock.lease where name = 'l10'")
	answers(admin, true, "select pg_temp.refused('l10') like 'me released it by force at %: test'")
	if n := buffers(admin, `select pg_temp.refused('l10')`); n > 100 {
		t.Errorf("a refusal touched %d pages", n)
	}
}
