package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// leaseCandidate is set in a process that TestLeaseLeader starts: this binary, as a candidate for leadership.
const leaseCandidate = "LOCKS_TEST_LEASE_CANDIDATE"

func init() {
	if url := os.Getenv(leaseCandidate); url != "" {
		if err := leaseCampaign(url); err != nil {
			fmt.Fprintln(os.Stderr, "candidate:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

var errLeaseWork = errors.New("the work failed")

// leaseHolders are the live leases on a name.
func leaseHolders(t *testing.T, e *env, name string) []db.LeaseHolder {
	t.Helper()
	holders, err := db.New(e.pool).LeaseHolders(ctx, name)
	must(t, err)
	return holders
}

// leaseRenewed is when the lease on a, which must be live, was renewed last.
func leaseRenewed(t *testing.T, e *env) (at time.Time) {
	t.Helper()
	if err := e.admin.QueryRow(ctx, "select renewed_at from lock.lease_holder where name = 'a'").Scan(&at); err != nil {
		t.Fatalf("the lease is lost: %v", err)
	}
	return at
}

// The ttls are such that a stall of some seconds loses no lease.
func TestWithLease(t *testing.T) {
	t.Parallel()
	t.Run("renews until the work is done, and releases", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		const ttl = 5 * time.Second
		err := locks.WithLease(ctx, e.pool, "a", ttl, func(ctx context.Context, lease locks.Lease) error {
			first := leaseHolders(t, e, "a")
			if len(first) != 1 || first[0].Token != lease.Token || first[0].Owner != lease.Owner || lease.Name != "a" || lease.Owner == "" {
				t.Errorf("in the database %+v, in the closure %+v", first, lease)
			}
			within(t, perseverance, "the lease outlives three ttls", func() bool {
				now := leaseHolders(t, e, "a")
				if len(now) != 1 || now[0].Token != lease.Token {
					t.Fatalf("the lease is lost: %+v", now)
				}
				return now[0].RenewedAt.Sub(now[0].AcquiredAt) > 3*ttl
			})
			return ctx.Err()
		}, nil)
		must(t, err)
		if left := leaseHolders(t, e, "a"); len(left) != 0 {
			t.Fatalf("left behind: %+v", left)
		}
	})

	t.Run("says held, and the work's own error", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		err := locks.WithLease(ctx, e.pool, "a", time.Hour, func(ctx context.Context, lease locks.Lease) error {
			if lease.Owner != "me" {
				t.Errorf("owner %q", lease.Owner)
			}
			err := locks.WithLease(ctx, e.pool, "a", time.Hour, func(context.Context, locks.Lease) error {
				t.Error("two holders")
				return nil
			}, nil)
			if !errors.Is(err, locks.ErrLeaseHeld) || errors.Is(err, locks.ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
			must(t, locks.WithLease(ctx, e.pool, "a", time.Hour, func(context.Context, locks.Lease) error { return nil }, &locks.LeaseOptions{Permits: 2}))
			return errLeaseWork
		}, &locks.LeaseOptions{Owner: "me"})
		if !errors.Is(err, errLeaseWork) || errors.Is(err, locks.ErrLeaseHeld) || errors.Is(err, locks.ErrLeaseLost) {
			t.Fatalf("got %v", err)
		}
		nothing := func(context.Context, locks.Lease) error { t.Error("called"); return nil }
		wantCode(t, locks.WithLease(ctx, e.pool, "", time.Hour, nothing, nil), "22023", "an empty name")
		wantCode(t, locks.WithLease(ctx, e.pool, "b", 0, nothing, nil), "22023", "no ttl")
		wantCode(t, locks.WithLease(ctx, e.pool, "b", time.Hour, nothing, &locks.LeaseOptions{Owner: strings.Repeat("x", 1025)}), "22023", "a long owner")
		wantCode(t, locks.WithLease(ctx, e.pool, "b", time.Hour, nothing, &locks.LeaseOptions{Permits: -1, Wait: true}), "22023", "less than no permits")
	})

	t.Run("releases when the work panics or the caller gives up", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		func() {
			defer func() {
				if recover() != errLeaseWork {
					t.Error("the panic is gone")
				}
			}()
			locks.WithLease(ctx, e.pool, "a", time.Hour, func(context.Context, locks.Lease) error { panic(errLeaseWork) }, nil)
		}()
		if left := leaseHolders(t, e, "a"); len(left) != 0 {
			t.Fatalf("left behind by a panic: %+v", left)
		}
		parent, cancel := context.WithCancel(ctx)
		err := locks.WithLease(parent, e.pool, "a", time.Hour, func(ctx context.Context, lease locks.Lease) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}, nil)
		if !errors.Is(err, context.Canceled) || errors.Is(err, locks.ErrLeaseLost) {
			t.Fatalf("got %v", err)
		}
		if left := leaseHolders(t, e, "a"); len(left) != 0 {
			t.Fatalf("left behind by a cancelled caller: %+v", left)
		}
	})

	t.Run("stops the work when the lease is released by force, and does not take it again", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		operator := db.New(openPool(t, e.owner, 1))
		err := locks.WithLease(ctx, e.pool, "a", 15*time.Second, func(ctx context.Context, lease locks.Lease) error {
			released, err := operator.ForceReleaseLease(ctx, db.ForceReleaseLeaseParams{Name: "a", Token: lease.Token, Reason: "it hangs"})
			if err != nil || !released {
				t.Errorf("force release: %v, %v", released, err)
			}
			err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error { return lease.Assert(ctx, tx) })
			if !errors.Is(err, locks.ErrLeaseLost) || code(err) != "LK001" {
				t.Errorf("assert: %v", err)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), locks.ErrLeaseLost) {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
			if now := leaseHolders(t, e, "a"); len(now) != 0 {
				t.Errorf("somebody has it: %+v", now)
			}
			return errLeaseWork
		}, nil)
		if !errors.Is(err, locks.ErrLeaseLost) || !errors.Is(err, errLeaseWork) || errors.Is(err, locks.ErrLeaseHeld) {
			t.Fatalf("got %v", err)
		}
		// Released when no renewal has noticed yet.
		err = locks.WithLease(ctx, e.pool, "a", time.Hour, func(ctx context.Context, lease locks.Lease) error {
			_, err := operator.ForceReleaseLease(ctx, db.ForceReleaseLeaseParams{Name: "a", Token: lease.Token, Reason: "it hangs"})
			return err
		}, nil)
		if !errors.Is(err, locks.ErrLeaseLost) {
			t.Fatalf("got %v", err)
		}
	})

	t.Run("stops the work before the ttl is over, when renewals fail", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		const ttl = 15 * time.Second
		began := time.Now()
		err := locks.WithLease(ctx, e.pool, "a", ttl, func(ctx context.Context, lease locks.Lease) error {
			s.exec("begin")
			s.exec("select from lock.lease where name = 'a' for no key update")
			<-ctx.Done()
			if lasted := time.Since(began); lasted > ttl || lasted < ttl/2 {
				t.Errorf("the context ended after %v of %v", lasted, ttl)
			}
			if now := leaseHolders(t, e, "a"); len(now) != 1 {
				t.Errorf("the lease ended before the context")
			}
			s.exec("rollback")
			return nil
		}, nil)
		if !errors.Is(err, locks.ErrLeaseLost) {
			t.Fatalf("got %v", err)
		}
	})

	t.Run("survives renewals that fail for a while", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		must(t, locks.WithLease(ctx, e.pool, "a", 15*time.Second, func(ctx context.Context, lease locks.Lease) error {
			for range 2 {
				before := leaseRenewed(t, e)
				s.exec("begin")
				s.exec("select from lock.lease where name = 'a' for no key update")
				waits := func() (yes bool) {
					must(t, e.admin.QueryRow(ctx, `select exists (select from pg_stat_activity
						where datname = current_database() and wait_event_type = 'Lock' and query like '%renew_lease%')`).Scan(&yes))
					return yes
				}
				eventually(t, "a renewal waits", waits)
				eventually(t, "it gives up", func() bool { return !waits() })
				s.exec("rollback")
				eventually(t, "another succeeds", func() bool { return leaseRenewed(t, e).After(before) })
			}
			// The same when the server ends the connections.
			before := leaseRenewed(t, e)
			_, err := e.admin.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'locks_app' and datname = current_database()")
			must(t, err)
			eventually(t, "another succeeds", func() bool { return leaseRenewed(t, e).After(before) })
			return ctx.Err()
		}, nil))
	})

	t.Run("does not begin with a lease that is too short to be held", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		err := locks.WithLease(ctx, e.pool, "a", time.Microsecond, func(ctx context.Context, lease locks.Lease) error {
			t.Error("called")
			return nil
		}, nil)
		if !errors.Is(err, locks.ErrLeaseLost) {
			t.Fatalf("got %v", err)
		}
	})
}

