//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

var taskKind = &kind{name: "task", weight: 8, round: taskRound, check: checkTask, final: finalTasks}

const (
	taskTimeout = 500 * time.Millisecond
	taskBatch   = 8
	done        = 0
	again       = 1
)

// A stale attempt is one that its worker left, and settles when its time is over.
type stale struct {
	id      string
	attempt int64
	window  int
	left    int64
}

// taskRound captures tasks of the present window's queue, and settles most; it creates some when there are few.
func taskRound(s *session) error {
	window := windowOf(s.start, now())
	if s.dice.IntN(8) == 0 && window > 0 {
		window--
	}
	for len(s.stale) > 0 && now()-s.stale[0].left > int64(taskTimeout)*5/4 {
		late := s.stale[0]
		s.stale = s.stale[1:]
		if err := s.settle(late.window, []string{late.id}, []int64{late.attempt}, []int64{done}, s.dice.IntN(2)); err != nil {
			return err
		}
	}
	captured, err := s.capture(window, taskBatch)
	if err != nil {
		return err
	}
	s.die("tasks captured")
	if captured < taskBatch/2 {
		return s.createTasks(windowOf(s.start, now()))
	}
	return nil
}

func queueOf(window int) string { return "w" + strconv.Itoa(window) }

// taskKeyOf is the key of a task, or "": of each eight that are created together two have the same, and each window has forty.
func taskKeyOf(id string) string {
	var number int64
	var place int
	if _, err := fmt.Sscanf(id, "t%d-%d", &number, &place); err != nil || place > 1 {
		return ""
	}
	return "k" + strconv.FormatInt(number%40, 10)
}

// createTasks creates some, and asks again until it knows that they are there: ids are of one creator, so twice does no harm.
func (s *session) createTasks(window int) error {
	ids := make([]string, taskBatch)
	keys := make([]*string, taskBatch)
	each := make([]pending, taskBatch)
	p := s.call(window, "task", "create", "-")
	for i := range ids {
		ids[i] = fmt.Sprintf("t%d-%d", p.number, i)
		if key := taskKeyOf(ids[i]); key != "" {
			keys[i] = &key
		}
		each[i] = s.call(window, "task", "+created", ids[i])
	}
	_, err := s.until(func() outcome {
		return s.exec("select lock.create_tasks($1, $2, timeout => $3, keys => $4)", ids, queueOf(window), taskTimeout, keys)
	})
	if err != nil {
		return err
	}
	s.answer(p, yes)
	for i := range each {
		s.answer(each[i], yes)
	}
	s.die("tasks created")
	return nil
}

// capture takes tasks, notes each as a part of the answer, and settles them: as done, as failed to be captured again, or not at all.
func (s *session) capture(window, most int) (int, error) {
	p := s.call(window, "task", "capture", "-")
	called := now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var ids []string
	var attempts, results []int64
	var notes []func()
	rows, err := s.conn.Query(ctx, "select id, attempt, (extract(epoch from changed_at) * 1000000)::bigint, (extract(epoch from deadline) * 1000000)::bigint from lock.capture($1, $2, owner => $3)",
		most, queueOf(window), strconv.FormatInt(p.number, 10))
	if err == nil {
		var id string
		var attempt, began, deadline int64
		_, err = pgx.ForEachRow(rows, []any{&id, &attempt, &began, &deadline}, func() error {
			ids, attempts = append(ids, id), append(attempts, attempt)
			id, attempt, began, deadline := id, attempt, began, deadline
			notes = append(notes, func() {
				s.answer(s.callAt(called, window, "task", "+captured", id), yes, attempt, began, deadline)
			})
			return nil
		})
	}
	result := s.tell(err)
	s.answer(p, result)
	if result != yes {
		return 0, nil // What it took, if anything, comes back after its timeout.
	}
	for _, note := range notes {
		note()
	}
	if len(ids) == 0 {
		return 0, nil
	}
	s.die("tasks captured and known")
	var kept []string
	var keptAttempts []int64
	for i := range ids {
		switch {
		case most == taskBatch && s.dice.IntN(20) == 0:
			s.stale = append(s.stale, stale{ids[i], attempts[i], window, now()})
			continue
		case most == taskBatch && s.dice.IntN(12) == 0:
			results = append(results, again)
		default:
			results = append(results, done)
		}
		kept, keptAttempts = append(kept, ids[i]), append(keptAttempts, attempts[i])
	}
	if len(kept) == 0 {
		return len(ids), nil
	}
	return len(ids), s.settle(window, kept, keptAttempts, results, s.dice.IntN(3))
}

