// Package wake runs the loops of workers: look for work, and sleep without a query until a producer notifies.
//
// The rules are in SQL: see lock_internal.wake and lock.start_idling.
package wake

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
)

// The channels that notifications come on, with the queue's id as payload.
const (
	Tasks    = "lock_task"
	Requests = "lock_request"
	Leases   = "lock_lease" // here the payload is the lease's name

	// A listener sends itself a notification on this one: only when that arrives, others will.
	trial = "lock_trial"
)

// Options tune Watch. The zero value is good.
type Options struct {
	// Poll is the longest sleep of an idle worker that is notified. Default: 30 s.
	Poll time.Duration
	// Blind is the longest sleep where notifications do not arrive. Default: 1 s, and never more than Poll.
	Blind time.Duration
	// Linger is for how long a worker that found work looks again after short pauses, each as long as the work is ago, before it
	// lists itself as idle: so that a steady load sends no notifications. Default: 10 ms.
	Linger time.Duration
	// OnError is told of every error that the loop survives. Default: nobody is.
	OnError func(error)
}

// Look looks for work and does it. It returns whether there was any, and, when there was none, after how long there will be
// some without anybody's notification (0: unknown). An error that is Transient makes Watch look again after a pause; any
// other ends it.
type Look func(ctx context.Context) (found bool, due time.Duration, err error)

const (
	shortestPause = time.Millisecond
	shortestBreak = 2 * time.Millisecond
	longestPause  = time.Second
	giveUp        = 5 * time.Second // of clearing up after ctx has ended
)

// Watch calls look again and again while it finds work, sleeps otherwise until a producer of the queue notifies, and returns
// ctx's error when ctx ends, or the first error of look that is not Transient.
//
// No change that was made before, or is notified by lock_internal.wake, waits longer than it takes to call look, and after work no
// longer than opts.Linger beside that; where notifications do not arrive it waits at most opts.Blind.
//
// A worker that is listed as idle, and finds work, is taken off the list after that look, or by Found.
func Watch(ctx context.Context, pool *pgxpool.Pool, channel, queueID string, opts Options, look Look) error {
	if opts.Poll <= 0 {
		opts.Poll = 30 * time.Second
	}
	if opts.Blind <= 0 {
		opts.Blind = time.Second
	}
	opts.Blind = min(opts.Blind, opts.Poll)
	if opts.Linger <= 0 {
		opts.Linger = 10 * time.Millisecond
	}
	if opts.OnError == nil {
		opts.OnError = func(error) {}
	}
	l := attach(pool)
	defer l.detach()
	w := &watcher{pool: pool, channel: channel, queueID: queueID, name: rand.Text(), opts: opts, look: look}
	w.listener, w.wakes = l, l.subscribe(channel+" "+queueID)
	defer l.unsubscribe(channel+" "+queueID, w.wakes)
	select {
	case <-l.tried:
	case <-ctx.Done():
		return ctx.Err()
	}
	return w.run(ctx)
}

type watcher struct {
	pool             *pgxpool.Pool
	listener         *listener
	wakes            chan struct{}
	channel, queueID string
	name             string
	opts             Options
	look             Look

	listed    int            // the listener's epoch when this worker was listed as idle; 0: it is not listed
	listedAt  time.Time      // when that was
	line      bool           // the list may hold a line of this worker, asked for or not: a call may fail after its commit
	unlisting sync.WaitGroup // what takes it off the list
	open      []int64        // transactions that may have missed the line
	pause     time.Duration  // between two questions about them
}

