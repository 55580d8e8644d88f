package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
)

// A StateMachine moves tasks between statuses. Its SetStatus overrules whoever has the task, so a
// worker that was taken over can settle what another is at: for workers there is TaskQueue.Settle.
// Capture takes tasks exclusively, SetStatus releases them. TaskQueue is one.
type StateMachine interface {
	// SetStatus gives a task another status, whoever has it: done, failed or new.
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

// NewTaskQueue returns the TaskQueue of a queue ("": "default").
//
// On a *pgxpool.Pool every call is a transaction of its own, and is repeated when the database asks
// for it (see IsRetryable), up to 10 times. On a pgx.Tx it belongs to that transaction: rolled
// back, it never happened, and repeating is up to the caller. On a *pgx.Conn it belongs to the
// transaction that is open there, or is one of its own, and is not repeated.
func NewTaskQueue(handle db.DBTX, queueID string) TaskQueue {
	return TaskQueue{handle, cmp.Or(queueID, defaultQueue)}
}

const defaultQueue = "default"

// SetStatus gives a task another status, whoever has it: done, failed or new. It is for people and
// for tasks without a timeout. A worker whose task may be taken over uses Settle.
//
// Contention: it waits for a transaction that has the task in hand. On a pool the status is set
// when SetStatus returns, and the call is repeated as NewTaskQueue says. On a transaction it is
// set when that commits.
//
// Errors are wrapped. errors.As reaches the *pgconn.PgError with its SQLSTATE: P0002 unknown task,
// 22023 bad id or status, 22P02 a status that there is not.
func (m TaskQueue) SetStatus(ctx context.Context, taskID string, status db.TaskStatus) error {
	err := call(ctx, m.handle, func(q *db.Queries) error {
		_, err := q.SetStatus(ctx,
			db.SetStatusParams{ID: taskID, Status: status, QueueID: m.queueID},
		)
		return err
	})
	if err != nil {
		return fmt.Errorf("locks: set status of task %.60q: %w", taskID, err)
	}
	return nil
}

// Settle gives a captured task another status: done, failed or new. It returns an error that is
// ErrTaskLost, and changes nothing, when the attempt is over: its time ran out and another worker
// captured the task, or it was settled otherwise. Everything else is as with SetStatus.
func (m TaskQueue) Settle(ctx context.Context, task db.Task, status db.TaskStatus) error {
	settled := false
	err := call(ctx, m.handle, func(q *db.Queries) (err error) {
		settled, err = q.SetStatus(
			ctx,
			db.SetStatusParams{
				ID: task.ID, Status: status, Attempt: &task.Attempt, QueueID: m.queueID,
			},
		)
		return err
	})
	if err == nil && !settled {
		err = ErrTaskLost
	}
	if err != nil {
		return fmt.Errorf("locks: settle task %.60q, attempt %d: %w", task.ID, task.Attempt, err)
	}
	return nil
}

// Capture takes at most limit tasks that are new or failed. No task means that none can be had now.
//
// Contention: it never waits, and leaves out what others are capturing. On a pool the tasks are in
// progress when Capture returns, and the call is repeated as NewTaskQueue says. On a transaction
// they are in progress when that commits, and until then nobody else gets them.
//
// Errors are wrapped. errors.As reaches the *pgconn.PgError with its SQLSTATE: 22023 bad queue or
// limit.
func (m TaskQueue) Capture(ctx context.Context, limit int) (tasks []db.Task, err error) {
	err = call(ctx, m.handle, func(q *db.Queries) (err error) {
		tasks, err = q.Capture(ctx, db.CaptureParams{Max: clamp(limit), QueueID: m.queueID})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("locks: capture task queue %.60q: %w", m.queueID, err)
	}
	return tasks, nil
}

var capturable = []db.TaskStatus{db.TaskNew, db.TaskFailed}

func texts(statuses []db.TaskStatus) []string {
	texts := make([]string, len(statuses))
	for n, status := range statuses {
		texts[n] = string(status)
	}
	return texts
}

// ErrTaskLost is the cause of the end of a handler's context when its attempt can be another's by
// now. Settled is told of it when that was so, and the handler's result was dropped.
var ErrTaskLost = errors.New("the task is lost: its time ran out, or somebody else has settled it")

// TaskOptions tune WorkTasks and WorkTaskBatches. Nil and the zero value are good.
type TaskOptions struct {
	WorkerOptions
	// Concurrency is how many handlers run at once. Default: 10, and 1 of WorkTaskBatches.
	Concurrency int
	// Statuses to capture from, in this order of preference. Default: new, failed.
	Statuses []db.TaskStatus
	Owner    string // who captures, for people to read. Default: host name and process id.

	// NoExtend keeps a handler to its task's timeout. Otherwise the tasks that have a timeout are
	// extended while their handler runs, every third of it; those of a batch together, by the
	// shortest of their timeouts. Either way the handler's context ends before the attempt can be
	// another's, with the cause ErrTaskLost. When tasks are extended, that is when extending fails
	// until a tenth of the timeout is left, or when somebody else has settled the task. What the
	// handler returns then counts only if nobody has taken the task over. Extending uses none of
	// the pool's connections. Default: false.
	NoExtend bool

	// ShortestPause is after the first try that failed; twice as long each time, with jitter.
	// Default: 1 s.
	ShortestPause time.Duration
	LongestPause  time.Duration // between two tries. Default: 1 h.
	// MaxTries is of a task without a limit of its own, and then it is a dead letter. Default: 25.
	MaxTries int

	// Settled is told what became of each task, once: when that is in the database, or when it was
	// dropped (ErrTaskLost) or could not be settled (ErrUnsettled). It is also told of tasks that
	// this worker found out of time, and that have no try left (ErrTimedOut). It is called in
	// another goroutine, which takes up the room of a handler until it returns. Its ctx lasts for
	// CallTimeout, also when the loop's has ended. When it panics, slog's default logger gets that.
	// Default: what has an Err goes to slog's default logger.
	Settled func(ctx context.Context, result TaskResult)
}

// WorkTasks captures tasks of a queue ("": "default"), calls work for each, up to Concurrency at
// once, and settles them. It goes on until ctx ends, and returns ctx's error then, wrapped. It also
// ends with an error that no pause can mend, such as missing rights (42501). A refused login is
// told to OnError and tried again. Run it in as many processes as there should be.
//
// What work returns settles the task:
//
//   - nil: done.
//   - an error, a panic or the end of its goroutine: failed, with the error's text as the task's
//     message. It is captured again after a pause that doubles with its tries. It is a dead letter
//     when its retries_left are used up. Without such a limit it is one after MaxTries, those
//     included whose worker died.
//   - RetryAfter(delay, err): the same, with this pause.
//   - Permanent(err): a dead letter at once.
//   - Snooze(delay): new, and not captured before delay has passed. It costs no try.
//
// Stopping: when ctx ends nothing more is captured. work's context does not end with ctx, and lasts
// for nine tenths of Grace. What work returns in that time counts. Work that uses ctx instead fails
// at once, and that counts, too. A task that fails after that goes back as new, as if it had not
// been captured. WorkTasks waits for every handler to return. When results cannot be settled by the
// end of Grace, it returns an error that is ErrUnsettled and not ctx's. These tasks are captured
// again when their timeouts have passed.
//
// Timeouts: a worker that dies keeps its tasks until their timeouts have passed, 5 minutes unless
// they were made with another. A worker that lives extends what it works on, however long that
// takes (NoExtend). When that fails, work's context ends before another worker can have the task.
// A result that comes too late is dropped, and Settled is told ErrTaskLost.
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
func WorkTasks(ctx context.Context, pool *pgxpool.Pool, queueID string,
	work func(ctx context.Context, task db.Task) error, opts *TaskOptions,
) error {
	w := newTaskWorker(pool, queueID, opts)
	w.Concurrency = cmp.Or(w.Concurrency, 10)
	w.one(work)
	return w.run(ctx)
}

// WorkTaskBatches is WorkTasks for work that is done on many tasks at once. work gets up to size
// tasks. It leaves the slice as it is, and returns one error per task, in their order, or nil when
// all are done. A panic, or another number of errors, fails all of the batch. Its context ends when
// one of the tasks is lost.
func WorkTaskBatches(ctx context.Context, pool *pgxpool.Pool, queueID string, size int,
	work func(ctx context.Context, tasks []db.Task) []error, opts *TaskOptions,
) error {
	w := newTaskWorker(pool, queueID, opts)
	if size < 1 {
		return w.named(fmt.Errorf("the batches' size is %d: pass at least 1", size))
	}
	w.Concurrency, w.size, w.work, w.handler = cmp.Or(w.Concurrency, 1), size, work, work != nil
	return w.run(ctx)
}
