//go:build linux

package main

import (
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

var leaseKind = &kind{name: "lease", weight: 14, round: leaseRound, check: checkLease}

const leaseColumns = "token, (extract(epoch from acquired_at) * 1000000)::bigint, (extract(epoch from expires_at) * 1000000)::bigint"

// leaseRound is granted a lease, writes what it protects, renews it, and releases it or leaves it to expire.
func leaseRound(s *session) error {
	for len(s.left) > 0 && now() > s.left[0].until {
		late := s.left[0]
		s.left = s.left[1:]
		if s.dice.IntN(2) == 0 {
			s.protectedWrite(late.window, late.id, late.token, late.permits)
		} else if err := s.releaseLease(late.window, late.id, late.token, late.permits); err != nil {
			return err
		}
		if err := s.connected(); err != nil {
			return err
		}
	}
	id, window := s.slot("l", 4)
	permits := int64(1)
	if (id[len(id)-1]-'0')%2 == 1 {
		permits = 3
	}
	if !s.once("protected "+id, "insert into torture.protected (id) values ($1) on conflict do nothing", id) {
		return nil
	}
	ttl := time.Duration(100+s.dice.IntN(900)) * time.Millisecond
	var token, acquired, expires int64
	lease := []any{&token, &acquired, &expires}
	p := s.call(window, "lease", "acquire", id, permits)
	owner := strconv.FormatInt(p.number, 10)
	result, _ := s.ask(lease, "select "+leaseColumns+" from lock.acquire_lease($1, $2, $3, $4)", id, owner, ttl, permits)
	if result == unknown {
		found, err := s.until(func() outcome {
			found, _ := s.ask(lease, "select "+leaseColumns+" from lock.lease_holder where name = $1 and owner = $2", id, owner)
			return found
		})
		if err != nil {
			return err
		}
		if found == yes {
			result = yes
		}
	}
	s.answer(p, result, token, acquired, expires)
	if result != yes {
		return nil
	}
	s.die("lease granted")
	for range 1 + s.dice.IntN(4) {
		if s.dice.IntN(3) > 0 {
			result = s.protectedWrite(window, id, token, permits)
		} else {
			result = s.renew(window, id, token, permits, ttl)
		}
		if result != yes {
			break
		}
	}
	if result != yes || s.dice.IntN(6) == 0 {
		// Left. The worker comes back when it has lost it; the fence knows.
		s.left = append(s.left, left{id, token, permits, window, now() + int64(ttl)*5/4})
		return nil
	}
	if err := s.releaseLease(window, id, token, permits); err != nil {
		return err
	}
	if s.dice.IntN(10) == 0 && !s.conn.IsClosed() {
		s.protectedWrite(window, id, token, permits)
	}
	return nil
}

// A left lease is one that its worker neither renews nor releases in time.
type left struct {
	id             string
	token, permits int64
	window         int
	until          int64
}

func (s *session) releaseLease(window int, id string, token, permits int64) error {
	p := s.call(window, "lease", "release", id, permits, token)
	result := s.truth("select lock.release_lease($1, $2)", id, token)
	if result == unknown {
		// After an answer it is mine no more: released now, or by the call before, or lost.
		if _, err := s.until(func() outcome { return s.truth("select lock.release_lease($1, $2)", id, token) }); err != nil {
			return err
		}
		result = no
	}
	s.answer(p, result)
	return nil
}

// protectedWrite writes the token to a row, in the transaction that asserts the lease. no: the fence was closed.
func (s *session) protectedWrite(window int, id string, token, permits int64) outcome {
	var old int64
	p := s.call(window, "lease", "assert", id, permits, token)
	result, err := s.pipeline(
		statement{sql: "select lock.assert_lease($1, $2)", args: []any{id, token}},
		statement{
			sql: `with old as (select id, token from torture.protected where id = $1 for update)
				update torture.protected set token = $2 from old where protected.id = old.id returning old.token`,
			args: []any{id, token}, dest: []any{&old},
		},
	)
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "LK001" {
		result = no
	}
	s.answer(p, result, old)
	return result
}

func (s *session) renew(window int, id string, token, permits int64, ttl time.Duration) outcome {
	var renewed bool
	var expires *int64
	p := s.call(window, "lease", "renew", id, permits, token)
	result, _ := s.pipeline(
		statement{sql: "select lock.renew_lease($1, $2, $3)", args: []any{id, token, ttl}, dest: []any{&renewed}},
		statement{
			sql:  "select (select (extract(epoch from expires_at) * 1000000)::bigint from lock.lease_holder where name = $1 and token = $2)",
			args: []any{id, token}, dest: []any{&expires},
		},
	)
	if result == yes && !renewed {
		result = no
	}
	if expires == nil {
		expires = new(int64) // it ended since; nobody relies on it
	}
	s.answer(p, result, *expires)
	return result
}

// A leaseState is the greatest token, and the leases that hold a permit, each with the time by the server's clock when it ends.
type leaseState struct {
	last int64
	live [3]struct{ token, expires int64 }
}

func (l *leaseState) find(token int64) int {
	for i := range l.live {
		if l.live[i].token == token {
			return i
		}
	}
	return -1
}

// checkLease looks for an order in which tokens grow, no more leases are live than there are permits, and only live ones pass the
// fence; and for a row that was written with a lower token after a higher one.
//
// A grant that is unknown may hold a permit, which only denies. A renewal that is unknown only lengthens a lease.
func checkLease(c *checker, id string, ops []*op) {
	var history []*op
	for _, o := range ops {
		if o.name == "assert" && o.outcome == yes && o.in[0] == 1 && o.out[0] > o.in[1] {
			c.violate("lease", id, "written by a lower token after a higher one", o)
		}
		if o.outcome == failed || o.outcome == unknown && o.name != "release" || o.outcome == no && o.name != "release" {
			continue
		}
		history = append(history, o)
	}
	moved := c.clockMoved("lease", ops)
	if moved && len(ops) > 0 && ops[0].in[0] > 1 {
		return // which of several was taken for expired?
	}
	linearizable(c, "lease", id, leaseState{}, history, func(l leaseState, o *op) (bool, leaseState) {
		permits := int(o.in[0])
		if o.name == "acquire" {
			token, acquired, expires := o.out[0], o.out[1], o.out[2]
			if token <= l.last {
				return false, l
			}
			place := -1
			for i := range permits {
				if l.live[i].token == 0 {
					place = i
					break
				}
				if (moved || l.live[i].expires <= acquired) && (place < 0 || l.live[i].expires < l.live[place].expires) {
					place = i
				}
			}
			if place < 0 {
				return false, l
			}
			l.last = token
			l.live[place].token, l.live[place].expires = token, expires
			return true, l
		}
		i := l.find(o.in[1])
		if i < 0 {
			return o.outcome != yes, l
		}
		switch o.name {
		case "renew":
			l.live[i].expires = o.out[0]
		case "release":
			l.live[i] = struct{ token, expires int64 }{}
		}
		return true, l
	})
}