func (w *watcher) run(ctx context.Context) error {
	defer func() {
		w.unlist()
		w.unlisting.Wait()
	}()
	trouble, worked := shortestPause, time.Time{}
	for {
		// A notification from here on leads to another look; one from before is answered by this look.
		select {
		case <-w.wakes:
		default:
		}
		epoch := w.listener.epoch()
		found, due, err := w.look(context.WithValue(ctx, watcherKey{}, w))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && found {
			w.unlist()
			trouble, worked = shortestPause, time.Now()
			continue
		}
		if err == nil && epoch != 0 && w.listed != epoch {
			if ago := time.Since(worked); ago < w.opts.Linger {
				if _, err := w.sleep(ctx, max(ago, shortestBreak)); err != nil {
					return err
				}
				continue
			}
		}
		if err == nil && epoch != 0 && (w.listed != epoch || time.Since(w.listedAt) >= w.opts.Poll) {
			if err = w.list(ctx, epoch); err == nil {
				continue
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !Transient(err) {
				return err
			}
			w.opts.OnError(err)
			if err := Sleep(ctx, trouble); err != nil {
				return err
			}
			trouble = min(2*trouble, longestPause)
			continue
		}
		trouble = shortestPause
		if err := w.idle(ctx, epoch, due); err != nil {
			return err
		}
	}
}

// list makes producers notify this worker. The caller looks for work once more afterwards.
func (w *watcher) list(ctx context.Context, epoch int) error {
	w.unlisting.Wait()
	q := db.New(w.pool)
	w.listed, w.listedAt, w.line = 0, time.Now(), true
	err := q.StartIdling(ctx, db.StartIdlingParams{Channel: w.channel, QueueID: w.queueID, Worker: w.name, Lasting: 2*w.opts.Poll + longestPause})
	if err != nil {
		return fmt.Errorf("lock.start_idling: %w", err)
	}
	w.open, err = q.OpenTransactions(ctx, nil)
	if err != nil {
		return fmt.Errorf("lock.open_transactions: %w", err)
	}
	w.listed, w.pause = epoch, shortestPause
	return nil
}

// unlist takes the worker off the list, while it goes on. The listening connection does it, since the workers may be using up the pool
// for hours. When it fails, the line stops counting by itself.
func (w *watcher) unlist() {
	if !w.line {
		return
	}
	w.listed, w.line, w.open = 0, false, nil
	w.unlisting.Go(func() {
		stop := func(ctx context.Context, on db.DBTX) error {
			_, err := db.New(on).StopIdling(ctx, db.StopIdlingParams{Channel: w.channel, QueueID: w.queueID, Worker: w.name})
			return err
		}
		if w.listener.do(stop) != nil {
			ctx, cancel := context.WithTimeout(context.Background(), longestPause)
			defer cancel()
			stop(ctx, w.pool)
		}
	})
}

type watcherKey struct{}

// Found says, from within a look and with its context, that there is work: the worker is taken off the list while it does it.
func Found(ctx context.Context) {
	if w, ok := ctx.Value(watcherKey{}).(*watcher); ok {
		w.unlist()
	}
}

// idle sleeps until there may be something to do.
func (w *watcher) idle(ctx context.Context, epoch int, due time.Duration) error {
	longest := w.opts.Blind
	if epoch != 0 {
		longest = w.opts.Poll - time.Since(w.listedAt)
	}
	if due > 0 {
		longest = min(longest, due)
	}
	end := time.Now().Add(longest)
	for {
		left := time.Until(end)
		if len(w.open) > 0 {
			left = min(left, w.pause)
		}
		woken, err := w.sleep(ctx, left)
		if err != nil || woken || len(w.open) == 0 {
			return err
		}
		still, err := db.New(w.pool).OpenTransactions(ctx, w.open)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			w.opts.OnError(fmt.Errorf("lock.open_transactions: %w", err))
			w.listed = 0
			return nil
		}
		gone := len(still) < len(w.open)
		w.open, w.pause = still, min(2*w.pause, longestPause)
		if gone || time.Until(end) <= 0 {
			return nil
		}
	}
}

// sleep pauses, and says whether a notification ended it.
func (w *watcher) sleep(ctx context.Context, pause time.Duration) (woken bool, err error) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-w.wakes:
		return true, nil
	case <-timer.C:
		return false, nil
	}
}

// Sleep pauses, or returns ctx's error as soon as ctx ends.
func Sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Transient says whether err can be gone at the next attempt: the connection failed, the server is going down, is full or is
// a standby for now, or the database asked for a retry or ran into a timeout. Not so a pool that its owner has closed, which pgx says in
// words only.
func Transient(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return !errors.Is(err, context.Canceled) && !strings.HasSuffix(err.Error(), "closed pool")
	}
	return slices.Contains([]string{"08", "40", "53", "57", "58"}, pg.Code[:min(2, len(pg.Code))]) ||
		pg.Code == "25006" || pg.Code == "55P03" || pg.Code == "XX000" && strings.Contains(pg.Message, "cache lookup failed")
}

// A listener is the one connection of a process and pool that listens. It lives as long as somebody is attached.
type listener struct {
	pool  *pgxpool.Pool
	users int // guarded by listeners
	stop  context.CancelFunc
	ended chan struct{}
	tried chan struct{} // closed when it listens, or could not

	mu            sync.Mutex
	connected     bool
	proven        bool // a notification has arrived on this connection
	connections   int
	subscriptions map[string]map[chan struct{}]struct{}
	errands       []errand
	interrupt     context.CancelFunc // ends the wait for a notification, so that the errands are seen to
}

// An errand is a short statement for the listening connection.
type errand struct {
	run  func(ctx context.Context, on db.DBTX) error
	done chan error
}

var errDeaf = errors.New("there is no listening connection")

// do runs a statement on the listening connection.
func (l *listener) do(run func(ctx context.Context, on db.DBTX) error) error {
	e := errand{run: run, done: make(chan error, 1)}
	l.mu.Lock()
	if !l.connected {
		l.mu.Unlock()
		return errDeaf
	}
	l.errands = append(l.errands, e)
	if l.interrupt != nil {
		l.interrupt()
	}
	l.mu.Unlock()
	return <-e.done
}

