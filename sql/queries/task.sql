-- CreateTask adds a task to a queue; false: the queue has one of this id already, which stays as it
-- is. RetriesLeft: how many captures it may have (0: any number). Timeout: how long a capture may
-- hold it (0: 5 minutes, Forever: until it is settled). AvailableAt: zero is now. Delay, when it is
-- not 0: that long after now instead. Key, when it is not empty: see LimitQueue. Again makes a done
-- task of this id new.
-- name: CreateTask :one
select lock.create_task(
    id => sqlc.arg('id')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'),
    retries_left => nullif(sqlc.arg('retries_left')::integer, 0),
    timeout => nullif(coalesce(nullif(sqlc.arg('timeout')::interval, '0'), '5 minutes'), '-1 microsecond'), payload => sqlc.narg('payload')::jsonb,
    available_at => coalesce(clock_timestamp() + nullif(sqlc.arg('delay')::interval, '0'), nullif(sqlc.arg('available_at')::timestamptz, '0001-01-01 00:00:00+00')),
    key => nullif(sqlc.arg('key')::text, ''), again => sqlc.arg('again')::boolean
) as created;

-- LimitQueue says how many tasks of one key may be in progress in a queue, over all workers: 1
-- without it. Call it at each deploy.
-- name: LimitQueue :exec
select lock.limit_queue(queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), per_key => sqlc.arg('per_key')::integer);

-- DeleteTask deletes a task; false: it is in progress, or there is none.
-- name: DeleteTask :one
select lock.delete_task(id => sqlc.arg('id')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')) as deleted;

-- CreateTasks adds many tasks at once, available in this order, and says how many were new.
-- Payloads: one for each id, or nil. For a million of them, COPY ids and payloads into a temporary
-- table and call lock.create_tasks over array_agg: see docs/task.md.
-- name: CreateTasks :one
select lock.create_tasks(
    ids => sqlc.arg('ids')::text[], queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'),
    retries_left => nullif(sqlc.arg('retries_left')::integer, 0),
    timeout => nullif(coalesce(nullif(sqlc.arg('timeout')::interval, '0'), '5 minutes'), '-1 microsecond'),
    available_at => coalesce(clock_timestamp() + nullif(sqlc.arg('delay')::interval, '0'), nullif(sqlc.arg('available_at')::timestamptz, '0001-01-01 00:00:00+00')),
    payloads => sqlc.narg('payloads')::jsonb[], keys => sqlc.narg('keys')::text[]
) as created;

-- Capture takes at most Max tasks for the caller, from any of Statuses (new, failed, done; nil: new
-- and failed) in this order, oldest first; none: nothing can be had now. Give their Attempt back to
-- SetStatus. With Since, only what became available then or later, and nothing that timed out. It
-- never waits, and never gives one attempt to two callers.
-- name: Capture :many
select * from lock.capture(
    max => sqlc.arg('max')::integer, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), statuses => coalesce(sqlc.arg('statuses')::text[], '{new,failed}'), owner => nullif(sqlc.arg('owner')::text, ''), since => nullif(sqlc.arg('since')::timestamptz, '0001-01-01 00:00:00+00')
);

-- SetStatus settles a captured task; false: the attempt is stale. With a nil Attempt it sets any
-- task, whoever has it. Dead, only with failed: no capture is left.
-- name: SetStatus :one
select lock.set_status(
    id => sqlc.arg('id')::text, status => sqlc.arg('status')::lock.task_status, attempt => sqlc.narg('attempt')::bigint,
    queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), delay => sqlc.arg('delay')::interval, message => nullif(sqlc.arg('message')::text, ''), dead => sqlc.arg('dead')::boolean
) as settled;

-- SetStatuses settles many captured tasks at once and says how many were; stale attempts are left
-- out.
-- name: SetStatuses :one
select lock.set_statuses(
    ids => sqlc.arg('ids')::text[], attempts => sqlc.arg('attempts')::bigint[], status => sqlc.arg('status')::lock.task_status,
    queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), delay => sqlc.arg('delay')::interval, message => nullif(sqlc.arg('message')::text, ''), dead => sqlc.arg('dead')::boolean
) as settled;

-- ExtendTask gives the holder of an attempt Timeout from now on; false: the attempt is stale.
-- name: ExtendTask :one
select lock.extend_task(
    id => sqlc.arg('id')::text, attempt => sqlc.arg('attempt')::bigint, timeout => sqlc.arg('timeout')::interval, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')
) as extended;

-- RetryTask revives a task, such as a dead letter, with so many captures ahead (0: any number);
-- false: it is in progress.
-- name: RetryTask :one
select lock.retry_task(
    id => sqlc.arg('id')::text, retries_left => nullif(sqlc.arg('retries_left')::integer, 0), queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')
) as revived;

-- RetryTasks revives at most Max dead letters of a queue (0: 1000), those that died first, each
-- with so many captures ahead (0: 1), and says how many. Call it again while it says Max.
-- name: RetryTasks :one
select lock.retry_tasks(
    queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), retries_left => coalesce(nullif(sqlc.arg('retries_left')::integer, 0), 1),
    max => coalesce(nullif(sqlc.arg('max')::integer, 0), 1000)
) as revived;

-- GetTask returns a task as it is stored; pgx.ErrNoRows: there is none.
-- name: GetTask :one
select * from lock.get_task(id => sqlc.arg('task_id')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'));

-- PurgeTasks deletes at most Max tasks (0: 10000) that were settled as Status (done, or failed for
-- dead letters; "": done) longer than OlderThan ago.
-- name: PurgeTasks :one
select lock.purge_tasks(
    older_than => sqlc.arg('older_than')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000), queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'),
    status => coalesce(nullif(sqlc.arg('status')::varchar, ''), 'done')::lock.task_status
) as purged;

-- DeadLetters lists at most max tasks of a queue (0: 100) that are not done and have no capture
-- left, oldest first.
-- name: DeadLetters :many
select * from lock.dead_letter
where queue_id = coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')
order by changed_at
limit coalesce(nullif(sqlc.arg('max')::integer, 0), 100);

-- ListTasks lists at most Max tasks of a queue (0: 100) in one status ("": new): in_progress by
-- deadline, the others oldest first.
-- name: ListTasks :many
select * from lock.list_tasks(
    queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), status => coalesce(nullif(sqlc.arg('status')::varchar, ''), 'new')::lock.task_status,
    max => coalesce(nullif(sqlc.arg('max')::integer, 0), 100)
);
