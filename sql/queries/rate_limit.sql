-- Take takes Cost tokens (0: 1) from a bucket of Burst tokens (0: as many as Rate) that gets Rate of
-- them back per Per. It says whether it did, how many remain, and after how long the same call is
-- granted. A bucket that is new is made, and is full. Commit at once: a call that finds enough
-- tokens waits for a transaction that has taken some and not ended. Errors keep their SQLSTATE:
-- 22004, 22023, 25006, 40001.
-- name: Take :one
select * from lock.take(
    limit_id => sqlc.arg('limit_id')::text,
    rate => sqlc.arg('rate')::bigint,
    per => sqlc.arg('per')::interval,
    burst => nullif(sqlc.arg('burst')::bigint, 0),
    cost => coalesce(nullif(sqlc.arg('cost')::bigint, 0), 1)
);

-- ForceReleaseRateLimit fills a bucket, and records the operator and the reason in
-- lock.forced_release; false when it is full anyway. For operators.
-- name: ForceReleaseRateLimit :one
select lock.force_release_rate_limit(limit_id => sqlc.arg('limit_id')::text, reason => sqlc.arg('reason')::text) as released;

-- DropUnusedRateLimits deletes at most max buckets (0: 10000) that have been full for at least
-- unusedFor, and returns how many; call it again until it returns 0. For operators.
-- name: DropUnusedRateLimits :one
select lock.drop_unused_rate_limits(unused_for => sqlc.arg('unused_for')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)) as dropped;

-- GetRateLimitStatus says how many tokens of a bucket remain by the limits of its last grant, and
-- when it is full; pgx.ErrNoRows when it is not known, and so full.
-- name: GetRateLimitStatus :one
select * from lock.rate_limit_status where limit_id = sqlc.arg('limit_id')::text;
