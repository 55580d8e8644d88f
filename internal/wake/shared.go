package wake

import (
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A shared value has users: there is one for each key, from its first use to the end of the last.
type shared[K comparable, V any] struct {
	begin func(K) V
	end   func(V)

	mu sync.Mutex
	of map[K]*used[V]
}

type used[V any] struct {
	value V
	users int
}

func (s *shared[K, V]) use(key K) (value V, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.of[key]
	if u == nil {
		u = &used[V]{value: s.begin(key)}
		if s.of == nil {
			s.of = map[K]*used[V]{}
		}
		s.of[key] = u
	}
	u.users++
	return u.value, func() {
		s.mu.Lock()
		u.users--
		last := u.users == 0
		if last {
			delete(s.of, key)
		}
		s.mu.Unlock()
		if last {
			s.end(u.value)
		}
	}
}

// A line is of those in this process who want the same. The first has its turn.
type line struct {
	mu      sync.Mutex
	waiting []chan struct{} // closed for the first
}

type wanted struct {
	pool *pgxpool.Pool
	name string
}

var lines = shared[wanted, *line]{begin: func(wanted) *line { return &line{} }, end: func(*line) {}}

// Enter stands in line, first come first served, with all of this process who want the same by the
// same pool. The caller has its turn from when turn is closed. It leaves in any case.
func Enter(pool *pgxpool.Pool, name string) (turn <-chan struct{}, leave func()) {
	l, done := lines.use(wanted{pool, name})
	mine := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, mine)
	if len(l.waiting) == 1 {
		close(mine)
	}
	return mine, sync.OnceFunc(func() {
		l.mu.Lock()
		n := slices.Index(l.waiting, mine)
		l.waiting = slices.Delete(l.waiting, n, n+1)
		if n == 0 && len(l.waiting) > 0 {
			close(l.waiting[0])
		}
		l.mu.Unlock()
		done()
	})
}
