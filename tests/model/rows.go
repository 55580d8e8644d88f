package model

import (
	"fmt"
	"slices"
)

// An Isolation is a transaction's level, as YugabyteDB implements it.
type Isolation uint8

const (
	ReadCommitted Isolation = iota // a snapshot per query
	Snapshot                       // a snapshot per transaction: REPEATABLE READ, and READ COMMITTED where it is not switched on
	Serializable                   // the same, and every read locks what it read, rows and absences
)

// Rows says what the model of the row engine does.
type Rows struct {
	Levels     []Isolation
	Statements [processes]uint8 // of a transaction, at most
	PostgreSQL bool             // a waiter goes on with the row's newest version instead of starting the statement again; no writes outside the transaction

	// Faults. The zero value is what sql/functions/key does.
	TakesAbsenceForALock bool // the usual recipe: insert, then select for update, whatever it returned
	AlwaysOutside        bool // insert outside the transaction even where the transaction itself is in the way
	OneStepInsert        bool // not a fault: an insert that looks and writes in one step, which no server promises
}

const (
	processes = 3
	keys      = 2
	rounds    = 1 // after which an absent row is a 40001; the function's bound is 100
)

type operation uint8

const (
	exclusive operation = iota
	shared
	tryExclusive
	tryShared
	unlock
	vacuum
)

func (o operation) String() string {
	return [...]string{"exclusive", "shared", "try_exclusive", "try_shared", "unlock", "vacuum"}[o]
}

type place uint8

const (
	idle    place = iota
	open          // in a transaction, between statements
	look          // select ... for update / for share, not begun
	take          // it has seen the row and takes its lock
	exists        // a try looks whether the row is there
	arbiter       // insert ... on conflict do nothing looks whether the row is there
	write         // and writes it
)

type pending uint8

const (
	nothing  pending = iota
	deleted          // by this transaction, not committed
	inserted         // likewise, of a row that is not there
	replaced         // deleted and inserted again
)

// A process is a client and its server. What it holds is kept here and not with the key, so that processes can be sorted.
type process struct {
	at      place
	level   Isolation
	op      operation
	key     uint8
	left    uint8 // statements that this transaction may still run
	budget  uint8 // statements of every transaction
	first   bool  // no statement has ended yet
	rounds  uint8
	looking bool // has a snapshot
	sees    [keys]bool
	stale   [keys]bool  // the key was written and committed after the snapshot
	granted [keys]uint8 // what the client was told: 1 shared, 2 exclusive
	locks   [keys]uint8 // bits: 1 shared, 2 exclusive
	changes [keys]pending
	before  [keys]uint8   // locks at the start of the statement
	undo    [keys]pending // changes at the start of the statement
}

func (p process) pack() uint64 {
	var bits uint64
	put := func(value uint64, width int) { bits = bits<<width | value }
	flag := func(b bool) {
		if b {
			put(1, 1)
		} else {
			put(0, 1)
		}
	}
	put(uint64(p.at), 3)
	put(uint64(p.level), 2)
	put(uint64(p.op), 3)
	put(uint64(p.key), 1)
	put(uint64(p.left), 2)
	put(uint64(p.budget), 2)
	flag(p.first)
	put(uint64(p.rounds), 2)
	flag(p.looking)
	for k := range keys {
		flag(p.sees[k])
		flag(p.stale[k])
		put(uint64(p.granted[k]), 2)
		put(uint64(p.locks[k]), 2)
		put(uint64(p.changes[k]), 2)
		put(uint64(p.before[k]), 2)
		put(uint64(p.undo[k]), 2)
	}
	return bits
}

func unpack(bits uint64) process {
	var p process
	get := func(width int) uint64 {
		value := bits & (1<<width - 1)
		bits >>= width
		return value
	}
	for k := keys - 1; k >= 0; k-- {
		p.undo[k] = pending(get(2))
		p.before[k] = uint8(get(2))
		p.changes[k] = pending(get(2))
		p.locks[k] = uint8(get(2))
		p.granted[k] = uint8(get(2))
		p.stale[k] = get(1) == 1
		p.sees[k] = get(1) == 1
	}
	p.looking = get(1) == 1
	p.rounds = uint8(get(2))
	p.first = get(1) == 1
	p.budget = uint8(get(2))
	p.left = uint8(get(2))
	p.key = uint8(get(1))
	p.op = operation(get(3))
	p.level = Isolation(get(2))
	p.at = place(get(3))
	return p
}

