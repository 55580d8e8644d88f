-- AwaitLease is AcquireLease, or an answer with token 0 that says how long to sleep (ExpiresIn)
-- before the next call, unless channel lock_lease notifies the name before. Call it outside a
-- transaction.
-- name: AwaitLease :one
select * from lock.await_lease(
    name => sqlc.arg('name')::text, owner => sqlc.arg('owner')::text, ttl => sqlc.arg('ttl')::interval,
    permits => sqlc.arg('permits')::integer
);
