-- CreateTask adds a task to a queue; false: the queue has one of this id already, which stays as it is. RetriesLeft: how many
-- captures it may have (nil: any number). Timeout: how long a capture may hold it (nil: 5 minutes, 0: for ever). AvailableAt: nil is
-- now. Delay, when it is not 0: that long after now instead.
-- name: CreateTask :one
select lock.create_task(
    id => sqlc.arg('id')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), retries_left => sqlc.narg('retries_left')::integer,
    timeout => nullif(coalesce(sqlc.narg('timeout')::interval, '5 minutes'), '0'), payload => sqlc.narg('payload')::jsonb, available_at => coalesce(clock_timestamp() + nullif(sqlc.arg('delay')::interval, '0'), sqlc.narg('available_at')::timestamptz)
) as created;

-- CreateTasks adds many tasks at once, available in this order, and says how many were new. Payloads: one for each id, or nil.
-- For a million of them, COPY ids and payloads into a temporary table and call lock.create_tasks over array_agg: see docs/task.md.
-- name: CreateTasks :one
select lock.create_tasks(
    ids => sqlc.arg('ids')::text[], queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), retries_left => sqlc.narg('retries_left')::integer,
    timeout => nullif(coalesce(sqlc.narg('timeout')::interval, '5 minutes'), '0'), available_at => coalesce(clock_timestamp() + nullif(sqlc.arg('delay')::interval, '0'), sqlc.narg('available_at')::timestamptz), payloads => sqlc.narg('payloads')::jsonb[]
) as created;

-- Capture takes at most max tasks for the caller, from any of statuses (new, failed, done) in this order, oldest first; none: nothing
-- can be had now. Give their Attempt back to SetStatus. With since, only what became available then or later, and nothing that
-- timed out. It never waits, and never gives one attempt to two callers.
-- name: Capture :many
select * from lock.capture(
    max => sqlc.arg('max')::integer, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), statuses => sqlc.arg('statuses')::text[], owner => sqlc.narg('owner')::text,
    since => sqlc.narg('since')::timestamptz
);

-- SetStatus settles a captured task; false: the attempt is stale. With a nil attempt it sets any task, whoever has it. Dead,
-- only with failed: no capture is left.
-- name: SetStatus :one
select lock.set_status(
    id => sqlc.arg('id')::text, status => sqlc.arg('status')::lock.task_status, attempt => sqlc.narg('attempt')::bigint,
    queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), delay => sqlc.arg('delay')::interval, message => sqlc.narg('message')::text, dead => sqlc.arg('dead')::boolean
) as settled;

-- SetStatuses settles many captured tasks at once and says how many were; stale attempts are left out.
-- name: SetStatuses :one
select lock.set_statuses(
    ids => sqlc.arg('ids')::text[], attempts => sqlc.arg('attempts')::bigint[], status => sqlc.arg('status')::lock.task_status,
    queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), delay => sqlc.arg('delay')::interval, message => sqlc.narg('message')::text, dead => sqlc.arg('dead')::boolean
) as settled;

-- SettleAndCapture settles the last batch, every task with its own result, delay and message, and captures the next (Max 0:
-- none), in one round trip and one commit. Results: new, done, failed, dead (no capture left), or retry: failed, and captured again after its
-- delay, or after a pause between Shortest and Longest that doubles with its tries; without a limit of its own it is dead after MaxTries.
-- Reports: what became of those comes first. In progress: it was left out as stale, and has the attempt that was passed.
-- name: SettleAndCapture :many
select * from lock.settle_and_capture(
    ids => sqlc.arg('ids')::text[], attempts => sqlc.arg('attempts')::bigint[], results => sqlc.arg('results')::text[],
    max => sqlc.arg('max')::integer, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), statuses => sqlc.arg('statuses')::text[],
    owner => sqlc.narg('owner')::text, delays => sqlc.arg('delays')::interval[], messages => sqlc.arg('messages')::text[],
    since => sqlc.narg('since')::timestamptz, shortest => sqlc.arg('shortest')::interval, longest => sqlc.arg('longest')::interval, max_tries => sqlc.arg('max_tries')::integer,
    reports => sqlc.arg('reports')::boolean
);

-- ExtendTask gives the holder of an attempt timeout from now on; false: the attempt is stale.
-- name: ExtendTask :one
select lock.extend_task(
    id => sqlc.arg('id')::text, attempt => sqlc.arg('attempt')::bigint, timeout => sqlc.arg('timeout')::interval, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')
) as extended;

-- ExtendTasks gives the holder of many attempts timeout from now on, and returns the ids that are still the caller's.
-- name: ExtendTasks :many
select lock.extend_tasks(
    ids => sqlc.arg('ids')::text[], attempts => sqlc.arg('attempts')::bigint[], timeout => sqlc.arg('timeout')::interval, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')
)::text as id;

-- RetryTask revives a task, such as a dead letter, with so many captures ahead (nil: any number); false: it is in progress.
-- name: RetryTask :one
select lock.retry_task(id => sqlc.arg('id')::text, retries_left => sqlc.narg('retries_left')::integer, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')) as revived;

-- RetryTasks revives at most max dead letters of a queue, those that died first, each with so many captures ahead (nil: any
-- number), and says how many. Call it again while it says max.
-- name: RetryTasks :one
select lock.retry_tasks(queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), retries_left => sqlc.narg('retries_left')::integer, max => sqlc.arg('max')::integer) as revived;

-- GetTask returns a task as it is stored; pgx.ErrNoRows: there is none.
-- name: GetTask :one
select * from lock.get_task(id => sqlc.arg('id')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'));

-- NextTaskIn says after how long the next task becomes available or times out; none: not by itself.
-- name: NextTaskIn :many
select lock.next_task_in(queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), statuses => sqlc.arg('statuses')::text[])::interval as due;

-- PurgeTasks deletes at most max tasks that were settled as status (done, or failed for dead letters) longer than olderThan ago.
-- name: PurgeTasks :one
select lock.purge_tasks(
    older_than => sqlc.arg('older_than')::interval, max => sqlc.arg('max')::integer, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'),
    status => sqlc.arg('status')::lock.task_status
) as purged;

-- DeadLetters lists at most max tasks of a queue that are not done and have no capture left, oldest first.
-- name: DeadLetters :many
select * from lock.dead_letter where queue_id = coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default') order by changed_at limit sqlc.arg('max')::integer;

-- ListTasks lists at most max tasks of a queue in one status: in_progress by deadline, the others oldest first.
-- name: ListTasks :many
select * from lock.list_tasks(queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), status => sqlc.arg('status')::lock.task_status, max => sqlc.arg('max')::integer);
