package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/calls"
	"github.com/seed4787c507/locks/internal/wake"
)

var (
	// ErrLeaseHeld says that others hold all permits of the name. WithLease returns it.
	ErrLeaseHeld = errors.New("all permits are held elsewhere")
	// ErrLeaseLost says that a lease ended before its holder was done: it ran out, or an operator
	// released it by force. WithLease and Lease.Assert return it. It is also the cause of the end
	// of the context that WithLease gives.
	ErrLeaseLost = errors.New("the lease is lost: stop what it protects, and acquire it again")
)

// A Lease is what WithLease gives to its closure: a proof of who holds the name, to be shown with
// every write.
type Lease struct {
	Name  string
	Token int64 // greater than the token of every lease on the name before
	Owner string
}

// Assert fences a transaction: call it in each one that writes what the lease protects. While the
// lease is live, nobody gets its permit before tx ends, however long that takes. Assert waits only
// for a transaction that is ending this lease. It returns an error that is ErrLeaseLost (SQLSTATE
// LK001) when the lease is lost. Then tx has failed, and can only be rolled back.
func (l Lease) Assert(ctx context.Context, tx pgx.Tx) error {
	err := db.New(tx).AssertLease(ctx, l.Name, l.Token)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "LK001" {
		return fmt.Errorf("locks: assert lease %.60q: %w: %w", l.Name, ErrLeaseLost, err)
	}
	if err != nil {
		return fmt.Errorf("locks: assert lease %.60q: %w", l.Name, err)
	}
	return nil
}

// LeaseOptions tune WithLease. Nil and the zero value are good.
type LeaseOptions struct {
	// Owner is the text, of 1 to 1024 bytes, that tells people who holds the lease. Default: host
	// name and process id.
	Owner string
	// Permits is how many may hold the name at once, this lease included. Default: 1.
	Permits int
	// Wait makes WithLease wait until a permit is free or ctx ends. Default: false, it returns
	// ErrLeaseHeld at once.
	//
	// Those who wait in one process, for the same name and by the same pool, stand in line: the
	// first one asks the database, with its own ttl and permits. It asks when its turn comes, and
	// when a lease on the name is released. It also asks when the lease that stood in its way
	// should have run out, about once per ttl while that one is renewed. Releases are heard on one
	// connection per process and pool, beside the pool's own. Where that is impossible, running out
	// is enough. Between processes there is no order.
	//
	// The wait survives the loss of connections, a server that is down and a login that is refused.
	// It asks again after pauses that grow to 10 s. What is granted too late to be held is given
	// back and asked for again.
	Wait bool
	// CallTimeout is of each call of a waiter. One that takes longer is made again, on another
	// connection. Default: 10 s.
	CallTimeout time.Duration
	// OnError is told of trouble that a waiter survives: at once, and while it lasts after pauses
	// that grow to a minute. Lead also tells it how each term ended. Default: slog's default
	// logger.
	OnError func(ctx context.Context, err error)
}

// WithLease runs fn while it holds a lease on name, and releases it when fn returns or panics. When
// ctx ends so does fn's, and so do the renewals. The lease is released once fn has returned.
//
// Contention: when others hold all permits it returns ErrLeaseHeld without having called fn, or
// waits (LeaseOptions.Wait).
//
// Renewal: the lease is renewed in the background every third of ttl. A failed renewal is tried
// again until a tenth of ttl is left. Then fn's context ends with the cause ErrLeaseLost. It ends
// at once when the database says that the lease is lost. A lost lease is never acquired again in
// the same call.
//
// Time: this process's own monotonic clock measures it, from before the request was sent. So fn's
// context ends before another can have the lease. There are two exceptions: the process did not run
// at that time, or the machine was suspended. Lease.Assert refuses what it writes even then. The
// clock of the database decides, to the microsecond. A ttl of less than some round trips cannot be
// held.
//
// Transaction: none is open while fn runs. Each acquiring, renewing and releasing is one of its
// own. To renew and release there are connections beside the pool's, two at most per process and
// pool, so fn may use up the pool. fn calls Lease.Assert in each transaction that writes what the
// lease protects. It does not release the lease itself: that is taken for a loss.
//
// Errors: fn's own error comes back as it is. When the lease was lost before fn returned, it is
// joined with ErrLeaseLost. errors.Is finds both, and ErrLeaseHeld. Bad arguments are a
// *pgconn.PgError with SQLSTATE 22023, or 22021 for a name that is no text. When ctx ends while
// every connection of the pool is in use, the error says that. When the release fails, the lease
// ends with its ttl, and that is no error. When ctx ends or the connection breaks while acquiring,
// a lease may have been granted that nobody knows of. It ends with its ttl, too.
func WithLease(ctx context.Context, pool *pgxpool.Pool, name string, ttl time.Duration,
	fn func(ctx context.Context, lease Lease) error, opts *LeaseOptions,
) error {
	h := newHeldLease(pool, name, ttl, opts)
	defer h.leave()
	acquire := h.acquire
	if h.Wait {
		acquire = h.await
	}
	err := acquire(ctx)
	if err == nil {
		err = h.run(ctx, fn)
	}
	if err != nil {
		return blame(err, "locks: hold lease %.60q", name)
	}
	return nil
}

