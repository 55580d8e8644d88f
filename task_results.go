package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/calls"
	"github.com/seed4787c507/locks/internal/wake"
)

// A taskResult is what became of a task.
type taskResult struct {
	task db.Task
	outcome
}

// taskResults are kept from when a handler returns until they are settled.
type taskResults struct {
	stir chan struct{} // receives after work has returned

	mu       sync.Mutex
	working  int          // handlers, and those that are being told
	finished []taskResult // not settled yet

	telling atomic.Int32 // of other trouble
	apart   bool         // settle one by one, and apart from capturing, since both together failed
}

// enter counts a handler, or who is told, until leave.
func (r *taskResults) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.working++
}

func (r *taskResults) leave(results []taskResult) {
	r.mu.Lock()
	r.working--
	r.mu.Unlock()
	r.keep(results)
}

// keep takes results in, and stirs the loop.
func (r *taskResults) keep(results []taskResult) {
	r.mu.Lock()
	r.finished = append(r.finished, results...)
	r.mu.Unlock()
	select {
	case r.stir <- struct{}{}:
	default: // It has not yet looked after the last one, and will look after both.
	}
}

func (r *taskResults) atWork() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.working
}

// calm says that nothing is in work, and nobody is being told.
func (r *taskResults) calm() bool { return r.atWork() == 0 && r.telling.Load() == 0 }

func (r *taskResults) all() []taskResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished
}

// first is all that is finished of the first task that is. A task that timed out, and was captured
// here once more, has two results.
func (r *taskResults) first() []taskResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, attempts := r.finished[0].task.ID, 0
	for n, result := range r.finished {
		if result.task.ID == id {
			r.finished[attempts], r.finished[n] = result, r.finished[attempts]
			attempts++
		}
	}
	return r.finished[:attempts]
}

// forget takes the first so many off, and puts them behind the others when they are not settled.
func (r *taskResults) forget(first int, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	some := r.finished[:first:first]
	r.finished = r.finished[first:]
	if !settled {
		r.finished = append(r.finished, some...)
	}
}

// resultNames are those of lock.settle_and_capture.
var resultNames = map[verdict]string{
	workDone: "done", workFailed: "retry", workRetry: "retry", workDead: "dead",
	workSnoozed: "new", workReturned: "new",
}