// leaseQueries counts the queries of a pool that ask for a lease, and makes the answer to the first one late.
type leaseQueries struct {
	asked atomic.Int64
	late  time.Duration
}

func (q *leaseQueries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "acquire_lease") || strings.Contains(data.SQL, "await_lease") {
		q.asked.Add(1)
	}
	return ctx
}

func (q *leaseQueries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {
	if q.late > 0 && q.asked.Load() == 1 {
		time.Sleep(q.late)
		q.late = 0
	}
}

func TestWithLeaseWait(t *testing.T) {
	t.Parallel()
	tracedPool := func(t *testing.T, url string) (*pgxpool.Pool, *leaseQueries) {
		t.Helper()
		config, err := pgxpool.ParseConfig(url)
		must(t, err)
		queries := &leaseQueries{}
		config.ConnConfig.Tracer = queries
		pool, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		t.Cleanup(pool.Close)
		return pool, queries
	}

	t.Run("costs a query per ttl while the holder renews, and few a grant", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool, queries := tracedPool(t, e.url)
		const waiters, ttls, ttl = 200, 4, 5 * time.Second
		var group sync.WaitGroup
		limited, cancel := context.WithTimeout(ctx, perseverance)
		defer cancel()
		began := time.Now()
		var granted atomic.Int64
		must(t, locks.WithLease(ctx, e.pool, "a", ttl, func(ctx context.Context, lease locks.Lease) error {
			for range waiters {
				group.Go(func() {
					if err := locks.WithLease(limited, pool, "a", time.Hour, func(context.Context, locks.Lease) error {
						granted.Add(1)
						return nil
					}, &locks.LeaseOptions{Wait: true}); err != nil {
						t.Error(err)
					}
				})
			}
			within(t, perseverance, "some ttls pass", func() bool { return time.Since(began) > ttls*ttl })
			asked, passed := queries.asked.Load(), time.Since(began).Seconds()/ttl.Seconds()
			// One when it comes, and one for each ttl; a renewal that is late may make one ask a third of a ttl earlier.
			if float64(asked) > passed+2 || asked < 3 {
				t.Errorf("%d queries of %d waiters in %.1f ttls", asked, waiters, passed)
			}
			return ctx.Err()
		}, nil))
		queries.asked.Store(0)
		group.Wait()
		if asked := queries.asked.Load(); granted.Load() != waiters || asked > 3*waiters {
			t.Errorf("%d queries for %d grants to %d waiters", asked, granted.Load(), waiters)
		}
	})

	t.Run("does not begin with what was granted too late, and asks again", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		const ttl = 2 * time.Second
		pool, queries := tracedPool(t, e.url)
		queries.late = ttl
		var told []error
		must(t, locks.WithLease(ctx, pool, "a", ttl, func(ctx context.Context, lease locks.Lease) error {
			if lease.Token == 1 {
				t.Error("it began with the first")
			}
			return ctx.Err()
		}, &locks.LeaseOptions{Wait: true, OnError: func(_ context.Context, err error) { told = append(told, err) }}))
		if len(told) != 1 || !errors.Is(told[0], locks.ErrLeaseLost) {
			t.Errorf("told %v", told)
		}
	})

	t.Run("a waiter who gives up keeps nobody", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		pool, queries := tracedPool(t, e.url)
		s := e.session(t)
		token := s.lease("a", 1)
		wait := func(ctx context.Context) chan error {
			done := make(chan error, 1)
			go func() {
				done <- locks.WithLease(ctx, pool, "a", time.Hour, func(context.Context, locks.Lease) error { return nil }, &locks.LeaseOptions{Wait: true})
			}()
			return done
		}
		first, giveUp := context.WithCancel(ctx)
		one := wait(first)
		eventually(t, "the first waits", func() bool { return queries.asked.Load() == 1 })
		second, alsoGivesUp := context.WithCancel(ctx)
		two, three := wait(second), wait(ctx)
		alsoGivesUp()
		if err := <-two; !errors.Is(err, context.Canceled) {
			t.Errorf("the second: %v", err)
		}
		giveUp()
		if err := <-one; !errors.Is(err, context.Canceled) {
			t.Errorf("the first: %v", err)
		}
		eventually(t, "the third asks", func() bool { return queries.asked.Load() == 2 })
		answers(s, true, "select lock.release_lease('a', $1)", token)
		select {
		case err := <-three:
			must(t, err)
		case <-time.After(patience):
			t.Fatal("the third still waits")
		}
	})

	// granted returns once a waiter has the lease.
	granted := func(t *testing.T, e *env, pool *pgxpool.Pool, meanwhile func()) {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			done <- locks.WithLease(ctx, pool, "a", time.Hour, func(context.Context, locks.Lease) error { return nil }, &locks.LeaseOptions{Wait: true})
		}()
		eventually(t, "it waits", func() bool {
			var awaited bool
			must(t, e.admin.QueryRow(ctx, "select coalesce(bool_or(awaited), false) from lock.lease").Scan(&awaited))
			return awaited
		})
		meanwhile()
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(patience):
			t.Fatal("it still waits")
		}
	}

	t.Run("ends with a release", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		token := s.lease("a", 1)
		granted(t, e, e.pool, func() { answers(s, true, "select lock.release_lease('a', $1)", token) })
	})

	t.Run("ends though a question is never answered", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		b := newBlackHole(t, e.url)
		answers(e.session(t), int64(1), "select token from lock.acquire_lease('a', 'me', '6 seconds')")
		pool := openPool(t, b.address, 4)
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- locks.WithLease(waiting, pool, "a", time.Hour, func(context.Context, locks.Lease) error { return nil },
				&locks.LeaseOptions{Wait: true, CallTimeout: time.Second})
		}()
		eventually(t, "it waits", func() bool {
			var awaited bool
			must(t, e.admin.QueryRow(ctx, "select coalesce(bool_or(awaited), false) from lock.lease").Scan(&awaited))
			return awaited || len(done) > 0
		})
		b.swallow(false)
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(patience):
			t.Fatal("it still waits")
		}
	})

	t.Run("ends with a release that nobody heard", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.sessionAs(t, e.super)
		token := s.lease("a", 1)
		granted(t, e, e.pool, func() {
			answers(s, true, "select count(*) > 0 from pg_stat_activity, pg_terminate_backend(pid) where usename = 'locks_app' and datname = current_database() and query like 'listen%'")
			answers(s, true, "select lock.release_lease('a', $1)", token)
		})
	})

	t.Run("ends with the expiry, where nobody can listen", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		s := e.session(t)
		answers(s, int64(1), "select token from lock.acquire_lease('a', 'me', '6 seconds')")
		granted(t, e, wakeDeaf(t, e), func() {})
	})

	t.Run("ends with its context", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		e.session(t).lease("a", 1)
		inner, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		err := locks.WithLease(inner, e.pool, "a", time.Hour, func(context.Context, locks.Lease) error { t.Error("called"); return nil }, &locks.LeaseOptions{Wait: true})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, locks.ErrLeaseHeld) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestLead(t *testing.T) {
	t.Parallel()
	t.Run("leads again after every end of a term, until its context ends", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		operator := db.New(openPool(t, e.owner, 1))
		leading, stop := context.WithCancel(ctx)
		defer stop()
		var terms []locks.Lease
		var told []error
		var panicked any
		lead := func(ctx context.Context, lease locks.Lease) error {
			terms = append(terms, lease)
			switch len(terms) {
			case 1:
				return nil
			case 2:
				return errLeaseWork
			case 3:
				_, err := operator.ForceReleaseLease(ctx, db.ForceReleaseLeaseParams{Name: "a", Token: lease.Token, Reason: "it hangs"})
				must(t, err)
				<-ctx.Done()
				return context.Cause(ctx)
			case 4:
				panic(errLeaseWork)
			}
			stop()
			<-ctx.Done()
			return errLeaseWork
		}
		options := &locks.LeaseOptions{Owner: "me", OnError: func(_ context.Context, err error) { told = append(told, err) }}
		func() {
			defer func() { panicked = recover() }()
			locks.Lead(leading, e.pool, "a", 3*time.Second, lead, options)
		}()
		if panicked != errLeaseWork || len(leaseHolders(t, e, "a")) != 0 {
			t.Errorf("the panic became %v", panicked)
		}
		err := locks.Lead(leading, e.pool, "a", 3*time.Second, lead, options)
		if !errors.Is(err, context.Canceled) || errors.Is(err, errLeaseWork) || errors.Is(err, locks.ErrLeaseLost) {
			t.Errorf("Lead: %v", err)
		}
		want := []error{locks.ErrTermEnded, errLeaseWork, locks.ErrLeaseLost, errLeaseWork}
		if len(told) != len(want) || len(terms) != 5 {
			t.Fatalf("told %v in %d terms", told, len(terms))
		}
		for n, err := range want {
			if !errors.Is(told[n], err) {
				t.Errorf("told %v, and not %v", told[n], err)
			}
		}
		for n := range terms[1:] {
			if terms[n+1].Token <= terms[n].Token {
				t.Errorf("tokens of the terms: %+v", terms)
			}
		}
		if left := leaseHolders(t, e, "a"); len(left) != 0 {
			t.Errorf("left behind: %+v", left)
		}
	})

	t.Run("ends with an error that no pause mends", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		nothing := func(context.Context, locks.Lease) error { t.Error("called"); return nil }
		wantCode(t, locks.Lead(ctx, e.pool, "", time.Hour, nothing, nil), "22023", "an empty name")
		wantCode(t, locks.Lead(ctx, e.pool, "a", 0, nothing, nil), "22023", "no ttl")
	})

	t.Run("a clean stop is no error of its own", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		for _, outcome := range []error{nil, context.Canceled} {
			leading, stop := context.WithCancel(ctx)
			err := locks.Lead(leading, e.pool, "a", time.Hour, func(context.Context, locks.Lease) error {
				stop()
				return outcome
			}, &locks.LeaseOptions{OnError: func(_ context.Context, err error) { t.Errorf("told of %v", err) }})
			if err == nil || err.Error() != `locks: lead "a": context canceled` {
				t.Errorf("Lead: %v", err)
			}
		}
	})
}

