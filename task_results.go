package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed4787c507/locks/db"
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
	inWork   int          // tasks, and those that are being told of
	finished []taskResult // not settled yet

	telling atomic.Int32 // of other trouble
	apart   bool         // settle one by one, and apart from capturing, since both together failed
}

func (r *taskResults) enter(pieces int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inWork += pieces
}

// keep takes pieces of work for done, with their results.
func (r *taskResults) keep(pieces int, results []taskResult) {
	r.mu.Lock()
	r.inWork -= pieces
	r.finished = append(r.finished, results...)
	r.mu.Unlock()
	select {
	case r.stir <- struct{}{}:
	default: // It has not yet looked after the last one, and will look after both.
	}
}

// room says how many tasks may be captured.
func (r *taskResults) room(size int, batches bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if batches && r.inWork > 0 {
		return 0
	}
	return size - r.inWork
}

// calm says that nothing is in work, and nobody is being told.
func (r *taskResults) calm() bool { return r.room(1, true) > 0 && r.telling.Load() == 0 }

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
var resultNames = map[verdict]string{workDone: "done", workFailed: "retry", workRetry: "retry", workDead: "dead", workReturned: "new"}

// settle settles finished, the first of those that are, and captures at most so many.
func (w *taskWorker) settle(ctx context.Context, finished []taskResult, captures int, since *time.Time) ([]db.Task, error) {
	params := db.SettleAndCaptureParams{
		Ids: []string{}, Attempts: []int64{}, Results: []string{}, Stale: true,
		Max: int32(min(captures, 1<<31-1)), QueueID: w.queueID, Statuses: w.Statuses, Owner: &w.Owner, Since: since,
		Shortest: w.ShortestPause, Longest: w.LongestPause, MaxTries: int32(min(max(w.MaxTries, 0), 1<<31-1)),
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
		params.Ids, params.Attempts = append(params.Ids, f.task.ID), append(params.Attempts, f.task.Attempt)
		params.Results = append(params.Results, resultNames[f.verdict])
		if failed {
			params.Delays, params.Messages = append(params.Delays, f.delay), append(params.Messages, f.text)
		}
	}
	var answer []db.Task
	err := wake.Call(ctx, w.pool, func(q *db.Queries) (err error) {
		answer, err = q.SettleAndCapture(ctx, params)
		if unspeakable(err) {
			for n, text := range params.Messages {
				params.Messages[n] = spelled(text)
			}
			answer, err = q.SettleAndCapture(ctx, params)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// What is stale comes first, and what is captured has a newer attempt.
	stale := 0
	for stale < len(answer) && newest[answer[stale].ID] == answer[stale].Attempt {
		delete(newest, answer[stale].ID)
		stale++
	}
	w.results.forget(len(finished), true)
	for _, f := range finished {
		if f.task.Attempt != newest[f.task.ID] && f.verdict != workReturned {
			f.verdict = workStale
		}
		w.settled(f)
	}
	return answer[stale:], nil
}

// settled tells of a task that need not be kept any more.
func (w *taskWorker) settled(r taskResult) {
	switch r.verdict {
	case workStale:
		r.err = errors.Join(ErrTaskLost, r.err)
	case workLost:
		r.err = errors.Join(ErrUnsettled, r.err)
	}
	if r.err != nil {
		left := r.task.RetriesLeft
		last := left != nil && *left == 0 || left == nil && int(r.task.Tries) >= w.MaxTries
		w.report(&TaskError{Task: r.task, Err: r.err, Outcome: r.public(last), RetryIn: r.delay})
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
	for _, r := range lost {
		r.verdict = workLost
		w.settled(r)
	}
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
