package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/calls"
	"github.com/seed4787c507/locks/internal/wake"
)

type taskWorker struct {
	TaskOptions
	teller
	pool    *pgxpool.Pool
	own     *wake.Own
	queueID string
	size    int  // of a batch at most; 0: work gets one task
	handler bool // there is one
	work    func(ctx context.Context, tasks []db.Task) []error
	end     *graceful
	told    func(results []TaskResult)

	busy    bool           // it has told that there is no room
	trouble wake.Complaint // about what cannot be settled
	results taskResults
	horizon taskHorizon
	due     taskDue
}

// Work that takes longer than this takes the worker off the list of the idle, when it has no room.
const busyAfter = 10 * time.Millisecond

func newTaskWorker(pool *pgxpool.Pool, queueID string, opts *TaskOptions) *taskWorker {
	w := &taskWorker{pool: pool, queueID: cmp.Or(queueID, defaultQueue)}
	if opts != nil {
		w.TaskOptions = *opts
	}
	if w.Statuses == nil {
		w.Statuses = capturable
	}
	w.results.stir = make(chan struct{}, 1)
	w.Owner = cmp.Or(w.Owner, processName())
	w.ShortestPause = cmp.Or(w.ShortestPause, time.Second)
	w.LongestPause = cmp.Or(w.LongestPause, time.Hour)
	w.MaxTries = cmp.Or(w.MaxTries, 25)
	return w
}

// one makes it a worker whose handler gets one task.
func (w *taskWorker) one(work func(ctx context.Context, task db.Task) error) {
	w.handler = work != nil
	w.work = func(ctx context.Context, tasks []db.Task) []error {
		return []error{work(ctx, tasks[0])}
	}
}

// begin checks the options. It is followed by end.
func (w *taskWorker) begin(ctx context.Context) (end func(), err error) {
	if err := w.complete(w.handler, map[string]int{"Concurrency": w.Concurrency}); err != nil {
		return nil, w.named(err)
	}
	if slices.Contains(w.Statuses, db.TaskDone) {
		w.Poll = min(w.Poll, w.Blind)
	}
	own, leave := wake.UseOwn(w.pool)
	w.own, w.end = own, newGraceful(ctx, w.Grace)
	w.teller = newTeller(w.OnError, w.end, w.CallTimeout)
	return func() {
		w.end.end()
		leave()
	}, nil
}

// run works until Watch ends, and then sees to what is in work or not settled.
func (w *taskWorker) run(ctx context.Context) error {
	end, err := w.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	w.told, w.trouble.Tell = w.report, w.complain
	w.note("task worker begins", w.queueID)
	defer w.note("task worker has ended", w.queueID)
	err = wake.Watch(ctx, w.pool, wake.Tasks, w.queueID, wake.Options{
		Poll: w.Poll, Blind: w.Blind, CallTimeout: w.CallTimeout, Stir: w.results.stir, Due: w.next,
		Trouble: &wake.Complaint{
			Tell: func(err error) { w.complain(w.named(err)) },
			Back: func() { w.note("task worker is back", w.queueID) },
		},
	}, w.look)
	w.end.begin()
	if unsettled := w.finish(); unsettled != nil && ctx.Err() != nil {
		err = unsettled
	} else if unsettled != nil {
		err = errors.Join(err, unsettled)
	}
	return w.named(err)
}

// workDue works on one task after the other, as long as one is due.
func (w *taskWorker) workDue(ctx context.Context) (results []TaskResult, err error) {
	end, err := w.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	w.told = func(told []TaskResult) { results = append(results, told...) }
	for {
		most := 1
		if ctx.Err() != nil {
			most = 0
		}
		calling, cancel := w.end.call(w.CallTimeout)
		asked := time.Now()
		var tasks []db.Task
		err := retry(calling, func() (err error) {
			tasks, err = w.settle(calling, w.results.all(), most, nil)
			return err
		})
		cancel()
		switch {
		case err != nil && len(w.results.all()) > 0:
			return results, w.named(fmt.Errorf("%w: %w", ErrUnsettled, err))
		case err != nil || ctx.Err() != nil && len(tasks) == 0:
			return results, w.named(cmp.Or(err, ctx.Err()))
		case len(tasks) == 0:
			return results, nil
		}
		w.results.keep([]taskResult{{tasks[0], w.workOne(tasks, asked)}})
	}
}

// workOne calls the handler in this goroutine, and ends what holds the task also when that panics.
func (w *taskWorker) workOne(tasks []db.Task, asked time.Time) (became outcome) {
	held, release := w.hold(tasks, asked)
	began := time.Now()
	defer func() {
		if release() && became.err != nil {
			became.err = errors.Join(became.err, ErrTaskLost)
		}
		became.began, became.ended = began, time.Now()
	}()
	return judge(w.work(held, tasks)[0], w.end.handlers.Err() != nil)
}

func (w *taskWorker) named(err error) error {
	return fmt.Errorf("locks: work on task queue %.60q: %w", w.queueID, err)
}

// report tells what became of tasks, in a goroutine that takes up the room of a handler.
func (w *taskWorker) report(results []TaskResult) {
	settled := w.Settled
	if settled == nil {
		settled = logTask
		results = slices.DeleteFunc(results, func(r TaskResult) bool { return r.Err == nil })
	}
	if len(results) == 0 {
		return
	}
	w.results.enter()
	next := 0
	var rest func()
	rest = func() { // A hook that panics is called for the others all the same.
		if next == len(results) {
			w.results.leave(nil)
			return
		}
		w.call(func(ctx context.Context) {
			for next < len(results) {
				next++
				settled(ctx, results[next-1])
			}
		}, rest)
	}
	rest()
}