// A leaseEvent is what a candidate writes to its standard output, one a line.
type leaseEvent struct {
	What  string
	Token int64
	Yes   bool
	Code  string
}

const leaseTerm = 10 * time.Second // the candidates' ttl

// leaseCampaign is a candidate's loop, with reports. It ends when its standard input does.
func leaseCampaign(url string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		bufio.NewReader(os.Stdin).ReadByte()
	}()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	out := json.NewEncoder(os.Stdout)
	for ctx.Err() == nil {
		var token int64
		err := locks.WithLease(ctx, pool, "leader", leaseTerm, func(ctx context.Context, lease locks.Lease) error {
			token = lease.Token
			out.Encode(leaseEvent{What: "leads", Token: token})
			return leaseLead(ctx, pool, lease, out)
		}, &locks.LeaseOptions{Wait: true})
		out.Encode(leaseEvent{What: "ends", Token: token, Yes: errors.Is(err, locks.ErrLeaseLost)})
	}
	return nil
}

// leaseLead writes under the lease until its context ends, and once more after that, as a leader does that has not noticed.
func leaseLead(ctx context.Context, pool *pgxpool.Pool, lease locks.Lease, out *json.Encoder) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	last := time.Now()
	for {
		// A successor comes when two thirds of the ttl have passed since the stop, or more.
		if now := time.Now(); now.Sub(last) > leaseTerm/2 {
			out.Encode(leaseEvent{What: "was stopped", Token: lease.Token, Yes: ctx.Err() != nil && errors.Is(context.Cause(ctx), locks.ErrLeaseLost)})
		}
		last = time.Now()
		if ctx.Err() != nil {
			break
		}
		if err := leaseWrite(ctx, pool, lease, true); err != nil && !errors.Is(err, context.Canceled) {
			out.Encode(leaseEvent{What: "write failed", Token: lease.Token, Code: err.Error()})
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	err := leaseWrite(context.WithoutCancel(ctx), pool, lease, os.Getenv(leaseCandidate+"_BLIND") == "")
	out.Encode(leaseEvent{What: "late write", Token: lease.Token, Yes: err == nil, Code: code(err)})
	return ctx.Err()
}

// leaseWrite writes the token to a register, and to its history in the order of the commits.
func leaseWrite(ctx context.Context, pool *pgxpool.Pool, lease locks.Lease, guarded bool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if guarded {
			if err := lease.Assert(ctx, tx); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "with now as (update register set n = n + 1 returning n) insert into history select n, $1 from now", lease.Token)
		return err
	})
}