// Lead runs fn whenever it holds a lease on name, until ctx ends. All candidates call it, and with
// one permit (the default) fn runs in one of them at a time. It is WithLease with Wait, again and
// again. What WithLease says of contention, renewal, time and transactions is true of each term.
//
// A term ends when fn returns, whatever it returns, or when the lease is lost: then fn's context
// ends, and Lead waits for fn to return. OnError is told: fn's error, ErrLeaseLost joined with it,
// or ErrTermEnded when fn returned nil. Lead pauses before it stands for the lease again, so that
// another candidate has its chance. The pauses grow from a second to 30, and are short again after
// a term that lasted longer than that. They are random, by half of their length.
//
// Lead returns ctx's error, wrapped, when ctx has ended and fn has returned. An error of fn's own
// at that time goes to OnError. Lead also ends with an error of the database that no pause can
// mend, such as bad arguments (22023) or missing rights (42501). A panic of fn releases the lease
// and goes on.
func Lead(ctx context.Context, pool *pgxpool.Pool, name string, ttl time.Duration,
	fn func(ctx context.Context, lease Lease) error, opts *LeaseOptions,
) error {
	h := newHeldLease(pool, name, ttl, opts)
	defer h.leave()
	pauses := wake.Pauses{Shortest: time.Second, Longest: longestRecess}
	for {
		if err := h.await(ctx); err != nil {
			return fmt.Errorf("locks: lead %.60q: %w", name, err)
		}
		began := time.Now()
		err := cmp.Or(h.run(ctx, fn), ErrTermEnded)
		ended := ctx.Err()
		if ended == nil || !errors.Is(err, ErrTermEnded) && !errors.Is(err, ended) {
			err = fmt.Errorf("locks: lead %.60q with token %d: %w", name, h.lease.Token, err)
			h.OnError(ctx, err)
		}
		if time.Since(began) > longestRecess {
			pauses.Over()
		}
		if err := pauses.Sleep(ctx); err != nil {
			return fmt.Errorf("locks: lead %.60q: %w", name, err)
		}
	}
}

// ErrTermEnded is what OnError is told when the closure of Lead returned nil before its context
// ended.
var ErrTermEnded = errors.New(
	"the closure has returned: the lease is released, and asked for again after a pause",
)

const longestRecess = 30 * time.Second // of Lead, between two terms

func newHeldLease(pool *pgxpool.Pool, name string, ttl time.Duration,
	opts *LeaseOptions,
) *heldLease {
	h := &heldLease{pool: pool, ttl: ttl}
	h.own, h.leave = wake.UseOwn(pool)
	if opts != nil {
		h.LeaseOptions = *opts
	}
	h.Owner, h.Permits = cmp.Or(h.Owner, processName()), cmp.Or(h.Permits, 1)
	h.CallTimeout = cmp.Or(h.CallTimeout, defaultCallTimeout)
	if h.OnError == nil {
		h.OnError = warn
	}
	h.lease = Lease{Name: name, Owner: h.Owner}
	h.permits = clamp(h.Permits)
	return h
}

func processName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

type heldLease struct {
	LeaseOptions
	pool    *pgxpool.Pool
	own     *wake.Own
	leave   func() // own
	ttl     time.Duration
	lease   Lease
	permits int32

	deadline time.Time // when fn must have stopped
}

// ask makes a call that may grant the lease. Its time counts from when there is a connection for
// it.
func (h *heldLease) ask(ctx context.Context, call func(db.DBTX) error) error {
	return retry(ctx, func() error {
		return wake.Call(ctx, h.pool, func(conn db.DBTX) error {
			h.deadline = heldUntil(time.Now(), h.ttl)
			return unanswered(call(conn))
		})
	})
}