// rowsState is the committed rows and the processes in ascending order, which makes states that differ in names alone one.
type rowsState struct {
	rows      uint8
	processes [processes]uint64
}

type rowsWorld struct {
	rows [keys]bool
	p    [processes]process
}

func (s rowsState) world() rowsWorld {
	var w rowsWorld
	for k := range keys {
		w.rows[k] = s.rows>>k&1 == 1
	}
	for i := range processes {
		w.p[i] = unpack(s.processes[i])
	}
	return w
}

func (w rowsWorld) encode(swapped bool) rowsState {
	var s rowsState
	for k := range keys {
		if w.rows[k] {
			at := k
			if swapped {
				at = keys - 1 - k
			}
			s.rows |= 1 << at
		}
	}
	for i, p := range w.p {
		if swapped {
			p.key = keys - 1 - p.key
			slices.Reverse(p.sees[:])
			slices.Reverse(p.stale[:])
			slices.Reverse(p.granted[:])
			slices.Reverse(p.locks[:])
			slices.Reverse(p.changes[:])
			slices.Reverse(p.before[:])
			slices.Reverse(p.undo[:])
			if p.op == vacuum || p.at == idle || p.at == open { // its key is a position and not a choice
				p.key = keys - 1 - p.key
			}
		}
		s.processes[i] = p.pack()
	}
	slices.Sort(s.processes[:])
	return s
}

// state is the one of the two encodings, with the keys as they are or swapped, that stands for both. A vacuum goes through the keys in
// order, so that the keys are not alike while one is on its way.
func (w rowsWorld) state() rowsState {
	s := w.encode(false)
	for _, p := range w.p {
		if p.op == vacuum && p.at != idle && p.at != open {
			return s
		}
	}
	other := w.encode(true)
	if other.rows < s.rows || other.rows == s.rows && slices.Compare(other.processes[:], s.processes[:]) < 0 {
		return other
	}
	return s
}

func (o operation) try() bool {
	return o == tryExclusive || o == tryShared || o == unlock || o == vacuum
}
func (o operation) sharing() bool { return o == shared || o == tryShared }

// wants is the lock that the process is about to take.
func (p *process) wants() uint8 {
	if p.at == take && p.op.sharing() || p.level == Serializable && (p.at == exists || p.at == arbiter || p.at == look && p.op.sharing()) {
		return 1
	}
	return 2
}

// inTheWay is who holds what keeps i from its next step.
func (r Rows) inTheWay(w *rowsWorld, i int) (who uint8) {
	p := &w.p[i]
	locks := false
	switch p.at {
	case take, write:
		locks = true
	case look, exists, arbiter:
		locks = p.level == Serializable && !r.PostgreSQL
	}
	if !locks {
		return 0
	}
	for j := range w.p {
		other := &w.p[j]
		if j == i && !(p.at == write && r.outside(p)) {
			continue // only a write outside the transaction meets the transaction's own locks
		}
		if other.locks[p.key]&2 != 0 || other.locks[p.key]&1 != 0 && p.wants() == 2 {
			who |= 1 << j
		}
	}
	return who
}

// outside says whether the process inserts outside its transaction: not where the transaction's own locks would be in the way.
func (r Rows) outside(p *process) bool {
	return !r.PostgreSQL && (r.AlwaysOutside || p.level != Serializable && p.changes[p.key] != deleted)
}

// waiting says whether i can do nothing until somebody else ends.
func (r Rows) waiting(w *rowsWorld, i int) bool {
	p := &w.p[i]
	if r.inTheWay(w, i) == 0 {
		return false
	}
	switch {
	case p.at == take && p.op.try():
		return p.level == Serializable && !r.PostgreSQL // skip locked waits there
	case p.at == write && p.op.try() && r.PostgreSQL:
		return false // lock_timeout = 1ms
	}
	return true
}

