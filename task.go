package locks

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/internal/wake"
)

// A StateMachine moves tasks between statuses: Capture takes tasks exclusively, SetStatus releases
// them. TaskQueue is one.
type StateMachine interface {
	// SetStatus gives a task another status: done, failed or new.
	SetStatus(ctx context.Context, taskID string, status db.TaskStatus) error
	// Capture takes at most limit tasks that are new or failed.
	Capture(ctx context.Context, limit int) ([]db.Task, error)
}

var _ StateMachine = TaskQueue{}

// A TaskQueue is the StateMachine of one queue in the database.
type TaskQueue struct {
	handle  db.DBTX
	queueID string
}

// NewStateMachine returns the TaskQueue of a queue ("": "default").
//
// On a *pgxpool.Pool every call is a transaction of its own, and is repeated when the database asks
// for it (see IsRetryable), up to 10 times. On a pgx.Tx it belongs to that transaction: rolled
// back, it never happened, and repeating is up to the caller. On a *pgx.Conn it belongs to the
// transaction that is open there, or is one of its own, and is not repeated.
func NewStateMachine(handle db.DBTX, queueID string) TaskQueue {
	return TaskQueue{handle, cmp.Or(queueID, defaultQueue)}
}

const defaultQueue = "default"

// SetStatus gives a task another status, whoever has it: done, failed or new. A worker whose task
// may be taken over, since it has a timeout, settles with its attempt instead. For that use
// db.Queries.SetStatus, or WorkTasks.
//
// Contention: it waits for a transaction that has the task in hand. On a pool the status is set
// when SetStatus returns, and the call is repeated as NewStateMachine says. On a transaction it is
// set when that commits.
//
// Errors are wrapped. errors.As reaches the *pgconn.PgError with its SQLSTATE: P0002 unknown task,
// 22023 bad id or status, 22P02 a status that there is not.
func (m TaskQueue) SetStatus(ctx context.Context, taskID string, status db.TaskStatus) error {
	err := m.call(ctx, func(q *db.Queries) error {
		_, err := q.SetStatus(ctx, db.SetStatusParams{ID: taskID, Status: status, QueueID: m.queueID})
		return err
	})
	if err != nil {
		return fmt.Errorf("locks: set status of task %.60q: %w", taskID, err)
	}
	return nil
}

