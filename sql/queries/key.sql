-- Exclusive, for a transaction (db.New(tx)), takes a key alone until that ends, and waits for every
-- other holder. On a pool it holds nothing: there the statement is the whole transaction. Errors
-- keep their SQLSTATE (*pgconn.PgError): 22004, 25006, 40P01, 55P03, 57014.
-- name: Exclusive :exec
select lock.exclusive(key => sqlc.arg('key')::bigint);

-- ExclusiveName is Exclusive, for a transaction, by name; 22023 when that is empty or longer than
-- 1024 bytes.
-- name: ExclusiveName :exec
select lock.exclusive(name => sqlc.arg('name')::text);

-- Shared, for a transaction (db.New(tx)), takes a key together with other sharers until that ends,
-- and waits for an exclusive holder. On a pool it holds nothing.
-- name: Shared :exec
select lock.shared(key => sqlc.arg('key')::bigint);

-- SharedName is Shared, for a transaction, by name; 22023 when that is empty or longer than 1024
-- bytes.
-- name: SharedName :exec
select lock.shared(name => sqlc.arg('name')::text);

-- TryExclusive, for a transaction (db.New(tx)), is Exclusive, or false when somebody else still has
-- the key after wait (0: at once). On a pool it holds nothing, whatever it answers:
-- locks.TryExclusive is for that.
-- name: TryExclusive :one
select lock.try_exclusive(key => sqlc.arg('key')::bigint, wait => sqlc.arg('wait')::interval) as locked;

-- TryExclusiveName is TryExclusive, for a transaction, by name.
-- name: TryExclusiveName :one
select lock.try_exclusive(name => sqlc.arg('name')::text, wait => sqlc.arg('wait')::interval) as locked;

-- TryShared, for a transaction (db.New(tx)), is Shared, or false when somebody else still has the
-- key exclusively after wait (0: at once). On a pool it holds nothing, whatever it answers:
-- locks.TryShared is for that.
-- name: TryShared :one
select lock.try_shared(key => sqlc.arg('key')::bigint, wait => sqlc.arg('wait')::interval) as locked;

-- TrySharedName is TryShared, for a transaction, by name.
-- name: TrySharedName :one
select lock.try_shared(name => sqlc.arg('name')::text, wait => sqlc.arg('wait')::interval) as locked;

-- ExclusiveAll, for a transaction (db.New(tx)), takes several names exclusively in one global
-- order: its callers cannot deadlock with each other. On a pool it holds nothing.
-- name: ExclusiveAll :exec
select lock.exclusive_all(names => sqlc.arg('names')::text[]);

-- TryAll, for a transaction (db.New(tx)), takes a set of keys in the order of ExclusiveAll, all or
-- none: false when not all could be had within Wait (0: at once). A nil slice is empty. On a pool
-- it holds nothing.
-- name: TryAll :one
select lock.try_all(
    exclusive_names => coalesce(sqlc.arg('exclusive_names')::text[], '{}'),
    exclusive_keys => coalesce(sqlc.arg('exclusive_keys')::bigint[], '{}'),
    shared_names => coalesce(sqlc.arg('shared_names')::text[], '{}'),
    shared_keys => coalesce(sqlc.arg('shared_keys')::bigint[], '{}'),
    wait => sqlc.arg('wait')::interval
) as locked;

-- Key is the bigint that is locked for a name.
-- name: Key :one
select lock.key(name => sqlc.arg('name')::text) as key;

-- Unlock forgets what is kept of a key; false when another transaction holds it. The lock ends with
-- the transaction.
-- name: Unlock :one
select lock.unlock(key => sqlc.arg('key')::bigint) as forgotten;

-- UnlockName is Unlock for a name.
-- name: UnlockName :one
select lock.unlock(name => sqlc.arg('name')::text) as forgotten;

-- Vacuum forgets what is kept of every key that nobody holds or waits for, and says of how many: on
-- the advisory engine nothing is.
-- name: Vacuum :one
select lock.vacuum() as forgotten;

-- Engine says what a key lock is made of in this database: advisory or row.
-- name: Engine :one
select lock.engine() as engine;