// deadlocked says whether i waits in a circle, and whether the server can see that circle: a write outside of a transaction has
// no transaction that a detector could follow.
func (r Rows) deadlocked(w *rowsWorld, i int) (circle, seen bool) {
	var reach func(at int, visited uint8, visible bool)
	reach = func(at int, visited uint8, visible bool) {
		if !r.waiting(w, at) {
			return
		}
		visible = visible && !(w.p[at].at == write && r.outside(&w.p[at]))
		who := r.inTheWay(w, at)
		for j := range processes {
			switch {
			case who>>j&1 == 0:
			case j == i:
				circle = true
				seen = seen || visible
			case visited>>j&1 == 0:
				reach(j, visited|1<<j, visible)
			}
		}
	}
	reach(i, 1<<i, true)
	return circle, seen
}

// Check visits every state.
func (r Rows) Check() Result {
	var initial rowsWorld
	for i := range processes {
		initial.p[i].budget = r.Statements[i]
	}
	return Explore([]rowsState{initial.state()}, func(s rowsState, visit func(string, rowsState)) {
		w := s.world()
		for i := range processes {
			if i > 0 && s.processes[i] == s.processes[i-1] {
				continue // its twin has the same steps
			}
			r.steps(w, i, func(step string, to rowsWorld) {
				to.p[i].forget()
				visit(step, to.state())
			})
		}
	}, func(s rowsState) []string {
		w := s.world()
		var wrong []string
		for k := range keys {
			for i := range processes {
				for j := range processes {
					if i != j && w.p[i].granted[k] == 2 && w.p[j].granted[k] > 0 {
						wrong = append(wrong, "granted twice")
					}
				}
			}
		}
		for i, p := range w.p {
			if !r.waiting(&w, i) {
				continue
			}
			if r.inTheWay(&w, i)>>i&1 == 1 {
				wrong = append(wrong, "waits for itself")
			}
			if p.op.try() && p.level != Serializable {
				wrong = append(wrong, "a try waits")
			}
			if circle, seen := r.deadlocked(&w, i); circle && !seen {
				wrong = append(wrong, "a deadlock that nobody sees")
			}
		}
		return wrong
	})
}

