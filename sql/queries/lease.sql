-- AcquireLease grants a lease on a name for ttl; pgx.ErrNoRows when all permits (0: 1) are taken,
-- which writes nothing. The token is greater than that of every earlier lease on the name. Errors
-- keep their SQLSTATE (*pgconn.PgError): 22004, 22023, 40001.
-- name: AcquireLease :one
select * from lock.acquire_lease(
    name => sqlc.arg('name')::text, owner => sqlc.arg('owner')::text, ttl => sqlc.arg('ttl')::interval,
    permits => coalesce(nullif(sqlc.arg('permits')::integer, 0), 1)
);

-- RenewLease lets a lease end ttl from now; false when it is lost, which no renewal undoes.
-- name: RenewLease :one
select lock.renew_lease(
    name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint, ttl => sqlc.arg('ttl')::interval
) as renewed;

-- ReleaseLease gives a lease back; false when it was lost before.
-- name: ReleaseLease :one
select lock.release_lease(name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint) as released;

-- AssertLease fails with LK001 when the lease is lost, and otherwise keeps everybody from getting
-- its permit until the transaction ends. Call it on the pgx.Tx that writes what the lease protects.
-- name: AssertLease :exec
select lock.assert_lease(name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint);

-- ForceReleaseLease takes a live lease from its holder, and records the operator and the reason in
-- lock.forced_release; false when there is none. For operators.
-- name: ForceReleaseLease :one
select lock.force_release_lease(
    name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint, reason => sqlc.arg('reason')::text
) as released;

-- DropUnusedLeases forgets at most max names (0: 10000) on which no lease was granted for
-- unusedFor, and returns how many; call it again until it returns 0. For operators.
-- name: DropUnusedLeases :one
select lock.drop_unused_leases(unused_for => sqlc.arg('unused_for')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)) as dropped;

-- LeaseHolders lists the live leases of a name, oldest first.
-- name: LeaseHolders :many
select * from lock.lease_holder where name = sqlc.arg('name')::text order by token;