// settle settles finished, the first of those that are, and captures at most so many.
func (w *taskWorker) settle(ctx context.Context, finished []taskResult, captures int,
	since *time.Time,
) ([]db.Task, error) {
	params := calls.SettleAndCaptureParams{
		IDs:      []string{},
		Attempts: []int64{},
		Results:  []string{},
		Reports:  true,
		Max: clamp(
			captures,
		),
		QueueID:  w.queueID,
		Statuses: texts(w.Statuses),
		Owner:    &w.Owner,
		Since:    since,
		Shortest: w.ShortestPause,
		Longest:  w.LongestPause,
		MaxTries: clamp(w.MaxTries),
	}
	newest, failed := map[string]int64{}, false
	for _, f := range finished {
		newest[f.task.ID] = max(newest[f.task.ID], f.task.Attempt)
		failed = failed || f.verdict != workDone && f.verdict != workReturned
	}
	for _, f := range finished {
		if f.task.Attempt < newest[f.task.ID] { // It is stale.
			continue
		}
		params.IDs, params.Attempts = append(params.IDs, f.task.ID), append(
			params.Attempts,
			f.task.Attempt,
		)
		params.Results = append(params.Results, resultNames[f.verdict])
		if failed {
			params.Delays, params.Messages = append(params.Delays, f.delay), append(
				params.Messages,
				f.text,
			)
		}
	}
	var rows []calls.Task
	err := wake.Call(ctx, w.pool, func(conn db.DBTX) (err error) {
		rows, err = calls.New(conn).SettleAndCapture(ctx, params)
		if unspeakable(err) {
			for n, text := range params.Messages {
				params.Messages[n] = spelled(text)
			}
			rows, err = calls.New(conn).SettleAndCapture(ctx, params)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	answer := make([]db.Task, len(rows))
	for n, row := range rows {
		answer[n] = db.Task(row)
	}
	// What became of tasks comes first, and what is captured has a newer attempt.
	reports, settled := map[string]db.Task{}, time.Now()
	captured := slices.IndexFunc(answer, func(task db.Task) bool {
		return task.Status == db.TaskInProgress && newest[task.ID] != task.Attempt
	})
	if captured < 0 {
		captured = len(answer)
	}
	var told []TaskResult
	for _, task := range answer[:captured] {
		if newest[task.ID] == task.Attempt {
			reports[task.ID] = task
		} else { // a dead letter since just now
			told = append(told,
				TaskResult{Result{Outcome: OutcomeDead, Err: ErrTimedOut, Settled: settled}, task},
			)
		}
	}
	w.results.forget(len(finished), true)
	for _, f := range finished {
		now, reported := reports[f.task.ID]
		if f.task.Attempt < newest[f.task.ID] || reported && now.Status == db.TaskInProgress {
			f.stale()
		}
		result := f.result()
		result.Settled = settled
		switch {
		case f.verdict == workStale:
			result.Settled = time.Time{}
		case reported && now.Status == db.TaskFailed &&
			now.RetriesLeft != nil && *now.RetriesLeft == 0:
			result.Outcome = OutcomeDead
		case reported && now.Status != db.TaskInProgress:
			result.RetryAt = now.AvailableAt
		}
		told = append(told, TaskResult{result, f.task})
	}
	w.told(told)
	return answer[captured:], nil
}

// stale says that the result was dropped. What was given back is none.
func (o *outcome) stale() {
	if o.verdict != workReturned && o.verdict != workSnoozed {
		o.verdict, o.err = workStale, errors.Join(ErrTaskLost, o.err)
	}
}

// finish settles what is finished, and what is in work when that returns. What cannot be settled is
// lost. It returns when everybody has been told.
func (w *taskWorker) finish() (failed error) {
	for {
		last := w.end.calls.Err() != nil
		calm := w.results.calm()
		trying, cancel := w.end.calls, context.CancelFunc(func() {})
		if last { // All have one short time.
			trying, cancel = w.end.call(shortestCall)
		}
		failed = w.settleEach(trying)
		cancel()
		if calm && failed != nil && (last || !wake.Transient(failed) && w.end.calls.Err() == nil) {
			break
		} else if failed == nil && w.results.calm() && len(w.results.all()) == 0 {
			return nil
		}
		var again <-chan time.Time
		var over <-chan struct{}
		if failed != nil && !last {
			over = w.end.calls.Done()
		}
		if failed != nil {
			again = time.After(longestPause)
		}
		select {
		case <-w.results.stir:
		case <-again:
		case <-over:
		}
	}
	lost := w.results.all()
	w.results.forget(len(lost), true)
	told := make([]TaskResult, len(lost))
	for n, r := range lost {
		r.verdict, r.err = workLost, errors.Join(ErrUnsettled, r.err)
		told[n] = TaskResult{r.result(), r.task}
	}
	w.told(told)
	for !w.results.calm() {
		<-w.results.stir
	}
	return fmt.Errorf("%w: %d tasks: %v", ErrUnsettled, len(lost), failed)
}

// settleEach settles what is finished one by one, so that one that cannot be settled keeps no other
// from it. Those that ctx's end left out come first the next time.
func (w *taskWorker) settleEach(ctx context.Context) (failed error) {
	for left := len(w.results.all()); left > 0; {
		if ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
		attempts := w.results.first()
		calling, cancel := context.WithTimeout(ctx, min(w.CallTimeout, shortestCall))
		_, err := w.settle(calling, attempts, 0, nil)
		cancel()
		if err != nil {
			w.results.forget(len(attempts), false)
		}
		left -= len(attempts)
		failed = errors.Join(failed, err)
	}
	return failed
}
