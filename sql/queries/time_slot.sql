-- AcquireTimeSlot returns true for the first call of a slot of time (the one that holds At; zero:
-- now) that is newer than every slot granted to the task before. It waits only for a transaction
-- that has acquired one and not ended. Errors keep their SQLSTATE: 22004, 22023, 25006, 40001.
-- name: AcquireTimeSlot :one
select lock.acquire_time_slot(
    task_id => sqlc.arg('task_id')::text,
    resolution => sqlc.arg('resolution')::interval,
    at => nullif(sqlc.arg('at')::timestamptz, '0001-01-01 00:00:00+00')
) as acquired;

-- ForceReleaseTimeSlot forgets the newest slot of a task, so that any slot can be acquired next,
-- and records the operator and the reason in lock.forced_release; false when there is nothing to
-- forget. For operators.
-- name: ForceReleaseTimeSlot :one
select lock.force_release_time_slot(task_id => sqlc.arg('task_id')::text, reason => sqlc.arg('reason')::text) as released;

-- DropUnusedTimeSlots forgets at most max tasks (0: 10000) whose newest slot ended at least
-- unusedFor ago, and returns how many; call it again until it returns 0. For operators.
-- name: DropUnusedTimeSlots :one
select lock.drop_unused_time_slots(unused_for => sqlc.arg('unused_for')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)) as dropped;

-- GetTimeSlotStatus is the newest slot that a task was granted; pgx.ErrNoRows when it is not known.
-- name: GetTimeSlotStatus :one
select * from lock.time_slot_status where task_id = sqlc.arg('task_id')::text;