// next gives the errands there are, or, when there are none, lets the next one interrupt what follows.
func (l *listener) next(interrupt context.CancelFunc) []errand {
	l.mu.Lock()
	defer l.mu.Unlock()
	errands := l.errands
	l.errands, l.interrupt = nil, interrupt
	return errands
}

var listeners = struct {
	sync.Mutex
	of map[*pgxpool.Pool]*listener
}{of: map[*pgxpool.Pool]*listener{}}

func attach(pool *pgxpool.Pool) *listener {
	listeners.Lock()
	defer listeners.Unlock()
	l := listeners.of[pool]
	if l == nil {
		ctx, stop := context.WithCancel(context.Background())
		l = &listener{pool: pool, stop: stop, ended: make(chan struct{}), tried: make(chan struct{}), subscriptions: map[string]map[chan struct{}]struct{}{}}
		listeners.of[pool] = l
		go l.run(ctx)
	}
	l.users++
	return l
}

func (l *listener) detach() {
	listeners.Lock()
	l.users--
	last := l.users == 0
	if last {
		delete(listeners.of, l.pool)
	}
	listeners.Unlock()
	if last {
		l.stop()
		<-l.ended
	}
}

// epoch numbers the connections on which notifications arrive; 0: they do not arrive now.
func (l *listener) epoch() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connected && l.proven {
		return l.connections
	}
	return 0
}

func (l *listener) subscribe(topic string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subscriptions[topic] == nil {
		l.subscriptions[topic] = map[chan struct{}]struct{}{}
	}
	c := make(chan struct{}, 1)
	l.subscriptions[topic][c] = struct{}{}
	return c
}

func (l *listener) unsubscribe(topic string, c chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subscriptions[topic], c)
	if len(l.subscriptions[topic]) == 0 {
		delete(l.subscriptions, topic)
	}
}

func poke(subscribers map[chan struct{}]struct{}) {
	for c := range subscribers {
		select {
		case c <- struct{}{}:
		default: // It has not yet answered the last one, and will look after both.
		}
	}
}

// change notes what the connection can do, and wakes everybody: they have missed something, or must sleep differently now.
func (l *listener) change(connected, proven bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if connected && !l.connected {
		l.connections++
	}
	l.connected, l.proven = connected, proven
	if !connected {
		for _, e := range l.errands {
			e.done <- errDeaf
		}
		l.errands, l.interrupt = nil, nil
	}
	for _, subscribers := range l.subscriptions {
		poke(subscribers)
	}
}

func (l *listener) run(ctx context.Context) {
	defer close(l.ended)
	tried := sync.OnceFunc(func() { close(l.tried) })
	defer tried()
	pause := 10 * shortestPause
	for ctx.Err() == nil {
		began := time.Now()
		l.listen(ctx, tried) // Its error is of no use to anybody: the workers poll until the next attempt.
		tried()
		if time.Since(began) > longestPause {
			pause = 10 * shortestPause
		}
		if Sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, 10*longestPause)
	}
}

// listen serves one connection until it fails. It does not come from the pool, which all workers may be using up.
func (l *listener) listen(ctx context.Context, ready func()) error {
	config := l.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return err
		}
	}
	config.ConnConfig.OnNotification = nil // A handler of the pool's owner would get what is waited for here.
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), giveUp)
		defer cancel()
		conn.Close(closing)
	}()
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			return err
		}
	}
	for _, channel := range []string{Tasks, Requests, Leases, trial} {
		if _, err := conn.Exec(ctx, "listen "+channel, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	l.change(true, false)
	defer l.change(false, false)

	// Behind a pooler that shares connections between transactions, LISTEN succeeds and nothing ever arrives. So a
	// notification of our own, by way of the pool, has to arrive before anybody relies on others.
	proof := rand.Text()
	waiting, cancel := context.WithTimeout(ctx, longestPause)
	defer cancel()
	if _, err := l.pool.Exec(waiting, "select pg_notify($1, $2)", trial, proof); err != nil {
		return err
	}
	for ; ; ready() {
		wait, interrupt := context.WithCancel(waiting)
		errands := l.next(interrupt)
		for _, e := range errands {
			doing, cancel := context.WithTimeout(context.Background(), giveUp)
			e.done <- e.run(doing, conn)
			cancel()
		}
		if len(errands) > 0 {
			interrupt()
			continue
		}
		note, err := conn.WaitForNotification(wait)
		interrupted := wait.Err() != nil && waiting.Err() == nil
		interrupt()
		if err != nil && interrupted && !conn.IsClosed() {
			continue
		}
		if err != nil && waiting != ctx && waiting.Err() != nil && ctx.Err() == nil && !conn.IsClosed() {
			waiting = ctx // It has not come in time; it may be late.
			continue
		}
		if err != nil {
			return err
		}
		waiting = ctx
		if note.Channel == trial {
			if note.Payload == proof {
				l.change(true, true)
			}
			continue
		}
		l.mu.Lock()
		poke(l.subscriptions[note.Channel+" "+note.Payload])
		l.mu.Unlock()
	}
}