var statusOf = []string{done: "done", again: "failed"}

// settle settles attempts one by one in a pipeline, or, way 1, those that are done in one call.
func (s *session) settle(window int, ids []string, attempts, results []int64, way int) error {
	var calls []pending
	settled := make([]bool, len(ids))
	statements := make([]statement, len(ids))
	allDone := true
	for i, id := range ids {
		calls = append(calls, s.call(window, "task", "settle", id, attempts[i], results[i]))
		statements[i] = statement{
			sql: "select lock.set_status($1, $2, $3, $4)", args: []any{id, statusOf[results[i]], attempts[i], queueOf(window)}, dest: []any{&settled[i]},
		}
		allDone = allDone && results[i] == done
	}
	var result outcome
	count := -1
	if way == 1 && allDone {
		result, _ = s.ask([]any{&count}, "select lock.set_statuses($1, $2, 'done', $3)", ids, attempts, queueOf(window))
	} else {
		result, _ = s.pipeline(statements...)
	}
	at := now()
	for i, id := range ids {
		switch {
		case result == yes && (count == len(ids) || count < 0 && settled[i]):
			s.answerAt(at, calls[i], yes)
		case result == yes && count < 0:
			s.answerAt(at, calls[i], no)
		default:
			// Once more, and if it is too late for that: was it this attempt that settled it?
			answer, err := s.until(func() outcome {
				return s.truth("select lock.set_status($1, $2, $3, $4)", id, statusOf[results[i]], attempts[i], queueOf(window))
			})
			if err != nil {
				return err
			}
			if answer == no {
				answer, err = s.until(func() outcome {
					return s.truth("select status::text = $4 and attempt = $3 from lock.get_task($1, $2)", id, queueOf(window), attempts[i], statusOf[results[i]])
				})
				if err != nil {
					return err
				}
				if answer == no && results[i] == again {
					answer = unknown // given back, it may have been captured since
				}
			}
			s.answer(calls[i], answer)
		}
	}
	if s.dice.IntN(30) == 0 && results[0] == done { // the same once more must be refused
		p := s.call(window, "task", "settle", ids[0], attempts[0], done)
		s.answer(p, s.truth("select lock.set_status($1, 'done', $2, $3)", ids[0], attempts[0], queueOf(window)))
	}
	return nil
}

// A taskState is what a task has come to. until: when its time is over, by the server's clock.
type taskState struct {
	status  byte // 0: it does not exist, n, p (in progress), d
	attempt int64
	until   int64
}

// checkTask looks for an order in which a task gives these answers: attempts only grow, none is given before the time of the one
// before is over, and only the present one settles. Attempts that are missing were given to callers who never learned of it.
func checkTask(c *checker, id string, ops []*op) {
	var history []*op
	for _, o := range ops {
		if o.outcome == failed || o.name == "settle" && o.outcome == no {
			continue
		}
		history = append(history, o)
	}
	moved := c.clockMoved("task", ops)
	linearizable(c, "task", id, taskState{}, history, func(t taskState, o *op) (bool, taskState) {
		switch o.name {
		case "+created":
			if t.status != 0 {
				return o.outcome == unknown, t
			}
			return true, taskState{status: 'n'}
		case "+freed":
			if t.status == 'p' {
				t.status = 'n'
			}
			return true, t
		case "+captured":
			attempt, began, until := o.out[0], o.out[1], o.out[2]
			free := t.status == 'n' || t.status == 'p' && (moved || t.until <= began || attempt > t.attempt+1)
			return free && attempt > t.attempt, taskState{'p', attempt, until}
		default:
			if t.status != 'p' || t.attempt != o.in[0] {
				return o.outcome == unknown, t
			}
			next := taskState{'d', t.attempt, 0}
			if o.in[1] == again {
				next.status = 'n'
			}
			return true, next
		}
	})
}