func (h *heldLease) acquire(ctx context.Context) error {
	err := h.ask(ctx, func(conn db.DBTX) error {
		row, err := db.New(conn).AcquireLease(ctx, db.AcquireLeaseParams{
			Name: h.lease.Name, Owner: h.lease.Owner, TTL: h.ttl, Permits: h.permits,
		})
		h.lease.Token = row.Token
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrLeaseHeld
	}
	return err
}

// await listens before it asks for the first time, so that no release is missed in between.
func (h *heldLease) await(ctx context.Context) error {
	news, stop, err := wake.Subscribe(ctx, h.pool, wake.Leases, h.lease.Name)
	if err != nil {
		return err
	}
	defer stop()
	turn, leave := wake.Enter(h.pool, h.lease.Name)
	defer leave()
	select {
	case <-turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-news: // It was for those who were before.
	default:
	}
	trouble := wake.Complaint{Tell: func(err error) {
		h.OnError(ctx, fmt.Errorf("locks: wait for lease %.60q: %w", h.lease.Name, err))
	}}
	pauses := wake.Pauses{Shortest: 10 * time.Millisecond, Longest: 10 * time.Second}
	for {
		answer, err := h.asWaiter(ctx)
		late := err == nil && answer.Token != 0 && !time.Now().Before(h.deadline)
		switch {
		case err == nil && answer.Token != 0 && !late:
			h.lease.Token = answer.Token
			return nil
		case late:
			err = fmt.Errorf("it was granted too late to be held: %w", ErrLeaseLost)
			h.lease.Token = answer.Token
			h.release(ctx)
		case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
			return ctx.Err()
		case ctx.Err() != nil || err != nil && !wake.Transient(err):
			return err
		case errors.Is(err, context.DeadlineExceeded):
			// The network may be gone, and then what is idle in the pool is no better.
			wake.Weed(h.pool)
		}
		if err != nil {
			trouble.About(err)
			if err := pauses.Sleep(ctx); err != nil {
				return err
			}
			continue
		}
		trouble.Over()
		pauses.Over()
		// A little later than the lease's end: by then its holder has renewed it three times, and
		// not two, so that a waiter asks once per ttl; and waiters do not come all at once.
		grace := min(answer.ExpiresIn/20, time.Second/2)
		timer := time.NewTimer(answer.ExpiresIn + grace + rand.N(grace+1))
		select {
		case <-news:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

func (h *heldLease) asWaiter(ctx context.Context) (answer calls.LeaseHolder, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.CallTimeout)
	defer cancel()
	err = h.ask(ctx, func(conn db.DBTX) (err error) {
		answer, err = calls.New(conn).AwaitLease(ctx, calls.AwaitLeaseParams{
			Name: h.lease.Name, Owner: h.lease.Owner, TTL: h.ttl, Permits: h.permits,
		})
		return err
	})
	return answer, err
}

func (h *heldLease) run(ctx context.Context, fn func(context.Context, Lease) error) (err error) {
	renew := func(ctx context.Context) (renewed bool, err error) {
		err = h.own.Call(ctx, func(conn db.DBTX) (err error) {
			renewed, err = db.New(conn).RenewLease(ctx, db.RenewLeaseParams{
				Name: h.lease.Name, Token: h.lease.Token, TTL: h.ttl,
			})
			return err
		})
		return renewed, err
	}
	leased, stop := startHeartbeat(ctx, h.deadline, h.ttl, ErrLeaseLost, renew)
	defer func() {
		lost := stop()
		if !h.release(ctx) || lost {
			err = errors.Join(ErrLeaseLost, err)
		}
	}()
	if leased.lost() {
		return nil
	}
	if err := fn(leased, h.lease); err != nil {
		return closureError{err}
	}
	return nil
}

// release is false when the database says that the lease was lost. It is called also when the lease
// seems to be lost: that frees it for others sooner.
func (h *heldLease) release(ctx context.Context) bool {
	patience := min(max(h.ttl, time.Second), 5*time.Second)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	released := false
	err := retry(ctx, func() error {
		return h.own.Call(ctx, func(conn db.DBTX) (err error) {
			released, err = db.New(conn).ReleaseLease(ctx, h.lease.Name, h.lease.Token)
			return err
		})
	})
	return released || err != nil
}
