-- SettleAndCapture settles the last batch, every task with its own result, delay and message, and
-- captures the next (Max 0: none), in one round trip and one commit. Results: new, done, failed,
-- dead (no capture left), or retry: failed, and captured again after its delay, or after a pause
-- between Shortest and Longest that doubles with its tries; without a limit of its own it is dead
-- after MaxTries. Reports: what became of those comes first. In progress: it was left out as
-- stale, and has the attempt that was passed.
-- name: SettleAndCapture :many
select * from lock.settle_and_capture(
    ids => sqlc.arg('ids')::text[], attempts => sqlc.arg('attempts')::bigint[], results => sqlc.arg('results')::text[],
    max => sqlc.arg('max')::integer, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), statuses => sqlc.arg('statuses')::text[],
    owner => sqlc.narg('owner')::text, delays => sqlc.arg('delays')::interval[], messages => sqlc.arg('messages')::text[],
    since => sqlc.narg('since')::timestamptz, shortest => sqlc.arg('shortest')::interval, longest => sqlc.arg('longest')::interval,
    max_tries => sqlc.arg('max_tries')::integer, reports => sqlc.arg('reports')::boolean
);

-- ExtendTasks gives the holder of many attempts Timeout from now on, and returns the ids that are
-- still the caller's.
-- name: ExtendTasks :many
select lock.extend_tasks(
    ids => sqlc.arg('ids')::text[], attempts => sqlc.arg('attempts')::bigint[], timeout => sqlc.arg('timeout')::interval, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')
)::text as id;

-- NextTaskIn says after how long the next task becomes available or times out; none: not by itself.
-- name: NextTaskIn :many
select lock.next_task_in(queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), statuses => sqlc.arg('statuses')::text[])::interval as due;
