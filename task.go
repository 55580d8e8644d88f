package locks

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/wake"
)

// A StateMachine moves tasks between statuses: Capture takes tasks exclusively, SetStatus releases them. Errors keep their SQLSTATE
// (*pgconn.PgError); those that are IsRetryable are the caller's to retry.
type StateMachine interface {
	// SetStatus gives a task another status, whoever has it: done, failed or new. A worker whose task may be taken over
	// (it has a timeout) settles with its attempt instead: db.Queries.SetStatus, or WorkTasks. It waits for a transaction that has
	// the task in hand. Errors: P0002 unknown task, 22023 bad id or status, 22P02 a status that there is not.
	SetStatus(ctx context.Context, taskID string, status db.TaskStatus) error
	// Capture takes at most limit tasks that are new or failed. No task means that none can be had now. It never waits. Errors:
	// 22023 bad queue or limit.
	Capture(ctx context.Context, limit int) ([]db.Task, error)
}

// NewStateMachine is the StateMachine of one queue, on a pool, a connection or a transaction.
func NewStateMachine(handle db.DBTX, queueID string) StateMachine {
	return stateMachine{db.New(handle), queueID}
}

type stateMachine struct {
	q       *db.Queries
	queueID string
}

func (m stateMachine) SetStatus(ctx context.Context, taskID string, status db.TaskStatus) error {
	_, err := m.q.SetStatus(ctx, db.SetStatusParams{ID: taskID, Status: status, QueueID: m.queueID})
	if err != nil {
		return fmt.Errorf("locks: set status of task %.60q: %w", taskID, err)
	}
	return nil
}

func (m stateMachine) Capture(ctx context.Context, limit int) ([]db.Task, error) {
	tasks, err := m.q.Capture(ctx, db.CaptureParams{Max: int32(min(max(limit, 0), 1<<31-1)), QueueID: m.queueID, Statuses: capturable})
	if err != nil {
		return nil, fmt.Errorf("locks: capture from queue %.60q: %w", m.queueID, err)
	}
	return tasks, nil
}

var capturable = []string{string(db.TaskNew), string(db.TaskFailed)}

// TaskOptions tune WorkTasks. Nil and the zero value are good.
type TaskOptions struct {
	Max      int           // most tasks in one batch. Default: 10.
	Statuses []string      // to capture from, in this order of preference. Default: new, failed.
	Owner    string        // who captures, for people to read. Default: a random name.
	Poll     time.Duration // the longest sleep of an idle worker, even when nobody wakes it. Default: 30 s.
	Blind    time.Duration // the longest sleep where notifications do not arrive, and, as nobody announces them, for workers that capture done tasks. Default: 1 s.
	OnError  func(error)   // told of every error that the loop survives, such as a lost connection. Default: nobody is.
}

// WorkTasks captures tasks of a queue, has work do them, settles them and captures the next, until ctx ends (it returns ctx's
// error) or an error comes that no pause can mend. Run as many as there should be workers; they share one listening connection.
//
// work returns one error per task, in their order, or nil when all are done: nil is done, anything else failed, and
// RetryAfter(delay, err) failed and not captured again before delay has passed (a task without a retry left is dead all the same). Its
// ctx ends with WorkTasks'; what it did by then is still settled. A panic goes through, and so does the one that answers
// another number of errors. Give tasks a timeout: a worker that dies
// keeps its tasks until their timeouts have passed. Work that takes longer has to call db.Queries.ExtendTask; when it was too
// slow and another worker has the task, its result is dropped.
//
// Settling and capturing are one round trip and one commit. With nothing to do a worker sleeps without a query until a task is
// created, falls due or times out by what it knew when it went to sleep, or Poll has passed.
func WorkTasks(ctx context.Context, pool *pgxpool.Pool, queueID string, opts *TaskOptions, work func(ctx context.Context, tasks []db.Task) []error) error {
	w := taskWorker{q: db.New(pool), queueID: queueID, work: work}
	if opts != nil {
		w.TaskOptions = *opts
	}
	if w.Max == 0 {
		w.Max = 10
	}
	if w.Statuses == nil {
		w.Statuses = capturable
	}
	if w.Owner == "" {
		w.Owner = rand.Text()
	}
	if w.Blind == 0 {
		w.Blind = time.Second
	}
	for _, status := range w.Statuses {
		if status == string(db.TaskDone) && (w.Poll == 0 || w.Poll > w.Blind) {
			w.Poll = w.Blind
		}
	}
	err := wake.Watch(ctx, pool, wake.Tasks, queueID, wake.Options{Poll: w.Poll, Blind: w.Blind, OnError: w.OnError}, w.look)
	// Watch ends only between two batches, or when the last one could not be settled for good.
	if len(w.ids) > 0 {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if settling := w.settle(ending); settling != nil {
			err = errors.Join(err, settling)
		}
	}
	return fmt.Errorf("locks: work on queue %.60q: %w", queueID, err)
}