// Capture takes at most limit tasks that are new or failed. No task means that none can be had now.
//
// Contention: it never waits, and leaves out what others are capturing. On a pool the tasks are in
// progress when Capture returns, and the call is repeated as NewStateMachine says. On a transaction
// they are in progress when that commits, and until then nobody else gets them.
//
// Errors are wrapped. errors.As reaches the *pgconn.PgError with its SQLSTATE: 22023 bad queue or
// limit.
func (m TaskQueue) Capture(ctx context.Context, limit int) (tasks []db.Task, err error) {
	err = m.call(ctx, func(q *db.Queries) (err error) {
		tasks, err = q.Capture(ctx, db.CaptureParams{Max: int32(min(max(limit, 0), 1<<31-1)), QueueID: m.queueID, Statuses: capturable})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("locks: capture task queue %.60q: %w", m.queueID, err)
	}
	return tasks, nil
}

func (m TaskQueue) call(ctx context.Context, once func(*db.Queries) error) error {
	if _, whole := m.handle.(*pgxpool.Pool); whole {
		return retry(ctx, func() error { return once(db.New(m.handle)) })
	}
	return once(db.New(m.handle))
}

var capturable = []string{string(db.TaskNew), string(db.TaskFailed)}

// ErrTaskLost is the cause of the end of a handler's context when its attempt can be another's by
// now. OnError is told of it then.
var ErrTaskLost = errors.New("the task is lost: its time ran out (use a longer timeout, or Extend), or somebody else has settled it")

// A TaskError is what OnError is told of a task that failed.
type TaskError struct {
	Task db.Task // as it was captured
	Err  error   // the handler's, a *PanicError, or ErrTaskLost
}

// Error names the task and its queue.
func (e *TaskError) Error() string {
	return fmt.Sprintf("locks: work on task %.60q of queue %.60q, attempt %d: %v", e.Task.ID, e.Task.QueueID, e.Task.Attempt, e.Err)
}

// Unwrap returns Err.
func (e *TaskError) Unwrap() error { return e.Err }

// TaskOptions tune WorkTasks and WorkTaskBatches. Nil and the zero value are good.
type TaskOptions struct {
	Concurrency int      // WorkTasks: how many tasks are in work at once. Default: 10.
	BatchSize   int      // WorkTaskBatches: most tasks in one batch. Default: 10.
	Statuses    []string // to capture from, in this order of preference. Default: new, failed.
	Owner       string   // who captures, for people to read. Default: a random name.

	// Extend extends the tasks that have a timeout while their handler runs, every third of it. The
	// handler's context ends before the attempt can be another's, with the cause ErrTaskLost. That
	// is when extending fails until a tenth of the timeout is left, or when somebody else has
	// settled the task. Then what the handler returns counts only if nobody has taken the task
	// over. Extending uses none of the pool's connections. Default: false.
	Extend bool

	// ShortestPause is after the first try that failed; twice as long each time, with jitter.
	// Default: 1 s.
	ShortestPause time.Duration
	LongestPause  time.Duration // between two tries. Default: 1 h.
	// MaxTries is of a task without a limit of its own, and then it is a dead letter. Default: 25.
	MaxTries int

	Grace       time.Duration // for running handlers after ctx has ended. Default: 10 s.
	CallTimeout time.Duration // of each call that the loop makes by itself. Default: 10 s.
	Poll        time.Duration // the longest sleep of an idle worker. Default: 30 s.
	// Blind is the longest sleep where notifications do not arrive. It is also that of workers that
	// capture done tasks, since nobody announces these. Default: 1 s.
	Blind time.Duration

	// OnError is told of each error of a handler (*TaskError), and of the loop's own trouble, such
	// as a server that cannot be reached. It hears of that at once, and while it lasts after pauses
	// that grow to a minute. Handlers' goroutines call it. Default: slog's default logger.
	OnError func(ctx context.Context, err error)
}

// WorkTasks captures tasks of a queue ("": "default"), calls work for each, up to Concurrency at
// once, and settles them. It goes on until ctx ends, and returns ctx's error then, wrapped. It also
// ends with an error that no pause can mend, such as missing rights (42501). A refused login is
// told to OnError and tried again. Run it in as many processes as there should be.
//
// What work returns settles the task:
//
//   - nil: done.
//   - an error or a panic: failed, with the error's text as the task's message. It is captured
//     again after a pause that doubles with its tries. It is a dead letter when its retries_left
//     are used up. Without such a limit it is one after MaxTries, those included whose worker died.
//   - RetryAfter(delay, err): the same, with this pause.
//   - Permanent(err): a dead letter at once.
//
// Stopping: when ctx ends nothing more is captured. work's context does not end with ctx, and lasts
// for nine tenths of Grace. What work returns in that time counts. Work that uses ctx instead fails
// at once, and that counts, too. A task that fails after that goes back as new, as if it had not
// been captured. WorkTasks waits for every handler to return.
//
// Timeouts: give tasks one. A worker that dies keeps its tasks until their timeouts have passed.
// Work that takes longer needs Extend. When it was too slow and another worker has the task, its
// result is dropped.
//
// Unknown outcomes: a call whose outcome is unknown, because the connection broke or CallTimeout
// passed, is repeated. What was settled stays settled. The tasks that it may have captured are
// nobody's, and are taken over when their timeouts have passed.
//
// Cost: settling and capturing are one round trip and one commit, for all tasks that were finished
// meanwhile. A task that comes alone takes three to six calls. With nothing to do a worker sleeps
// without a query. It wakes when a task is created, when one falls due or times out by what it knew
// when it went to sleep, or when Poll has passed.
// All loops of a process and pool share one listening connection, beside the pool's own. While they
// extend they share one or two more.
func WorkTasks(ctx context.Context, pool *pgxpool.Pool, queueID string, work func(ctx context.Context, task db.Task) error, opts *TaskOptions) error {
	w := newTaskWorker(pool, queueID, opts)
	w.size = cmp.Or(w.Concurrency, 10)
	w.work = func(ctx context.Context, tasks []db.Task) []error { return []error{work(ctx, tasks[0])} }
	return w.run(ctx, pool)
}

// WorkTaskBatches is WorkTasks for work that is done on many tasks at once. work gets up to
// BatchSize tasks, and the next when it has returned. It leaves the slice as it is, and returns one
// error per task, in their order, or nil when all are done. A panic, or another number of errors,
// fails all of the batch. With Extend, its context ends when one of the tasks is lost.
func WorkTaskBatches(ctx context.Context, pool *pgxpool.Pool, queueID string, work func(ctx context.Context, tasks []db.Task) []error, opts *TaskOptions) error {
	w := newTaskWorker(pool, queueID, opts)
	w.size, w.batches, w.work = cmp.Or(w.BatchSize, 10), true, work
	return w.run(ctx, pool)
}

type taskWorker struct {
	TaskOptions
	pool    *pgxpool.Pool
	own     *wake.Own
	queueID string
	size    int  // of what is in work at most
	batches bool // work gets all that one call captured, and the next when it has returned
	work    func(ctx context.Context, tasks []db.Task) []error
	end     *graceful
	stir    chan struct{} // receives after work has returned

	mu       sync.Mutex
	running  int          // tasks in work
	finished []taskResult // not settled yet

	busy bool // it has told that there is no room

	mark   *time.Time    // where to look from; nil: from the beginning
	short  bool          // it has last looked from the mark
	began  time.Time     // when it last looked from the beginning
	lasted time.Duration // and for how long
	marked time.Duration // how long after that it looks from the mark

	asked time.Time     // when next was last called
	took  time.Duration // and for how long
	stuck time.Duration // how long to wait for a task that is due and cannot be had
	apart bool          // settle one by one, and apart from capturing, since both together failed
}

// A taskResult is how a task is to be settled: see lock.settle_and_capture.
type taskResult struct {
	task    db.Task
	result  string
	delay   time.Duration
	message string
}

const (
	shortestStuck = 100 * time.Millisecond
	longestStuck  = time.Second
	// Work that takes longer than this takes the worker off the list of the idle, when it has no room.
	busyAfter = 10 * time.Millisecond
	// Tasks may be committed in another order than they become available in.
	overlap = 50 * time.Millisecond
)

func newTaskWorker(pool *pgxpool.Pool, queueID string, opts *TaskOptions) *taskWorker {
	w := &taskWorker{pool: pool, queueID: cmp.Or(queueID, defaultQueue), stir: make(chan struct{}, 1)}
	if opts != nil {
		w.TaskOptions = *opts
	}
	if w.Statuses == nil {
		w.Statuses = capturable
	}
	if w.OnError == nil {
		w.OnError = warn
	}
	w.Owner = cmp.Or(w.Owner, rand.Text())
	w.ShortestPause, w.LongestPause = cmp.Or(w.ShortestPause, time.Second), cmp.Or(w.LongestPause, time.Hour)
	w.MaxTries = cmp.Or(w.MaxTries, 25)
	w.Grace, w.CallTimeout = cmp.Or(w.Grace, defaultGrace), cmp.Or(w.CallTimeout, defaultCallTimeout)
	w.Blind = cmp.Or(w.Blind, time.Second)
	if slices.Contains(w.Statuses, string(db.TaskDone)) && (w.Poll == 0 || w.Poll > w.Blind) {
		w.Poll = w.Blind
	}
	return w
}

// run works until Watch ends, and then sees to what is in work or not settled.
func (w *taskWorker) run(ctx context.Context, pool *pgxpool.Pool) error {
	own, leave := wake.UseOwn(pool)
	defer leave()
	w.own, w.end = own, newGraceful(ctx, w.Grace)
	defer w.end.end()
	err := fmt.Errorf("%d tasks at once", w.size)
	if w.size > 0 {
		err = wake.Watch(ctx, pool, wake.Tasks, w.queueID, wake.Options{
			Poll: w.Poll, Blind: w.Blind, CallTimeout: w.CallTimeout, Stir: w.stir, Due: w.next, OnError: func(err error) { w.OnError(ctx, w.named(err)) },
		}, w.look)
	}
	w.end.begin()
	if unsettled := w.finish(); unsettled != nil {
		err = errors.Join(err, unsettled)
	}
	return w.named(err)
}

func (w *taskWorker) named(err error) error {
	return fmt.Errorf("locks: work on task queue %.60q: %w", w.queueID, err)
}

// look waits until there is room for a task, settles what is finished, captures, and sets to work.
func (w *taskWorker) look(ctx context.Context) (bool, error) {
	free, finished := w.state()
	var busy <-chan time.Time
	if free == 0 && !w.busy {
		busy = time.After(busyAfter)
	}
	for free == 0 {
		select {
		case <-w.stir:
		case <-busy:
			w.busy = true
			return false, wake.ErrBusy
		case <-ctx.Done():
			return false, ctx.Err()
		}
		free, finished = w.state()
	}
	w.busy = false
	var failed error
	if w.apart {
		trying, cancel := w.end.call(shortestCall)
		failed, finished = w.settleEach(trying), nil
		cancel()
		w.apart = failed != nil
	}
	asked := time.Now()
	tasks, err := w.capture(free, finished)
	if err != nil {
		w.apart = w.apart || len(finished) > 0
		return false, err
	}
	if len(tasks) == 0 {
		return false, failed
	}
	w.stuck = 0
	switch {
	case ctx.Err() != nil: // It ended meanwhile.
		w.mu.Lock()
		for _, task := range tasks {
			w.finished = append(w.finished, taskResult{task: task, result: "new"})
		}
		w.mu.Unlock()
	case w.batches:
		w.start(ctx, tasks, asked)
	default:
		for n := range tasks {
			w.start(ctx, tasks[n:n+1], asked)
		}
	}
	return true, nil
}

// state says for how many tasks there is room, and what is finished.
func (w *taskWorker) state() (free int, finished []taskResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.batches && w.running > 0 {
		return 0, w.finished
	}
	return w.size - w.running, w.finished
}

// capture settles what is finished and captures: after a full batch from where that ended, after
// another from shortly before its end, and now and then from the beginning. Under an old snapshot a
// look from the beginning passes all that was done since, so it gets a twentieth of the time.
func (w *taskWorker) capture(free int, finished []taskResult) ([]db.Task, error) {
	// When the loop's context ends during the call, the tasks are captured all the same, and
	// somebody has to know.
	calling, cancel := w.end.call(w.CallTimeout)
	defer cancel()
	began := time.Now()
	since := w.mark
	if began.Sub(w.began) >= w.marked {
		since = nil
	}
	w.short = since != nil
	tasks, err := w.settle(calling, finished, free, since)
	if err != nil {
		return nil, err
	}
	if since == nil {
		w.began, w.lasted = began, time.Since(began)
	}
	w.marked = 20 * w.lasted
	if len(tasks) == 0 {
		return nil, nil
	}
	last := tasks[len(tasks)-1]
	before := last.AvailableAt.Add(-overlap)
	switch {
	case len(tasks) < free && before.Year() >= 0: // Else there may be no such time.
		w.mark = &before
	case len(tasks) == free && (last.Attempt == 1 || last.Timeout == nil):
		w.mark, w.marked = &last.AvailableAt, max(time.Second, w.marked)
	default:
		// Where one may have timed out there may be more, which only a look from the beginning finds.
		w.mark = nil
	}
	return tasks, nil
}

// settle settles finished, the first of those that are, and captures at most so many.
func (w *taskWorker) settle(ctx context.Context, finished []taskResult, captures int, since *time.Time) ([]db.Task, error) {
	params := db.SettleAndCaptureParams{
		Ids: []string{}, Attempts: []int64{}, Results: []string{},
		Max: int32(min(captures, 1<<31-1)), QueueID: w.queueID, Statuses: w.Statuses, Owner: &w.Owner, Since: since,
		Shortest: w.ShortestPause, Longest: w.LongestPause, MaxTries: int32(min(max(w.MaxTries, 0), 1<<31-1)),
	}
	newest, failed := map[string]int64{}, false
	for _, f := range finished {
		newest[f.task.ID] = max(newest[f.task.ID], f.task.Attempt)
		failed = failed || f.delay != 0 || f.message != ""
	}
	for _, f := range finished {
		if f.task.Attempt < newest[f.task.ID] { // It timed out, and was captured here once more.
			continue
		}
		params.Ids, params.Attempts = append(params.Ids, f.task.ID), append(params.Attempts, f.task.Attempt)
		params.Results = append(params.Results, f.result)
		if failed {
			params.Delays, params.Messages = append(params.Delays, f.delay), append(params.Messages, f.message)
		}
	}
	var tasks []db.Task
	err := wake.Call(ctx, w.pool, func(q *db.Queries) (err error) {
		tasks, err = q.SettleAndCapture(ctx, params)
		return err
	})
	if err == nil {
		w.mu.Lock()
		w.finished = w.finished[len(finished):]
		w.mu.Unlock()
	}
	return tasks, err
}

// next says how long it takes until a task falls due or times out. It is not asked more often than
// its own cost allows, which is high only while an old snapshot keeps dead rows from being removed.
func (w *taskWorker) next(ctx context.Context) (time.Duration, error) {
	if pause := 20*w.took - time.Since(w.asked); w.took > time.Millisecond && pause > 0 {
		return pause, nil
	}
	calling, cancel := context.WithTimeout(ctx, w.CallTimeout)
	defer cancel()
	w.asked = time.Now()
	var due []time.Duration
	err := wake.Call(calling, w.pool, func(q *db.Queries) (err error) {
		due, err = q.NextTaskIn(calling, db.NextTaskInParams{QueueID: w.queueID, Statuses: w.Statuses})
		return err
	})
	w.took = time.Since(w.asked)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	if due[0] <= 0 {
		// Somebody's open transaction holds a task that is due, or it is behind the mark. When it
		// rolls back, nobody says so.
		if -due[0] >= overlap {
			w.marked = 0
			if w.short {
				w.asked = time.Time{} // the next look has its own answer
				return time.Millisecond, nil
			}
		}
		w.stuck = min(max(2*w.stuck, shortestStuck), longestStuck)
		return w.stuck, nil
	}
	w.stuck = 0
	return due[0], nil
}

// start sets to work on tasks that were asked for at a time.
func (w *taskWorker) start(ctx context.Context, tasks []db.Task, asked time.Time) {
	w.mu.Lock()
	w.running += len(tasks)
	w.mu.Unlock()
	given, stop := w.extend(tasks, asked)
	var errs []error
	go protect(func() error {
		errs = w.work(given, tasks)
		if errs == nil {
			errs = make([]error, len(tasks))
		}
		if len(errs) != len(tasks) {
			return fmt.Errorf("the handler returned %d errors for %d tasks: return one for each, or nil", len(errs), len(tasks))
		}
		for _, err := range errs {
			sound(err)
		}
		return nil
	}, func(failed error) {
		if failed != nil {
			errs = slices.Repeat([]error{failed}, len(tasks))
		}
		w.returned(ctx, tasks, errs, stop())
	})
}

// extend is the handlers' context, and with Extend it extends the tasks until stop is called, which
// says which are lost.
func (w *taskWorker) extend(tasks []db.Task, asked time.Time) (ctx context.Context, stop func() (lost []bool)) {
	ctx = w.end.handlers
	stops := make([]func() bool, len(tasks))
	for n, task := range tasks {
		if !w.Extend || task.Timeout == nil {
			continue
		}
		ctx, stops[n] = startHeartbeat(ctx, heldUntil(asked, *task.Timeout), *task.Timeout, ErrTaskLost, func(ctx context.Context) (extended bool, err error) {
			err = w.own.Call(ctx, func(q *db.Queries) (err error) {
				extended, err = q.ExtendTask(ctx, db.ExtendTaskParams{ID: task.ID, Attempt: task.Attempt, Timeout: *task.Timeout, QueueID: task.QueueID})
				return err
			})
			return extended, err
		})
	}
	return ctx, func() []bool {
		lost := make([]bool, len(tasks))
		for n, stop := range slices.Backward(stops) {
			lost[n] = stop != nil && stop()
		}
		return lost
	}
}

// returned keeps what a handler returned, until it is settled, and tells of errors.
func (w *taskWorker) returned(ctx context.Context, tasks []db.Task, errs []error, lost []bool) {
	results := make([]taskResult, len(tasks))
	for n, task := range tasks {
		results[n] = w.result(task, errs[n])
		err := errs[n]
		if lost[n] {
			err = errors.Join(ErrTaskLost, err)
		}
		if err != nil {
			w.OnError(ctx, &TaskError{task, err})
		}
	}
	w.mu.Lock()
	w.finished = append(w.finished, results...)
	w.running -= len(tasks)
	w.mu.Unlock()
	select {
	case w.stir <- struct{}{}:
	default: // It has not yet looked after the last one, and will look after both.
	}
}

// result is how a task is settled whose handler returned err.
func (w *taskWorker) result(task db.Task, err error) taskResult {
	if err == nil {
		return taskResult{task: task, result: "done"}
	}
	if w.end.handlers.Err() != nil { // It was stopped.
		return taskResult{task: task, result: "new"}
	}
	_, delay, never := wishes(err)
	if never {
		return taskResult{task: task, result: "dead", message: message(err)}
	}
	return taskResult{task: task, result: "retry", delay: delay, message: message(err)}
}

// finish settles what is finished, and what is in work when that returns.
func (w *taskWorker) finish() error {
	for {
		last := w.end.calls.Err() != nil
		w.mu.Lock()
		running := w.running
		w.mu.Unlock()
		trying, cancel := w.end.calls, context.CancelFunc(func() {})
		if last { // All have one short time.
			trying, cancel = w.end.call(shortestCall)
		}
		failed := w.settleEach(trying)
		cancel()
		if running == 0 && (failed == nil || last || !wake.Transient(failed) && w.end.calls.Err() == nil) {
			return failed
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
		case <-w.stir:
		case <-again:
		case <-over:
		}
	}
}

// settleEach settles what is finished one by one, so that one that cannot be settled keeps no other
// from it. Those that ctx's end left out come first the next time.
func (w *taskWorker) settleEach(ctx context.Context) (failed error) {
	w.mu.Lock()
	finished := len(w.finished)
	w.mu.Unlock()
	for range finished {
		if ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
		failed = errors.Join(failed, w.settleFirst(ctx))
	}
	return failed
}

// settleFirst settles the first of those that are finished, or puts it behind the others.
func (w *taskWorker) settleFirst(ctx context.Context) error {
	w.mu.Lock()
	first := w.finished[:1]
	w.mu.Unlock()
	calling, cancel := context.WithTimeout(ctx, min(w.CallTimeout, shortestCall))
	defer cancel()
	_, err := w.settle(calling, first, 0, nil)
	if err != nil {
		w.mu.Lock()
		w.finished = append(w.finished[1:], first[0])
		w.mu.Unlock()
	}
	return err
}
