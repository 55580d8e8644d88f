-- CreateMutex makes a mutex that nobody has acquired; false when it exists. AcquireMutex makes what
-- it needs by itself.
-- name: CreateMutex :one
select lock.create_mutex(task_id => sqlc.arg('task_id')::text) as created;

-- AcquireMutex acquires a mutex for owner ("": nobody in particular), or returns false when it is
-- acquired. It waits only for a transaction that has acquired it and not ended. Rolled back, the
-- grant never was. Errors keep their SQLSTATE: 22004, 22023, 25006, 40001, 40P01.
-- name: AcquireMutex :one
select lock.acquire_mutex(task_id => sqlc.arg('task_id')::text, owner => nullif(sqlc.arg('owner')::text, '')) as acquired;

-- ReleaseMutex releases a mutex that was acquired with the same owner ("": without one); false when
-- it was not. It waits for a transaction that has released it and not ended.
-- name: ReleaseMutex :one
select lock.release_mutex(task_id => sqlc.arg('task_id')::text, owner => nullif(sqlc.arg('owner')::text, '')) as released;

-- ForceReleaseMutex releases a mutex whoever acquired it, and records the operator and the reason
-- in lock.forced_release; false when it is not acquired. For operators.
-- name: ForceReleaseMutex :one
select lock.force_release_mutex(task_id => sqlc.arg('task_id')::text, reason => sqlc.arg('reason')::text) as released;

-- DropUnusedMutexes deletes at most max mutexes (0: 10000) that were released at least unusedFor
-- ago, and returns how many; call it again until it returns 0. For operators.
-- name: DropUnusedMutexes :one
select lock.drop_unused_mutexes(unused_for => sqlc.arg('unused_for')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)) as dropped;

-- GetMutexStatus says who holds a mutex and since when; pgx.ErrNoRows when it is not known.
-- name: GetMutexStatus :one
select * from lock.mutex_status where task_id = sqlc.arg('task_id')::text;