// A leaseProcess is a candidate.
type leaseProcess struct {
	name   string
	cmd    *exec.Cmd
	mu     sync.Mutex
	events []leaseEvent
}

func (p *leaseProcess) event(what string, token int64) (leaseEvent, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.What == what && (token == 0 || e.Token == token) {
			return e, true
		}
	}
	return leaseEvent{}, false
}

func leaseStart(t *testing.T, e *env, name string, blind bool) *leaseProcess {
	t.Helper()
	p := &leaseProcess{name: name, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), leaseCandidate+"="+e.url+"&application_name="+name)
	if blind {
		p.cmd.Env = append(p.cmd.Env, leaseCandidate+"_BLIND=yes")
	}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var event leaseEvent
			if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
				t.Errorf("%s says %s", name, lines.Text())
				continue
			}
			p.mu.Lock()
			p.events = append(p.events, event)
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		in.Close()
		p.cmd.Process.Signal(goOn)
		<-read
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if t.Failed() {
			t.Logf("%s: %+v", name, p.events)
		}
	})
	return p
}

// pause stops the process at a moment when it has no transaction open: one that has asserted the lease would keep others
// from leading.
func (p *leaseProcess) pause(t *testing.T, e *env) {
	t.Helper()
	eventually(t, p.name+" is stopped outside a transaction", func() bool {
		must(t, p.cmd.Process.Signal(standStill))
		eventually(t, "the signal arrives", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
			must(t, err)
			_, state, _ := strings.Cut(string(stat), ") ")
			return strings.HasPrefix(state, "T")
		})
		var busy int
		must(t, e.admin.QueryRow(ctx, "select count(*) from pg_stat_activity where application_name = $1 and state <> 'idle'", p.name).Scan(&busy))
		if busy > 0 {
			must(t, p.cmd.Process.Signal(goOn))
		}
		return busy == 0
	})
}

