-- Exclusive takes a key for this transaction alone, until it ends; waits for every other holder. Call it on a pgx.Tx: on a
-- pool it holds only for its own statement. Errors keep their SQLSTATE (*pgconn.PgError): 22004, 25006, 40P01, 55P03, 57014.
-- name: Exclusive :exec
select lock.exclusive(key => sqlc.arg('key')::bigint);

-- ExclusiveName is Exclusive for a name; 22023 when it is empty or longer than 1024 bytes.
-- name: ExclusiveName :exec
select lock.exclusive(name => sqlc.arg('name')::text);

-- Shared takes a key together with other sharers, until the transaction ends; waits for an exclusive holder.
-- name: Shared :exec
select lock.shared(key => sqlc.arg('key')::bigint);

-- SharedName is Shared for a name; 22023 when it is empty or longer than 1024 bytes.
-- name: SharedName :exec
select lock.shared(name => sqlc.arg('name')::text);

-- TryExclusive is Exclusive, or false when somebody else still has the key after wait (0: at once).
-- name: TryExclusive :one
select lock.try_exclusive(key => sqlc.arg('key')::bigint, wait => sqlc.arg('wait')::interval) as locked;

-- TryExclusiveName is TryExclusive for a name.
-- name: TryExclusiveName :one
select lock.try_exclusive(name => sqlc.arg('name')::text, wait => sqlc.arg('wait')::interval) as locked;

-- TryShared is Shared, or false when somebody else still has the key exclusively after wait (0: at once).
-- name: TryShared :one
select lock.try_shared(key => sqlc.arg('key')::bigint, wait => sqlc.arg('wait')::interval) as locked;

-- TrySharedName is TryShared for a name.
-- name: TrySharedName :one
select lock.try_shared(name => sqlc.arg('name')::text, wait => sqlc.arg('wait')::interval) as locked;

-- ExclusiveAll takes several names exclusively in one global order: its callers cannot deadlock with each other.
-- name: ExclusiveAll :exec
select lock.exclusive_all(names => sqlc.arg('names')::text[]);

-- Key is the bigint that is locked for a name.
-- name: Key :one
select lock.key(name => sqlc.arg('name')::text) as key;

-- Unlock forgets what is kept of a key; false when another transaction holds it. The lock ends with the transaction.
-- name: Unlock :one
select lock.unlock(key => sqlc.arg('key')::bigint) as forgotten;

-- UnlockName is Unlock for a name.
-- name: UnlockName :one
select lock.unlock(name => sqlc.arg('name')::text) as forgotten;

-- Vacuum forgets what is kept of every key that nobody holds or waits for, and says of how many.
-- name: Vacuum :one
select lock.vacuum() as forgotten;

-- Engine says what a key lock is made of in this database: advisory or row.
-- name: Engine :one
select lock.engine() as engine;
