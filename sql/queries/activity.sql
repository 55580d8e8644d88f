-- name: Check :many
-- Check says what is wrong with this server for the locks of this schema, one Finding each; none: nothing. It reads the settings as this
-- connection has them, so ask through the pool that will work.
select * from lock.check();

-- Activity lists everything that is held or waited for now. For operators: it reads whole tables.
-- name: Activity :many
select * from lock.activity order by kind, name;

-- QueueDepth counts what is waiting to be done, a row per kind and queue. For dashboards: it counts row by row.
-- name: QueueDepth :many
select * from lock.queue_depth order by kind, queue_id;
