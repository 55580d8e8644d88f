-- StartIdling lists a worker as idle for a while, so that producers of the queue notify it. Call it
-- on a pool, not in a transaction: it counts only once it is committed.
-- name: StartIdling :exec
select lock.start_idling(
    channel => sqlc.arg('channel')::text, queue_id => sqlc.arg('queue_id')::text, worker => sqlc.arg('worker')::text,
    lasting => sqlc.arg('lasting')::interval
);

-- StopIdling takes a worker off that list; false when it was not on it.
-- name: StopIdling :one
select lock.stop_idling(
    channel => sqlc.arg('channel')::text, queue_id => sqlc.arg('queue_id')::text, worker => sqlc.arg('worker')::text
) as stopped;

-- OpenTransactions lists the transactions that are open and have an id; with among, those of them
-- that still are.
-- name: OpenTransactions :many
select lock.open_transactions(among => sqlc.narg('among')::bigint[])::bigint as id;
