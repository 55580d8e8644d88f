-- name: Check :many
-- Check says what is wrong with this server for the locks of this schema, one Finding each; none: nothing. It reads the settings as this
-- connection has them, so ask through the pool that will work.
select * from lock.check();
