package wake

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The channels that notifications come on, with the queue's id as payload.
const (
	Tasks    = "lock_task"
	Requests = "lock_request"
	Leases   = "lock_lease" // here the payload is the lease's name

	// A listener sends itself a notification on this one: only when that arrives, others will.
	trial = "lock_trial"
)

// Subscribe receives on the returned channel after each notification on channel with this payload,
// and after anything that may have made it miss one, until the returned function is called. It
// returns once it listens, or could not for now: who needs to be sure must look for itself from
// time to time.
func Subscribe(ctx context.Context, pool *pgxpool.Pool, channel, payload string,
) (<-chan struct{}, func(), error) {
	l, leave := attach(pool, longestPoll)
	topic := channel + " " + payload
	wakes := l.subscribe(topic)
	unsubscribe := func() {
		l.unsubscribe(topic, wakes)
		leave()
	}
	select {
	case <-l.tried:
	case <-ctx.Done():
		unsubscribe()
		return nil, nil, ctx.Err()
	}
	select {
	case <-wakes: // That it listens now.
	default:
	}
	return wakes, unsubscribe, nil
}

// A listener is the one connection of a process and pool that listens. It lives as long as somebody
// is attached.
type listener struct {
	pool  *pgxpool.Pool
	stop  context.CancelFunc
	ended chan struct{}
	tried chan struct{} // closed when it listens, or could not

	mu            sync.Mutex
	poll          time.Duration // between two trials; the shortest of its users'
	connected     bool
	proven        bool // a notification has arrived on this connection
	connections   int
	subscriptions map[string]map[chan struct{}]struct{}
}

const longestPoll = 30 * time.Second

var listeners = shared[*pgxpool.Pool, *listener]{begin: newListener, end: (*listener).close}

func newListener(pool *pgxpool.Pool) *listener {
	ctx, stop := context.WithCancel(context.Background())
	l := &listener{
		pool:          pool,
		stop:          stop,
		ended:         make(chan struct{}),
		tried:         make(chan struct{}),
		poll:          longestPoll,
		subscriptions: map[string]map[chan struct{}]struct{}{},
	}
	go l.run(ctx)
	return l
}

func (l *listener) close() {
	l.stop()
	<-l.ended
}

func attach(pool *pgxpool.Pool, poll time.Duration) (l *listener, leave func()) {
	l, leave = listeners.use(pool)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.poll = min(l.poll, poll)
	return l, leave
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

// change notes what the connection can do, and wakes everybody: they have missed something, or must
// sleep differently now.
func (l *listener) change(connected, proven bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if connected && !l.connected {
		l.connections++
	}
	l.connected, l.proven = connected, proven
	for _, subscribers := range l.subscriptions {
		poke(subscribers)
	}
}

func (l *listener) run(ctx context.Context) {
	defer close(l.ended)
	tried := sync.OnceFunc(func() { close(l.tried) })
	defer tried()
	pauses := Pauses{Shortest: 10 * shortestPause, Longest: 10 * longestPause}
	for ctx.Err() == nil {
		began := time.Now()
		// Its errors are of no use to anybody: the workers poll until the next attempt.
		l.listen(ctx, tried)
		tried()
		if time.Since(began) > longestPause {
			pauses.Over()
		}
		if pauses.Sleep(ctx) != nil {
			return
		}
	}
}

var errDeaf = errors.New("the listening connection does not answer")

// listen serves one connection until it fails. It does not come from the pool, which all workers
// may be using up.
func (l *listener) listen(ctx context.Context, ready func()) (err error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), giveUp)
		defer cancel()
		conn.Close(closing)
	}()
	l.change(true, false)
	defer func() {
		if lost := (net.Error)(nil); errors.Is(err, errDeaf) || errors.As(err, &lost) {
			// The network is gone, and what is idle in the pool is no better, which those who wake
			// now would find out slowly.
			Weed(l.pool)
		}
		l.change(false, false)
	}()

	// Behind a pooler that shares connections between transactions, LISTEN succeeds and nothing
	// ever arrives. So a notification of our own, by way of the pool, has to arrive before anybody
	// relies on others.
	proof, proven, sent := rand.Text(), false, time.Now()
	sending, cancel := context.WithTimeout(ctx, longestPause)
	defer cancel()
	if sender, err := Acquire(sending, l.pool); err != nil {
		return err
	} else {
		_, err := sender.Exec(sending, "select pg_notify($1, $2)", trial, proof)
		Release(l.pool, sender)
		if err != nil {
			return err
		}
	}
	// Later, another on the connection itself shows from time to time that it lives.
	awaited, patience := true, longestPause
	for ; ; ready() {
		until := sent.Add(patience)
		if !awaited {
			l.mu.Lock()
			until = sent.Add(l.poll)
			l.mu.Unlock()
		}
		waiting, cancel := context.WithDeadline(ctx, until)
		note, err := conn.WaitForNotification(waiting)
		late := waiting.Err() != nil
		cancel()
		switch {
		case err == nil && note.Channel == trial:
			if note.Payload == proof {
				awaited = false
				if !proven {
					proven = true
					l.change(true, true)
				}
			}
		case err == nil:
			l.mu.Lock()
			poke(l.subscriptions[note.Channel+" "+note.Payload])
			l.mu.Unlock()
		case ctx.Err() != nil || !late || conn.IsClosed():
			return err
		case awaited && proven:
			return errDeaf
		case awaited:
			awaited = false // It may be late.
		default:
			another := rand.Text()
			if proven {
				proof = another
			}
			awaited, patience, sent = proven, answering, time.Now()
			sending, cancel := context.WithTimeout(ctx, patience)
			_, err := conn.Exec(sending, "notify "+trial+", '"+another+"'",
				pgx.QueryExecModeSimpleProtocol,
			)
			cancel()
			if err != nil && sending.Err() != nil && ctx.Err() == nil {
				return errDeaf
			} else if err != nil {
				return err
			}
		}
	}
}

// connect opens the connection as the pool would, and listens.
func (l *listener) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	config := l.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	// A handler of the pool's owner would get what is waited for here.
	config.ConnConfig.OnNotification = nil
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	if config.AfterConnect != nil {
		err = config.AfterConnect(ctx, conn)
	}
	for _, channel := range []string{Tasks, Requests, Leases, trial} {
		if err == nil {
			_, err = conn.Exec(ctx, "listen "+channel, pgx.QueryExecModeSimpleProtocol)
		}
	}
	if err != nil {
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}