// complain tells of the loop's own trouble, which takes up no room: results wait for that.
func (w *taskWorker) complain(err error) {
	w.results.telling.Add(1)
	w.call(w.of(err), func() {
		w.results.telling.Add(-1)
		w.results.keep(nil)
	})
}

// look waits until there is room for a task, settles what is finished, captures, and sets to work.
func (w *taskWorker) look(ctx context.Context) (bool, error) {
	free, err := w.room(ctx)
	if err != nil {
		return false, err
	}
	var failed error
	if w.results.apart {
		trying, cancel := w.end.call(shortestCall)
		failed = w.settleEach(trying)
		cancel()
		if w.results.apart = failed != nil; w.results.apart {
			w.trouble.About(w.named(failed))
		} else {
			w.trouble.Over()
		}
	}
	asked := time.Now()
	tasks, err := w.capture(free, failed == nil)
	if err != nil || len(tasks) == 0 {
		return false, cmp.Or(err, failed)
	}
	w.due.stuck = 0
	switch {
	case ctx.Err() != nil: // It ended meanwhile.
		for _, task := range tasks {
			w.results.keep([]taskResult{{task, outcome{verdict: workReturned}}})
		}
	case w.size > 0:
		w.start(tasks, asked)
	default:
		for n := range tasks {
			w.start(tasks[n:n+1], asked)
		}
	}
	return true, nil
}

// room waits until there is room for a task, and says for how many.
func (w *taskWorker) room(ctx context.Context) (free int, err error) {
	var busy <-chan time.Time
	for {
		if free = w.Concurrency - w.results.atWork(); free > 0 {
			w.busy = false
			return cmp.Or(w.size, free), nil
		}
		if busy == nil && !w.busy {
			busy = time.After(busyAfter)
		}
		select {
		case <-w.results.stir:
		case <-busy:
			w.busy = true
			return 0, wake.ErrBusy
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// capture settles what is finished, unless it has just failed to be, and captures.
func (w *taskWorker) capture(free int, settles bool) ([]db.Task, error) {
	var finished []taskResult
	if settles {
		finished = w.results.all()
	}
	// When the loop's context ends during the call, the tasks are captured all the same, and
	// somebody has to know.
	calling, cancel := w.end.call(w.CallTimeout)
	defer cancel()
	began := time.Now()
	since := w.horizon.since(began)
	tasks, err := w.settle(calling, finished, free, since)
	if err != nil {
		w.results.apart = w.results.apart || len(finished) > 0
		return nil, err
	}
	w.horizon.looked(began, since, free, tasks)
	return tasks, nil
}

// next says how long it takes until a task falls due or times out.
func (w *taskWorker) next(ctx context.Context) (time.Duration, error) {
	return w.due.next(&w.horizon, func() (due []time.Duration, err error) {
		calling, cancel := context.WithTimeout(ctx, w.CallTimeout)
		defer cancel()
		err = wake.Call(calling, w.pool, func(conn db.DBTX) (err error) {
			due, err = calls.New(
				conn,
			).NextTaskIn(calling,
				calls.NextTaskInParams{QueueID: w.queueID, Statuses: texts(w.Statuses)},
			)
			return err
		})
		return due, err
	})
}

// start sets to work on tasks that were asked for at a time. What became of them is kept when the
// handler returns, and told when it is settled.
func (w *taskWorker) start(tasks []db.Task, asked time.Time) {
	w.results.enter()
	held, release := w.hold(tasks, asked)
	go handled(
		len(tasks),
		w.end.handlers,
		func() []error { return w.work(held, tasks) },
		func(became []outcome) {
			lost := release()
			results := make([]taskResult, len(tasks))
			for n, task := range tasks {
				results[n] = taskResult{task, became[n]}
				if lost && became[n].err != nil {
					results[n].err = errors.Join(became[n].err, ErrTaskLost)
				}
			}
			w.results.leave(results)
		},
	)
}

// hold is the handlers' context. It ends before one of the tasks can be another's, and extends them
// when that is wished for. release says whether it has ended so.
func (w *taskWorker) hold(tasks []db.Task, asked time.Time,
) (held context.Context, release func() (lost bool)) {
	params := calls.ExtendTasksParams{QueueID: w.queueID}
	for _, task := range tasks {
		if task.Timeout == nil {
			continue
		}
		params.IDs, params.Attempts = append(params.IDs, task.ID), append(
			params.Attempts,
			task.Attempt,
		)
		if len(params.IDs) == 1 || *task.Timeout < params.Timeout {
			params.Timeout = *task.Timeout
		}
	}
	if len(params.IDs) == 0 {
		return w.end.handlers, func() bool { return false }
	}
	var extend func(ctx context.Context) (bool, error)
	if !w.NoExtend {
		extend = func(ctx context.Context) (all bool, err error) {
			err = w.own.Call(ctx, func(conn db.DBTX) error {
				extended, err := calls.New(conn).ExtendTasks(ctx, params)
				all = len(extended) == len(params.IDs)
				return err
			})
			return all, err
		}
	}
	return startHeartbeat(w.end.handlers, heldUntil(asked, params.Timeout), params.Timeout,
		ErrTaskLost, extend,
	)
}