type taskWorker struct {
	TaskOptions
	q       *db.Queries
	queueID string
	work    func(ctx context.Context, tasks []db.Task) []error

	// The results of the last batch, until they are settled.
	ids      []string
	attempts []int64
	results  []string
	delays   []time.Duration

	since  *time.Time    // where the last batch ended; nil: look from the beginning
	began  time.Time     // when it last looked from the beginning
	lasted time.Duration // and for how long

	asked time.Time     // when next was last called
	took  time.Duration // and for how long
	stuck time.Duration // how long to wait for a task that is due and cannot be had
}

const (
	grace         = 5 * time.Second // of settling after ctx has ended
	shortestStuck = 100 * time.Millisecond
	longestStuck  = time.Second
)

func (w *taskWorker) params() db.SettleAndCaptureParams {
	return db.SettleAndCaptureParams{
		Ids: notNil(w.ids), Attempts: notNil(w.attempts), Results: notNil(w.results), Delays: notNil(w.delays),
		Max: int32(min(max(w.Max, 0), 1<<31-1)), QueueID: w.queueID, Statuses: w.Statuses, Owner: &w.Owner,
		Since: w.since, Shortest: time.Second, Longest: time.Hour, MaxTries: 25,
	}
}

// notNil is the list as SQL wants it: an empty array, and not null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// look settles the last batch, captures the next and works on it.
func (w *taskWorker) look(ctx context.Context) (bool, time.Duration, error) {
	if ctx.Err() != nil {
		return false, 0, ctx.Err()
	}
	tasks, err := w.capture(ctx)
	if err != nil {
		return false, 0, err
	}
	if len(tasks) == 0 {
		due, err := w.next(ctx)
		return false, due, err
	}
	w.stuck = 0
	wake.Found(ctx)
	w.do(ctx, tasks)
	return true, 0, nil
}

// capture settles the last batch and captures the next: from where the last one ended when that was full, and else, and once a second, from
// the beginning. Under an old snapshot a look from the beginning can take long, and then it comes less often.
func (w *taskWorker) capture(ctx context.Context) ([]db.Task, error) {
	// When ctx ends during the call, the tasks are captured all the same, and somebody has to know.
	calling, cancel := outlive(ctx)
	defer cancel()
	began := time.Now()
	if began.Sub(w.began) >= max(time.Second, 20*w.lasted) {
		w.since = nil
	}
	tasks, err := w.q.SettleAndCapture(calling, w.params())
	if err != nil {
		return nil, err
	}
	w.ids, w.attempts, w.results, w.delays = w.ids[:0], w.attempts[:0], w.results[:0], w.delays[:0]
	if w.since == nil {
		w.began, w.lasted = began, time.Since(began)
	}
	w.since = nil
	if n := len(tasks); n > 0 && n == w.Max {
		// Where one may have timed out there may be more, which only a look from the beginning finds.
		if last := tasks[n-1]; last.Attempt == 1 || last.Timeout == nil {
			w.since = &last.AvailableAt
		}
	}
	return tasks, nil
}

// do works on a batch, and keeps the results.
func (w *taskWorker) do(ctx context.Context, tasks []db.Task) {
	errs := w.work(ctx, tasks)
	if errs != nil && len(errs) != len(tasks) {
		panic(fmt.Sprintf("locks: work returned %d errors for %d tasks", len(errs), len(tasks)))
	}
	for i, task := range tasks {
		result, delay := db.TaskDone, time.Duration(0)
		if errs != nil && errs[i] != nil {
			result = db.TaskFailed
			var retry *retryError
			if errors.As(errs[i], &retry) {
				delay = max(0, retry.delay)
			}
		}
		w.ids, w.attempts = append(w.ids, task.ID), append(w.attempts, task.Attempt)
		w.results, w.delays = append(w.results, string(result)), append(w.delays, delay)
	}
}

// outlive is ctx, ended a while later.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}

// next says how long it takes until a task falls due or times out. It is not asked more often than its own cost allows, which
// is high only while an old snapshot keeps dead rows from being removed.
func (w *taskWorker) next(ctx context.Context) (time.Duration, error) {
	if pause := 20*w.took - time.Since(w.asked); w.took > 5*time.Millisecond && pause > 0 {
		return pause, nil
	}
	w.asked = time.Now()
	due, err := w.q.NextTaskIn(ctx, db.NextTaskInParams{QueueID: w.queueID, Statuses: w.Statuses})
	w.took = time.Since(w.asked)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	if due[0] <= 0 {
		// Somebody's open transaction holds a task that is due. When it rolls back, nobody says so.
		w.stuck = min(max(2*w.stuck, shortestStuck), longestStuck)
		return w.stuck, nil
	}
	w.stuck = 0
	return due[0], nil
}

// settle writes the results of the last batch, and captures nothing. One that cannot be settled keeps no other from it.
func (w *taskWorker) settle(ctx context.Context) (err error) {
	for i := range w.ids {
		failed := retry(ctx, func() error {
			_, err := w.q.SetStatus(ctx, db.SetStatusParams{
				ID: w.ids[i], Status: db.TaskStatus(w.results[i]), Attempt: &w.attempts[i], QueueID: w.queueID, Delay: w.delays[i],
			})
			return err
		})
		var pg *pgconn.PgError
		if errors.As(failed, &pg) && pg.Code == "P0002" { // It was purged.
			continue
		}
		err = errors.Join(err, failed)
	}
	return err
}
