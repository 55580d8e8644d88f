-- Enqueue adds a request, create or update, for an entity to a queue, and returns its id. 23505: the entity has a create
-- already, settled or not. Payload nil: none.
-- name: Enqueue :one
select lock.enqueue(request_type => sqlc.arg('request_type')::text, entity_id => sqlc.arg('entity_id')::text, payload => sqlc.narg('payload')::jsonb, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default')) as request_id;

-- CaptureRequest takes the first work of a queue that nobody else has, oldest request first: one entity's create, or its
-- oldest max updates (0: 1000); nothing when nothing can be had after the line (0 at first, then the first RequestID of the last batch). Call it on
-- a pgx.Tx, and SettleRequest before the commit, which fails otherwise (23503). Does not wait.
-- name: CaptureRequest :many
select * from lock.capture_request(process_id => sqlc.arg('process_id')::uuid, after => sqlc.arg('after')::bigint, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), max => coalesce(nullif(sqlc.arg('max')::integer, 0), 1000));

-- SettleRequest ends what processID captured in this transaction, as complete or error, or puts it back as new, to be tried
-- again after delay (0 otherwise); how many requests that were. 55000: they are not as many as expects says (nil: any number).
-- name: SettleRequest :one
select lock.settle_request(process_id => sqlc.arg('process_id')::uuid, status => sqlc.arg('status')::text, message => sqlc.narg('message')::text, delay => sqlc.arg('delay')::interval, expects => sqlc.narg('expects')::bigint) as settled;

-- RetryRequest enqueues what a request that ended in error asked for once more, and returns the new request's id. P0002: there
-- is none; 55000: it is not in error; 23505: a create whose entity has been created since.
-- name: RetryRequest :one
select lock.retry_request(request_id => sqlc.arg('request_id')::bigint) as request_id;

-- CancelRequest ends an outstanding request as error, for the record; false: it is settled, or a worker has its entity now. For
-- operators. P0002: there is none.
-- name: CancelRequest :one
select lock.cancel_request(request_id => sqlc.arg('request_id')::bigint, reason => sqlc.arg('reason')::text) as cancelled;

-- PurgeRequests deletes at most max requests that were settled longer ago than olderThan, and says how many.
-- name: PurgeRequests :one
select lock.purge_requests(older_than => sqlc.arg('older_than')::interval, max => sqlc.arg('max')::integer) as purged;

-- RequestHistory lists the newest max requests of an entity, outstanding and settled, newest first.
-- name: RequestHistory :many
select * from lock.request_history(entity_id => sqlc.arg('entity_id')::text, queue_id => coalesce(nullif(sqlc.arg('queue_id')::text, ''), 'default'), max => sqlc.arg('max')::integer);