// steps calls visit for everything that process i can do.
func (r Rows) steps(w rowsWorld, i int, visit func(step string, to rowsWorld)) {
	p := w.p[i]
	to := func(step string, change func(w *rowsWorld, p *process)) {
		next := w
		change(&next, &next.p[i])
		visit(step, next)
	}
	end := func(w *rowsWorld, p *process) { *p = process{budget: p.budget} }
	statement := func(p *process, op operation, key uint8) {
		p.op, p.key, p.rounds, p.at = op, key, 0, look
		p.before, p.undo = p.locks, p.changes
		if r.TakesAbsenceForALock && !op.try() {
			p.at = arbiter
		}
	}
	// over ends the statement.
	over := func(p *process) {
		p.at, p.key, p.op, p.rounds = open, 0, exclusive, 0
		p.before, p.undo = [keys]uint8{}, [keys]pending{}
		p.first = false
		p.left--
	}
	calls := func(from *process) {
		for key := range uint8(keys) {
			for op := exclusive; op <= unlock; op++ {
				to("calls", func(w *rowsWorld, p *process) { *p = *from; statement(p, op, key) })
			}
		}
		to("calls", func(w *rowsWorld, p *process) { *p = *from; statement(p, vacuum, 0) })
	}
	switch p.at {
	case idle:
		if p.budget > 0 {
			for _, level := range r.Levels {
				begun := process{level: level, left: p.budget, budget: p.budget, first: true}
				calls(&begun)
			}
		}
		return
	case open:
		to("rolls back", end)
		to("commits", func(w *rowsWorld, p *process) {
			for k := range keys {
				switch p.changes[k] {
				case deleted:
					w.write(k, false)
				case inserted, replaced:
					w.write(k, true)
				}
			}
			end(w, p)
		})
		if p.left > 0 {
			calls(&p)
		}
		return
	}

	// In the middle of a statement.
	to("dies", end)
	restart := func(w *rowsWorld, p *process) {
		p.locks, p.changes = p.before, p.undo
		if p.level != ReadCommitted && !p.first {
			end(w, p) // 40001
			return
		}
		p.looking, p.sees, p.stale = false, [keys]bool{}, [keys]bool{}
		statement(p, p.op, func() uint8 {
			if p.op == vacuum {
				return 0
			}
			return p.key
		}())
	}
	if !r.PostgreSQL && p.at != look {
		to("starts again, for a read restart or a conflict elsewhere", restart)
	}
	if circle, seen := r.deadlocked(&w, i); circle && seen {
		to("is a deadlock's victim", end)
	}
	if r.waiting(&w, i) {
		return
	}
	conflict := func(w *rowsWorld, p *process) {
		if r.PostgreSQL {
			end(w, p)
			return
		}
		restart(w, p)
	}
	// query takes the snapshot that the next query uses, and says whether it shows the row of key.
	query := func(w *rowsWorld, p *process) bool {
		if p.level == ReadCommitted || !p.looking {
			p.looking, p.sees, p.stale = true, w.rows, [keys]bool{}
		}
		switch p.changes[p.key] {
		case deleted:
			return false
		case inserted, replaced:
			return true
		}
		return p.sees[p.key]
	}
	// reads is a query with the locks of SERIALIZABLE; false: the statement started again or failed.
	reads := func(w *rowsWorld, p *process) (shows, ok bool) {
		shows = query(w, p)
		if p.level == Serializable && !r.PostgreSQL {
			if p.stale[p.key] && p.changes[p.key] == nothing {
				conflict(w, p)
				return false, false
			}
			p.locks[p.key] |= p.wants()
		}
		return shows, true
	}
	// next goes to the following key of a vacuum, or ends the statement.
	next := func(p *process) {
		if p.op == vacuum && p.key < keys-1 {
			p.key++
			p.at = take
			return
		}
		over(p)
	}
	// absent is what follows a select that returned no row.
	absent := func(p *process) {
		switch {
		case p.op == unlock || p.op == vacuum:
			next(p)
		case p.op.try():
			p.at = exists
		case r.TakesAbsenceForALock:
			p.granted[p.key] = max(p.granted[p.key], map[bool]uint8{false: 2, true: 1}[p.op.sharing()])
			over(p)
		default:
			p.at = arbiter
		}
	}
	again := func(w *rowsWorld, p *process) {
		p.at = look
		if p.rounds++; p.rounds > rounds {
			end(w, p) // 40001
		}
	}

	switch p.at {
	case look:
		to("looks", func(w *rowsWorld, p *process) {
			shows, ok := reads(w, p)
			switch {
			case !ok:
			case p.op == vacuum:
				p.at = take
			case shows:
				p.at = take
			default:
				absent(p)
			}
		})
	case take:
		if !visible(p) { // a vacuum at a key that its snapshot does not show
			to("passes", func(w *rowsWorld, p *process) { next(p) })
			return
		}
		if r.inTheWay(&w, i) != 0 {
			to("skips what is locked", func(w *rowsWorld, p *process) { absent(p) })
			return
		}
		if p.stale[p.key] && p.changes[p.key] == nothing && (p.op.try() || p.op == vacuum) && !r.PostgreSQL && p.level != Serializable {
			// Their isolation specs skip such a row, their documentation starts again. So both.
			to("skips what was changed since", func(w *rowsWorld, p *process) { absent(p) })
		}
		to("takes", func(w *rowsWorld, p *process) {
			if p.stale[p.key] && p.changes[p.key] == nothing {
				if !r.PostgreSQL || p.level != ReadCommitted {
					conflict(w, p)
					return
				}
				absent(p) // its version was deleted; a row that was inserted since is another one
				return
			}
			switch {
			case p.op == unlock || p.op == vacuum:
				p.locks[p.key] |= 2
				if p.changes[p.key] == inserted {
					p.changes[p.key] = nothing
				} else {
					p.changes[p.key] = deleted
				}
				next(p)
			case p.op.sharing():
				p.locks[p.key] |= 1
				p.granted[p.key] = max(p.granted[p.key], 1)
				over(p)
			default:
				p.locks[p.key] |= 2
				p.granted[p.key] = 2
				over(p)
			}
		})
	case exists:
		to("asks whether the row is there", func(w *rowsWorld, p *process) {
			shows, ok := reads(w, p)
			switch {
			case !ok:
			case shows:
				over(p) // false
			default:
				p.at = arbiter
			}
		})
		if query(&w, &p) { // with time left to wait
			to("asks again later", func(w *rowsWorld, p *process) { query(w, p); p.at = look })
		}
	case arbiter:
		to("looks before it inserts", func(w *rowsWorld, p *process) {
			shows, ok := reads(w, p)
			switch {
			case !ok:
			case !shows:
				p.at = write
				if r.OneStepInsert && r.outside(p) && r.inTheWay(w, i) == 0 {
					w.write(int(p.key), true)
					again(w, p)
				}
			case r.TakesAbsenceForALock:
				p.at = look
			default:
				again(w, p)
			}
		})
	case write:
		if r.inTheWay(&w, i) != 0 {
			to("gives up inserting", func(w *rowsWorld, p *process) { over(p) }) // a try on PostgreSQL
			return
		}
		to("inserts", func(w *rowsWorld, p *process) {
			switch {
			case r.outside(p):
				w.write(int(p.key), true)
			case p.stale[p.key] && p.changes[p.key] == nothing && w.rows[p.key]:
				if !r.PostgreSQL || p.level != ReadCommitted {
					conflict(w, p)
					return
				}
			case p.changes[p.key] == deleted:
				p.changes[p.key] = replaced
				p.locks[p.key] |= 2
			default:
				p.changes[p.key] = inserted
				p.locks[p.key] |= 2
			}
			if r.TakesAbsenceForALock {
				p.at = look
				return
			}
			again(w, p)
		})
	}
}

