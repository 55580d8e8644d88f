package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks/db"
)

// A Queue is a task queue whose tasks all have a payload of one type. Declare it once, as a
// package's variable, and create and work by it: so both sides agree on what it says. Payloads are
// kept as JSON.
type Queue[T any] struct {
	Name string // Default: "default".
	// Timeout is for how long a dead worker keeps a task. A worker that lives extends it. For tasks
	// that never time out use db.Queries.CreateTask. Default: 5 minutes.
	Timeout time.Duration
	// Tries is how often a task is tried, those included whose worker died. Then it is a dead
	// letter. Default: as often as its worker says (TaskOptions.MaxTries, 25).
	Tries int
}

// A Task is a captured task with its payload.
type Task[T any] struct {
	db.Task
	Payload T
}

// CreateOptions are those of one task. Nil and the zero value are good.
type CreateOptions struct {
	Delay   time.Duration // from now on it is not captured for so long. Default: 0.
	At      time.Time     // before this it is not captured; a Delay comes first. Default: now.
	Tries   int           // in place of the queue's. Default: the queue's.
	Timeout time.Duration // in place of the queue's. Default: the queue's.
	// Key is what the task is about, such as a customer. Of the tasks of one key no more are in
	// progress at once than db.Queries.LimitQueue allows, over all workers: 1 without it.
	// Default: none.
	Key string
	// Again makes a task that is done new, with this payload and these options. Default: false, it
	// stays as it is.
	Again bool
}

// Create creates a task. It returns false, and changes nothing, when the queue has had a task with
// this id that nobody has deleted since, but for Again. On a transaction the task is there when
// that commits, and workers that wait are woken then. On a pool it is there when Create returns.
// Create waits only for a transaction that creates the same id.
//
// Errors are wrapped. errors.As reaches the *pgconn.PgError with its SQLSTATE: 22023 is a bad
// option, or an id that is empty or longer than 1024 bytes; 22P05 is a payload with a NUL. A Delay
// below 0 is an error without one, and a payload that cannot be JSON is json.Marshal's.
func (q Queue[T]) Create(ctx context.Context, conn db.DBTX, id string, payload T,
	opts *CreateOptions,
) (created bool, err error) {
	var o CreateOptions
	if opts != nil {
		o = *opts
	}
	text, err := json.Marshal(payload)
	if o.Delay < 0 {
		err = fmt.Errorf("delay is %v: pass the time to wait, or 0", o.Delay)
	}
	if err != nil {
		return false, fmt.Errorf("locks: create task %.60q: %w", id, err)
	}
	params := db.CreateTaskParams{
		ID:          id,
		QueueID:     q.Name,
		Payload:     text,
		Delay:       o.Delay,
		Key:         o.Key,
		Again:       o.Again,
		AvailableAt: o.At,
		RetriesLeft: clamp(cmp.Or(o.Tries, q.Tries)),
		Timeout:     cmp.Or(o.Timeout, q.Timeout),
	}
	return ask(ctx, conn, "create task", id,
		func(q *db.Queries) (bool, error) { return q.CreateTask(ctx, params) },
	)
}

// Work is WorkTasks with the payload decoded. A payload that does not decode makes its task a dead
// letter at once, with the decoder's error. Without a payload T is its zero value.
func (q Queue[T]) Work(ctx context.Context, pool *pgxpool.Pool,
	work func(ctx context.Context, task Task[T]) error, opts *TaskOptions,
) error {
	return WorkTasks(ctx, pool, q.Name, q.decoding(work), opts)
}

// WorkDue works on the tasks that are due, one after the other in the caller's goroutine, until
// none is. It returns what became of each: a failure is told there, and is no error. It is for
// tests, and for programs that a clock starts. When work panics, or ends its goroutine, its task is
// not settled, and is had again when its timeout has passed. Everything else is as with Work and
// its default options.
func (q Queue[T]) WorkDue(ctx context.Context, pool *pgxpool.Pool,
	work func(ctx context.Context, task Task[T]) error,
) ([]TaskResult, error) {
	w := newTaskWorker(pool, q.Name, nil)
	w.one(q.decoding(work))
	return w.workDue(ctx)
}

func (q Queue[T]) decoding(
	work func(context.Context, Task[T]) error,
) func(context.Context, db.Task) error {
	if work == nil {
		return nil
	}
	return func(ctx context.Context, task db.Task) error {
		typed := Task[T]{Task: task}
		if err := decode(task.Payload, &typed.Payload); err != nil {
			return err
		}
		return work(ctx, typed)
	}
}

// decode is a permanent error for what is no T.
func decode(payload json.RawMessage, into any) error {
	if payload == nil {
		return nil
	}
	if err := json.Unmarshal(payload, into); err != nil {
		return Permanent(fmt.Errorf("decode the payload: %w", err))
	}
	return nil
}

// Entities are a request queue whose requests all have a payload of one type. Declare it once, as a
// package's variable, and request and work by it.
type Entities[T any] struct {
	Name string // of the queue. Default: "default".
}

// A Request is a captured request with its payload.
type Request[T any] struct {
	db.Request
	Payload T
}

// Create requests that an entity be created, and returns the request's id. The entity's updates
// wait until that is complete, and fail when it fails. On a transaction it is there when that
// commits.
//
// Errors are wrapped. errors.As reaches the *pgconn.PgError with its SQLSTATE: 23505 is an entity
// that has been created, or is asked to be; 22023 is an id that is empty or longer than 1024 bytes.
func (e Entities[T]) Create(ctx context.Context, conn db.DBTX, entityID string, payload T,
) (requestID int64, err error) {
	return e.enqueue(ctx, conn, db.RequestCreate, entityID, payload)
}

// Update requests an update of an entity, after all its requests before. Everything else is as with
// Create.
func (e Entities[T]) Update(ctx context.Context, conn db.DBTX, entityID string, payload T,
) (requestID int64, err error) {
	return e.enqueue(ctx, conn, db.RequestUpdate, entityID, payload)
}

func (e Entities[T]) enqueue(ctx context.Context, conn db.DBTX, what db.RequestType,
	entityID string, payload T,
) (id int64, err error) {
	text, err := json.Marshal(payload)
	if err == nil {
		err = call(ctx, conn, func(q *db.Queries) (err error) {
			id, err = q.Enqueue(
				ctx,
				db.EnqueueParams{
					RequestType: what, EntityID: entityID, Payload: text,
					QueueID: e.Name,
				},
			)
			return err
		})
	}
	if err != nil {
		return 0, fmt.Errorf("locks: %s entity %.60q: %w", what, entityID, err)
	}
	return id, nil
}

// Work is WorkRequests with the payloads decoded. A payload that does not decode settles its batch
// as error, with the decoder's error. Without a payload T is its zero value.
func (e Entities[T]) Work(ctx context.Context, pool *pgxpool.Pool,
	handle func(ctx context.Context, tx pgx.Tx, batch []Request[T]) error, opts *RequestOptions,
) error {
	var decoding func(context.Context, pgx.Tx, []db.Request) error
	if handle != nil {
		decoding = func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
			typed := make([]Request[T], len(batch))
			for n, request := range batch {
				typed[n].Request = request
				if err := decode(request.Payload, &typed[n].Payload); err != nil {
					return fmt.Errorf("request %d: %w", request.RequestID, err)
				}
			}
			return handle(ctx, tx, typed)
		}
	}
	return WorkRequests(ctx, pool, e.Name, decoding, opts)
}

// clamp is a number as the database takes it, and refuses what is too small.
func clamp(n int) int32 { return int32(min(max(n, -1), 1<<31-1)) }
