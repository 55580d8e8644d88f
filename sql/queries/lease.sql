-- AcquireLease grants a lease on a name for ttl; pgx.ErrNoRows when all permits are taken, which writes nothing. The token is
-- greater than that of every earlier lease on the name. Errors keep their SQLSTATE (*pgconn.PgError): 22004, 22023, 40001.
-- name: AcquireLease :one
select * from lock.acquire_lease(name => sqlc.arg('name')::text, owner => sqlc.arg('owner')::text, ttl => sqlc.arg('ttl')::interval, permits => sqlc.arg('permits')::integer);

-- AwaitLease is AcquireLease, or an answer with token 0 that says how long to sleep (ExpiresIn) before the next call, unless
-- channel lock_lease notifies the name before. Call it outside a transaction.
-- name: AwaitLease :one
select * from lock.await_lease(name => sqlc.arg('name')::text, owner => sqlc.arg('owner')::text, ttl => sqlc.arg('ttl')::interval, permits => sqlc.arg('permits')::integer);

-- RenewLease lets a lease end ttl from now; false when it is lost, which no renewal undoes.
-- name: RenewLease :one
select lock.renew_lease(name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint, ttl => sqlc.arg('ttl')::interval) as renewed;

-- ReleaseLease gives a lease back; false when it was lost before.
-- name: ReleaseLease :one
select lock.release_lease(name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint) as released;

-- AssertLease fails with LK001 when the lease is lost, and otherwise keeps everybody from getting its permit until the
-- transaction ends. Call it on the pgx.Tx that writes what the lease protects.
-- name: AssertLease :exec
select lock.assert_lease(name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint);

-- RevokeLease takes a live lease from its holder and records who, when and why; false when there is none. For the schema's owner.
-- name: RevokeLease :one
select lock.revoke_lease(name => sqlc.arg('name')::text, token => sqlc.arg('token')::bigint, reason => sqlc.arg('reason')::text) as revoked;

-- VacuumLeases forgets names that nobody used for a while, and says how many. For the schema's owner.
-- name: VacuumLeases :one
select lock.vacuum_leases(older_than => sqlc.arg('older_than')::interval, max => sqlc.arg('max')::integer) as forgotten;

-- LeaseHolders lists the live leases of a name, oldest first.
-- name: LeaseHolders :many
select * from lock.lease_holder where name = sqlc.arg('name')::text order by token;
