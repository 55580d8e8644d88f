-- Check says what is wrong with this server for the locks of this schema, one Finding each; none:
-- nothing. It reads the settings as this connection has them, so ask through the pool that will
-- work.
-- name: Check :many
select * from lock.check();

-- Help is the manual, line by line: every function and view of the schema with its comment.
-- name: Help :many
select lock.help()::text as line;

-- HelpFunction is the manual of one function or view; P0002 when there is none of that name.
-- name: HelpFunction :many
select lock.help(function => sqlc.arg('function')::text)::text as line;

-- Activity lists everything that is held or waited for now. For operators: it reads whole tables.
-- name: Activity :many
select * from lock.activity order by kind, name;

-- QueueDepth counts what is waiting to be done, a row per kind and queue. For dashboards: it counts
-- row by row.
-- name: QueueDepth :many
select * from lock.queue_depth order by kind, queue_id;

-- QueueSizes is QueueDepth at a bounded cost: each count ends at max (0: 1000), and so does the
-- number of queues of each kind. For monitors.
-- name: QueueSizes :many
select * from lock.queue_sizes(coalesce(nullif(sqlc.arg('max')::integer, 0), 1000)) order by kind, queue_id;

-- Blocked lists every session that waits for a key, or for a row of another kind, with who holds it
-- and the session at the root of the chain. For operators: it asks the lock manager once for each
-- waiting session.
-- name: Blocked :many
select * from lock.blocked order by since, pid;

-- Who lists the sessions that hold a key or wait for it, holders first; a row with a Hint and no
-- session says that the name which looks like the number is in use.
-- name: Who :many
select * from lock.who(key => sqlc.arg('key')::bigint);

-- WhoName is Who for a name; its hint is about the number that looks like the name. 22023 when the
-- name is empty or too long.
-- name: WhoName :many
select * from lock.who(name => sqlc.arg('name')::text);

-- Clean deletes what no kind needs any more: at most max of each kind (0: 10000), of what ended or
-- was unused for longer than olderThan (0: 30 days). It returns how many there were of each. Call
-- it until every kind says less than max. Dead letters, timeouts and throttled resources stay.
-- name: Clean :many
select * from lock.clean(
    older_than => coalesce(nullif(sqlc.arg('older_than')::interval, '0'), '30 days'),
    max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)
);