// forget drops what no later step can depend on, so that states which differ in nothing else are one.
func (p *process) forget() {
	keep := func(k int) bool {
		switch {
		case p.at == idle:
			return false
		case p.level != ReadCommitted && p.left > 1, p.level != ReadCommitted && p.left > 0 && p.at == open:
			return true
		case p.level == ReadCommitted && p.at != take && p.at != write, p.at == open:
			return false
		case p.op == vacuum:
			return k >= int(p.key)
		}
		return k == int(p.key)
	}
	any := false
	for k := range keys {
		if !keep(k) {
			p.sees[k], p.stale[k] = false, false
		}
		any = any || keep(k)
	}
	p.looking = p.looking && any
}

func (s rowsState) String() string {
	w := s.world()
	text := "rows"
	for k := range keys {
		if w.rows[k] {
			text += fmt.Sprint(" ", k)
		}
	}
	for _, p := range w.p {
		text += " | " + [...]string{"idle", "open", "look", "take", "exists", "arbiter", "write"}[p.at]
		if p.at > open {
			text += fmt.Sprintf(" %v(%d)", p.op, p.key)
		}
		for k := range keys {
			if p.granted[k] > 0 || p.locks[k] > 0 || p.changes[k] > 0 {
				text += fmt.Sprintf(" [%d%s%s%s]", k, [...]string{"", " granted shared", " granted exclusive"}[p.granted[k]],
					[...]string{"", " share lock", " lock", " lock"}[p.locks[k]], [...]string{"", " deleted", " inserted", " replaced"}[p.changes[k]])
			}
		}
	}
	return text
}

// visible says whether the process' own snapshot and changes show its key.
func visible(p process) bool {
	switch p.changes[p.key] {
	case deleted:
		return false
	case inserted, replaced:
		return true
	}
	return p.sees[p.key]
}

// write is a committed change of a row; every snapshot that was taken before is stale.
func (w *rowsWorld) write(key int, present bool) {
	w.rows[key] = present
	for j := range w.p {
		if w.p[j].looking {
			w.p[j].stale[key] = true
		}
	}
}
