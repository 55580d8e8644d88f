-- AcquireTimeSlot returns true for the first call of a slot of time (the one that holds at; nil: now) that is newer than
-- every slot granted to the task before. It waits only for a transaction that has acquired one and not ended. Errors keep
-- their SQLSTATE: 22004, 22023, 25006, 40001.
-- name: AcquireTimeSlot :one
select lock.acquire_time_slot(
    task_id => sqlc.arg('task_id')::text,
    resolution => sqlc.arg('resolution')::interval,
    at => sqlc.narg('at')::timestamptz
) as acquired;

-- ForceReleaseTimeSlot forgets the newest slot of a task, so that any slot can be acquired next, and records the operator and
-- the reason in lock.forced_release; false when there is nothing to forget. For operators.
-- name: ForceReleaseTimeSlot :one
select lock.force_release_time_slot(task_id => sqlc.arg('task_id')::text, reason => sqlc.arg('reason')::text) as released;

-- DropUnusedTimeSlots forgets at most max tasks whose newest slot ended at least unused_for ago, and returns how many; call it
-- again until it returns 0. For operators.
-- name: DropUnusedTimeSlots :one
select lock.drop_unused_time_slots(unused_for => sqlc.arg('unused_for')::interval, max => sqlc.arg('max')::integer) as dropped;

-- GetTimeSlotStatus is the newest slot that a task was granted; pgx.ErrNoRows when it is not known.
-- name: GetTimeSlotStatus :one
select * from lock.time_slot_status where task_id = sqlc.arg('task_id')::text;