// checkTaskKeys looks for two tasks of a key that were in progress at one time. An attempt was in progress from the answer that told of it,
// at the latest, to the call that settled it, at the earliest.
func checkTaskKeys(c *checker, ops []*op) {
	type attempt struct {
		id     string
		number int64
	}
	type held struct {
		captured, settled *op
	}
	answered := map[attempt]*op{}
	for _, o := range ops {
		if o.name == "+captured" && o.outcome == yes && taskKeyOf(o.id) != "" {
			answered[attempt{o.id, o.out[0]}] = o
		}
	}
	byKey := map[string][]held{}
	for _, o := range ops {
		if o.name != "settle" || o.outcome != yes {
			continue
		}
		if captured := answered[attempt{o.id, o.in[0]}]; captured != nil && captured.ret < o.call {
			byKey[taskKeyOf(o.id)] = append(byKey[taskKeyOf(o.id)], held{captured, o})
		}
	}
	for key, each := range byKey {
		slices.SortFunc(each, func(a, b held) int { return cmp.Compare(a.captured.ret, b.captured.ret) })
		last := each[0]
		for _, next := range each[1:] {
			if next.captured.ret < last.settled.call {
				c.violate("task", key, "two tasks of a key in progress at one time", last.captured, last.settled, next.captured, next.settled)
			}
			if next.settled.call > last.settled.call {
				last = next
			}
		}
	}
}

// finalTasks compares what was acknowledged with what is there: every task is done, and by an attempt that somebody had.
func finalTasks(ctx context.Context, conn *pgx.Conn, c *checker, window int, ops []*op) error {
	type end struct {
		status  string
		attempt int64
	}
	ends := map[string]end{}
	rows, err := conn.Query(ctx, "select id, status::text, attempt from lock.task where queue_id = $1", queueOf(window))
	if err != nil {
		return err
	}
	var id, status string
	var attempt int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &status, &attempt}, func() error { ends[id] = end{status, attempt}; return nil }); err != nil {
		return err
	}
	checkTaskKeys(c, ops)
	settled := map[string]bool{}
	highest := map[string]int64{}
	for _, o := range ops {
		switch {
		case o.name == "settle" && (o.outcome == yes || o.outcome == unknown):
			settled[o.id] = true
		case o.name == "+captured":
			highest[o.id] = max(highest[o.id], o.out[0])
		}
	}
	for _, o := range ops {
		if o.name != "+created" || o.outcome != yes {
			continue
		}
		end, there := ends[o.id]
		switch {
		case !there:
			c.lose("task", o.id, "it was created and is gone", o)
		case end.status != "done":
			c.lose("task", o.id, fmt.Sprintf("it ended as %s", end.status), o)
		case !settled[o.id]:
			c.lose("task", o.id, "it is done, and nobody did it", o)
		case end.attempt < highest[o.id]:
			c.violate("task", o.id, "its attempt is behind what was given", o)
		}
	}
	return nil
}

// free gives back, as an operator would, what waits for a time that a wrong clock has set.
func free(s *session, conn *pgx.Conn) error {
	if _, err := conn.Exec(s.ctx, "update lock.task set available_at = clock_timestamp() where status in ('new', 'failed') and available_at > clock_timestamp() + interval '1 second'"); err != nil {
		return err
	}
	if _, err := conn.Exec(s.ctx, "update lock.request set available_at = null where settled_at is null and available_at > clock_timestamp() + interval '1 second'"); err != nil {
		return err
	}
	rows, err := conn.Query(s.ctx, "select id, queue_id from lock.task where status = 'in_progress' and deadline > clock_timestamp() + interval '1 second'")
	if err != nil {
		return err
	}
	type key struct{ id, queue string }
	held, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k key, err error) {
		err = row.Scan(&k.id, &k.queue)
		return k, err
	})
	for _, k := range held {
		window, err := strconv.Atoi(k.queue[1:])
		if err != nil {
			return err
		}
		p := s.call(window, "task", "+freed", k.id)
		_, err = conn.Exec(s.ctx, "select lock.set_status($1, 'new', queue_id => $2)", k.id, k.queue)
		if err != nil {
			return err
		}
		s.answer(p, yes)
	}
	return err
}

// drainTasks lets a worker settle what is left in the queues.
func drainTasks(s *session, count func() (int, error)) error {
	for {
		left, err := count()
		if err != nil || left == 0 {
			return err
		}
		for window := range windowOf(s.start, now()) + 1 {
			for {
				if err := s.connected(); err != nil {
					return err
				}
				n, err := s.capture(window, math.MaxInt16)
				if err != nil {
					return err
				}
				if n == 0 {
					break
				}
			}
		}
		time.Sleep(taskTimeout / 4)
	}
}
