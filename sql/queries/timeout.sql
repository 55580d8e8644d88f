-- CreateTimeout makes a timeout that can be acquired at once; false when it exists, and then it has
-- the new interval. For intervals of months or years call lock.create_timeout in SQL: a Go duration
-- has a fixed length.
-- name: CreateTimeout :one
select lock.create_timeout(task_id => sqlc.arg('task_id')::text, timeout => sqlc.arg('timeout')::interval) as created;

-- AcquireTimeout returns true when the interval of the last grant has passed, and starts the next.
-- It waits only for a transaction that has acquired it and not ended. Errors keep their SQLSTATE:
-- 22004, 22023, P0002 never created, 25006, 40001.
-- name: AcquireTimeout :one
select lock.acquire_timeout(task_id => sqlc.arg('task_id')::text) as acquired;

-- ForceReleaseTimeout lets a timeout be acquired at once, and records the operator and the reason
-- in lock.forced_release; false when its interval has passed anyway. For operators.
-- name: ForceReleaseTimeout :one
select lock.force_release_timeout(task_id => sqlc.arg('task_id')::text, reason => sqlc.arg('reason')::text) as released;

-- DropUnusedTimeouts deletes at most max timeouts (0: 10000) whose interval ended at least
-- unusedFor ago, and returns how many; call it again until it returns 0. For operators.
-- name: DropUnusedTimeouts :one
select lock.drop_unused_timeouts(unused_for => sqlc.arg('unused_for')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)) as dropped;

-- GetTimeoutStatus says until when a timeout is locked; pgx.ErrNoRows when it is not known. A month
-- of Timeout counts 30 days; the times are exact.
-- name: GetTimeoutStatus :one
select * from lock.timeout_status where task_id = sqlc.arg('task_id')::text;
