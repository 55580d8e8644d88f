-- Take takes cost tokens from a bucket of burst tokens (nil: as many as rate) that gets rate of them back per per, and says whether it
-- did, how many remain and after how long the same call is granted. A bucket that is new is made, and is full. Commit at once: a call
-- that finds enough tokens waits for a transaction that has taken some and not ended. Errors keep their SQLSTATE: 22004, 22023, 25006, 40001.
-- name: Take :one
select * from lock.take(
    limit_id => sqlc.arg('limit_id')::text,
    rate => sqlc.arg('rate')::bigint,
    per => sqlc.arg('per')::interval,
    burst => sqlc.narg('burst')::bigint,
    cost => sqlc.arg('cost')::bigint
);

-- ForceReleaseRateLimit fills a bucket, and records the operator and the reason in lock.forced_release; false when it is full anyway.
-- For operators.
-- name: ForceReleaseRateLimit :one
select lock.force_release_rate_limit(limit_id => sqlc.arg('limit_id')::text, reason => sqlc.arg('reason')::text) as released;

-- DropUnusedRateLimits deletes at most max buckets that have been full for at least unused_for, and returns how many; call it again
-- until it returns 0. For operators.
-- name: DropUnusedRateLimits :one
select lock.drop_unused_rate_limits(unused_for => sqlc.arg('unused_for')::interval, max => sqlc.arg('max')::integer) as dropped;

-- GetRateLimitStatus says how many tokens of a bucket remain by the limits of its last grant, and when it is full; pgx.ErrNoRows when
-- it is not known, and so full.
-- name: GetRateLimitStatus :one
select * from lock.rate_limit_status where limit_id = sqlc.arg('limit_id')::text;
