//go:build linux

package main

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"
)

var keyKind = &kind{name: "key", weight: 30, round: keyRound, check: checkKey}

// keyRound takes a key for a statement, or for a transaction in which an exclusive holder counts a row up by reading and writing it.
func keyRound(s *session) error {
	if s.dice.IntN(8) > 0 {
		return s.tryKeys(8)
	}
	id, window := s.slot("k", 6)
	key, as := keyOf(id)
	shared, call := s.tryOf(as)
	if !s.once("counter "+id, "insert into torture.counter (id) values ($1) on conflict do nothing", id) {
		return nil
	}
	granted := true
	asked := statement{sql: "select " + call, args: []any{key}, dest: []any{&granted}}
	if shared == 0 && s.dice.IntN(2) == 0 {
		asked = statement{sql: "select lock.exclusive(" + as + ")", args: []any{key}}
	}
	p := s.call(window, "key", "hold", id, shared)
	result, _ := s.pipeline(statement{sql: "begin"}, asked)
	if result == yes && !granted {
		result = no
	}
	s.answer(p, result)
	if result != yes {
		s.exec("rollback")
		return nil
	}
	s.die("key held")
	if s.dice.IntN(3) == 0 {
		freed := s.call(window, "key", "free", id, p.number)
		s.answer(freed, s.exec("commit"))
		return nil
	}
	var before, after int64
	counted := s.call(window, "key", "+count", id, shared)
	result, _ = s.ask([]any{&before}, "select n from torture.counter where id = $1", id)
	s.die("key held, row read")
	time.Sleep(s.linger)
	write := statement{sql: "select n from torture.counter where id = $1", args: []any{id}, dest: []any{&after}}
	if shared == 0 {
		write = statement{sql: "update torture.counter set n = $2 where id = $1", args: []any{id, before + 1}}
	}
	freed := s.call(window, "key", "free", id, p.number)
	if result == yes {
		result, _ = s.pipeline(write, statement{sql: "commit"})
		s.die("key held, after the commit")
	}
	s.answer(freed, result)
	s.answer(counted, result, before, after)
	if result != yes {
		s.exec("rollback")
	}
	return nil
}

// keyOf is what is locked for an id: one half of the ids are names, and the others numbers.
func keyOf(id string) (key any, as string) {
	if (id[len(id)-1]-'0')%2 == 0 {
		return id, "$1::text"
	}
	sum := fnv.New64a()
	sum.Write([]byte(id))
	return int64(sum.Sum64()), "$1::bigint"
}

func (s *session) tryOf(as string) (shared int64, call string) {
	if s.dice.IntN(4) == 0 {
		return 1, "lock.try_shared(" + as + ")"
	}
	return 0, "lock.try_exclusive(" + as + ")"
}

// tryKeys tries several keys in one round trip, and has those that it gets until all have been tried.
func (s *session) tryKeys(most int) error {
	var calls []pending
	var statements []statement
	granted := make([]bool, most)
	tried := map[string]bool{}
	for len(calls) < most {
		id, window := s.slot("k", 6)
		if tried[id] { // one has it oneself already
			most--
			continue
		}
		tried[id] = true
		key, as := keyOf(id)
		shared, call := s.tryOf(as)
		calls = append(calls, s.call(window, "key", "try", id, shared))
		statements = append(statements, statement{sql: "select " + call, args: []any{key}, dest: []any{&granted[len(calls)-1]}})
	}
	result, _ := s.pipeline(statements...)
	at := now()
	for i, p := range calls {
		if result == yes && !granted[i] {
			s.answerAt(at, p, no)
		} else {
			s.answerAt(at, p, result)
		}
	}
	return nil
}

// A keyState is who holds a key: the call of the exclusive holder, or those of the sharers, in order.
type keyState struct {
	exclusive int64
	sharers   string
}

func (k keyState) with(number, shared int64) keyState {
	if shared == 0 {
		return keyState{exclusive: number}
	}
	held := append(k.list(), number)
	slices.Sort(held)
	return keyState{sharers: join(held)}
}

func (k keyState) without(number int64) (bool, keyState) {
	if k.exclusive == number {
		return true, keyState{}
	}
	held := k.list()
	i := slices.Index(held, number)
	if i < 0 {
		return false, k
	}
	return true, keyState{sharers: join(slices.Delete(held, i, i+1))}
}

func (k keyState) list() []int64 {
	var held []int64
	for i := 0; i < len(k.sharers); {
		j := i
		for k.sharers[j] != ',' {
			j++
		}
		n, _ := strconv.ParseInt(k.sharers[i:j], 10, 64)
		held, i = append(held, n), j+1
	}
	return held
}

func join(held []int64) string {
	var text []byte
	for _, n := range held {
		text = append(strconv.AppendInt(text, n, 10), ',')
	}
	return string(text)
}

// checkKey looks for an order in which one lock grants all this, for two who have read the same number of the counter, and for denials
// that nobody's lock explains.
//
// A lock ends with its connection. So a release that is not known to be a commit's may have been at any time after the grant.
func checkKey(c *checker, id string, ops []*op) {
	holds := map[int64]*op{}
	frees := map[int64]*op{}
	counts := map[int64]*op{}
	for _, o := range ops {
		switch {
		case o.name == "+count" && o.outcome == yes && o.in[0] == 0:
			if other := counts[o.out[0]]; other != nil {
				c.violate("key", id, "two transactions held the key and read the same", other, o)
			}
			counts[o.out[0]] = o
		case o.name == "+count" && o.outcome == yes && o.out[0] != o.out[1]:
			c.violate("key", id, "the row changed beside a shared holder", o)
		case o.name == "hold" && o.outcome == yes:
			holds[o.number] = o
		case o.name == "free" && o.outcome == yes:
			frees[o.in[0]] = o
		}
	}
	var history []*op
	var taken []*op // from the call to when it was free at the latest
	for _, o := range ops {
		if o.name != "hold" && o.name != "try" {
			continue
		}
		held := *o
		free := frees[o.number]
		switch {
		case free != nil:
			held.ret = free.ret
		case o.name == "hold" && o.outcome != no:
			held.ret = forever
		}
		if o.outcome != no {
			taken = append(taken, &held)
		}
		if o.outcome != yes {
			continue // Unknown ones end by themselves, and grants to others say no more of them.
		}
		history = append(history, o)
		if o.name == "hold" && free != nil {
			history = append(history, free)
		} else if o.name == "hold" {
			history = append(history, &op{worker: o.worker, name: "free", id: id, in: []int64{o.number}, outcome: unknown, call: o.ret, ret: forever})
		}
	}
	linearizable(c, "key", id, keyState{}, history, func(k keyState, o *op) (bool, keyState) {
		if o.name == "free" {
			held, next := k.without(o.in[0])
			return held || o.outcome == unknown, next
		}
		if k.exclusive != 0 || o.in[0] == 0 && k.sharers != "" {
			return false, k
		}
		if o.name == "try" { // had and given back
			return true, k
		}
		return true, k.with(o.number, o.in[0])
	})
	for _, o := range ops {
		// An exclusive caller who waits denies sharers, too, and so does who gave up waiting.
		if (o.name == "hold" || o.name == "try") && o.outcome == no && !slices.ContainsFunc(taken, func(t *op) bool { return t.call <= o.ret && t.ret >= o.call }) {
			c.violate("key", id, "denied, and nobody had it", o)
		}
	}
}
