-- Enqueue adds a request, create or update, for an entity to a queue, and returns its id. 23505:
-- the entity has a create already, settled or not. Payload nil: none.
-- name: Enqueue :one
select lock.enqueue(
    request_type => sqlc.arg('request_type')::lock.request_type::text, entity_id => sqlc.arg('entity_id')::text,
    payload => sqlc.narg('payload')::jsonb, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')
) as request_id;

-- CaptureRequest takes the first work of a queue that nobody else has, oldest request first: one
-- entity's create, or its oldest Max updates (0: 1000); nothing when nothing can be had after the
-- line (0 at first, then the first RequestID of the last batch). Call it on a pgx.Tx, and
-- SettleRequest before the commit, which fails otherwise (23503). Does not wait.
-- name: CaptureRequest :many
select * from lock.capture_request(
    process_id => sqlc.arg('process_id')::uuid, after => sqlc.arg('after')::bigint, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'),
    max => coalesce(nullif(sqlc.arg('max')::integer, 0), 1000)
);

-- SettleRequest ends what ProcessID captured in this transaction, as complete ("") or error, or
-- puts it back, not to be captured before Delay is over: as new, or as retry, which counts as a
-- try. It returns how many requests that were. 55000: they are not as many as Expects says (nil:
-- any number).
-- name: SettleRequest :one
select lock.settle_request(
    process_id => sqlc.arg('process_id')::uuid, status => coalesce(nullif(sqlc.arg('status')::name::text, ''), 'complete'),
    message => nullif(sqlc.arg('message')::text, ''), delay => sqlc.arg('delay')::interval, expects => sqlc.narg('expects')::bigint
) as settled;

-- RetryRequest enqueues what a request that ended in error asked for once more, and returns the new
-- request's id. P0002: there is none; 55000: it is not in error; 23505: a create whose entity has
-- been created since.
-- name: RetryRequest :one
select lock.retry_request(request_id => sqlc.arg('request_id')::bigint) as request_id;

-- CancelRequest ends an outstanding request as error, for the record; false: it is settled, or a
-- worker has its entity now. For operators. P0002: there is none.
-- name: CancelRequest :one
select lock.cancel_request(request_id => sqlc.arg('request_id')::bigint, reason => sqlc.arg('reason')::text) as cancelled;

-- PurgeRequests deletes at most max requests (0: 10000) that were settled longer ago than
-- olderThan, and says how many.
-- name: PurgeRequests :one
select lock.purge_requests(older_than => sqlc.arg('older_than')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)) as purged;

-- RequestHistory lists the newest Max requests of an entity (0: 100), outstanding and settled,
-- newest first.
-- name: RequestHistory :many
select * from lock.request_history(entity_id => sqlc.arg('entity_id')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), max => coalesce(nullif(sqlc.arg('max')::integer, 0), 100));
