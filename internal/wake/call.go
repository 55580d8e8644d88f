package wake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
)

const (
	// for a pool to give an idle connection, which it may ask whether it lives
	proving = 2 * time.Second
	living  = time.Second // for an answer, when there is a doubt
	giveUp  = time.Second // of clearing up after ctx has ended
)

// Acquire takes a connection of the application's pool. When the network was lost, all that are
// idle there are dead, and nobody tells: when one does not answer, those that do not either go with
// it, and the others stay.
func Acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	for pool.Stat().IdleConns() > 0 {
		soon, cancel := context.WithTimeout(ctx, proving)
		conn, err := pool.Acquire(soon)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return conn, NoConnection(pool, err)
		}
		Weed(pool)
	}
	conn, err := pool.Acquire(ctx)
	return conn, NoConnection(pool, err)
}

// NoConnection is the error of who got no connection of a pool. It has waited for nothing else, so
// it says how many are in use.
func NoConnection(pool *pgxpool.Pool, err error) error {
	if err == nil {
		return nil
	}
	stat := pool.Stat()
	return fmt.Errorf("no connection of the pool, %d of %d are in use: %w", stat.AcquiredConns(),
		stat.MaxConns(), err,
	)
}

// Release gives a connection back. One that has failed leaves the pool at once. The pool itself
// would keep its place until it had said goodbye, which takes 15 s where nobody answers.
func Release(pool *pgxpool.Pool, conn *pgxpool.Conn) {
	if !conn.Conn().IsClosed() {
		conn.Release()
		return
	}
	closed := conn.Hijack()
	if config := pool.Config(); config.BeforeClose != nil {
		config.BeforeClose(closed)
	}
}

// Weed closes those idle connections of a pool that do not answer.
func Weed(pool *pgxpool.Pool) {
	ctx, cancel := context.WithTimeout(context.Background(), living)
	defer cancel()
	var all sync.WaitGroup
	for _, conn := range pool.AcquireAllIdle(ctx) {
		all.Go(func() {
			conn.Ping(ctx) // which closes it when there is no answer
			Release(pool, conn)
		})
	}
	all.Wait()
}

// Call makes a call on a connection of the application's pool.
func Call(ctx context.Context, pool *pgxpool.Pool, call func(db.DBTX) error) error {
	conn, err := Acquire(ctx, pool)
	if err != nil {
		return err
	}
	defer Release(pool, conn)
	return call(conn)
}

// Own are connections of this package's own, beside those of the application's pool and made as
// these: for calls that must not wait for what others do with theirs. They are opened when they are
// needed, two at most for a process and pool.
type Own struct {
	app  *pgxpool.Pool
	once sync.Once
	own  *pgxpool.Pool
	err  error
}

var owns = shared[*pgxpool.Pool, *Own]{
	begin: func(app *pgxpool.Pool) *Own { return &Own{app: app} },
	end:   (*Own).close,
}

// UseOwn is until leave is called. The last one to leave closes the connections.
func UseOwn(app *pgxpool.Pool) (own *Own, leave func()) { return owns.use(app) }

func (o *Own) open() {
	config := o.app.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	config.MaxConnIdleTime = min(config.MaxConnIdleTime, time.Minute)
	// there is another try
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	o.own, o.err = pgxpool.NewWithConfig(context.Background(), config)
}

// Call makes a call that is soon over. After one that failed with its connection, such as one that
// was not, the next is on a new one. Where the server has no room for more connections, the
// application's have to do.
func (o *Own) Call(ctx context.Context, call func(db.DBTX) error) error {
	if o.once.Do(o.open); o.err != nil {
		return o.err
	}
	conn, err := o.own.Acquire(ctx)
	var full *pgconn.PgError
	if errors.As(err, new(*pgconn.ConnectError)) && errors.As(err, &full) &&
		strings.HasPrefix(full.Code, "53") {
		return Call(ctx, o.app, call)
	}
	if err != nil {
		return err
	}
	defer Release(o.own, conn)
	err = call(conn)
	// Else the caller cut it off.
	if conn.Conn().IsClosed() && !errors.Is(ctx.Err(), context.Canceled) {
		o.own.Reset()
	}
	return err
}

var errClosed = errors.New("the last one to use these connections has left")

func (o *Own) close() {
	o.once.Do(func() { o.err = errClosed }) // Who never called has nothing to close.
	if o.own == nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		o.own.Close()
	}()
	select {
	case <-closed:
	case <-time.After(giveUp):
	}
}