func TestLeaseLeader(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc to see a process stop")
	}
	// tenure stops a leader past its ttl and continues it, and returns how often a token in the history was followed by an older one.
	tenure := func(t *testing.T, blind bool) (stale int) {
		e := open(t, advisory)
		_, err := e.admin.Exec(ctx, `create table register (n integer); insert into register values (0); create table history (n integer, token bigint);
			grant select, update on register to locks_app; grant select, insert on history to locks_app`)
		must(t, err)
		var processes []*leaseProcess
		for i := range 3 {
			processes = append(processes, leaseStart(t, e, fmt.Sprintf("candidate-%d", i), blind))
		}
		var leader *leaseProcess
		var first leaseEvent
		eventually(t, "somebody leads", func() bool {
			for _, p := range processes {
				if event, ok := p.event("leads", 0); ok {
					leader, first = p, event
				}
			}
			return leader != nil
		})
		written := func(atLeast int, newer bool) func() bool {
			return func() bool {
				var n int
				must(t, e.admin.QueryRow(ctx, "select count(*) from history where token > $1 or token = $1 and not $2", first.Token, newer).Scan(&n))
				return n >= atLeast
			}
		}
		eventually(t, "it writes", written(5, false))
		leader.pause(t, e)
		eventually(t, "another leads and writes", written(5, true))
		must(t, leader.cmd.Process.Signal(goOn))
		var late leaseEvent
		for _, want := range []struct {
			what string
			yes  bool
		}{{"was stopped", true}, {"late write", blind}, {"ends", true}} {
			eventually(t, "it reports: "+want.what, func() bool {
				event, ok := leader.event(want.what, first.Token)
				if want.what == "was stopped" { // a slow write looks the same, while the lease is held
					ok = ok && event.Yes
				} else if ok && event.Yes != want.yes {
					t.Fatalf("%s: %+v", leader.name, event)
				}
				if want.what == "late write" {
					late = event
				}
				return ok
			})
		}
		if !blind && late.Code != "LK001" {
			t.Errorf("the late write: %+v", late)
		}
		for _, p := range processes {
			if event, ok := p.event("write failed", 0); ok && event.Token != first.Token {
				t.Errorf("%s: %+v", p.name, event)
			}
		}
		must(t, e.admin.QueryRow(ctx, "select count(*) from (select token < lag(token) over (order by n) as older from history) h where older").Scan(&stale))
		return stale
	}
	t.Run("that is stopped past its ttl loses, knows it by its own clock, and writes nothing more", func(t *testing.T) {
		t.Parallel()
		if stale := tenure(t, false); stale != 0 {
			t.Fatalf("%d stale writes", stale)
		}
	})
	t.Run("without the fence, is caught by the checker", func(t *testing.T) {
		t.Parallel()
		if stale := tenure(t, true); stale == 0 {
			t.Fatal("the stale write was not caught")
		}
	})
}
