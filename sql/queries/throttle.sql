-- CreateThrottledResource makes a resource that is granted at most Permits times (1 to 100; 0: 1)
-- in any window of the interval, and can be locked at once; false when it exists, and then it has
-- the new interval and permits. For intervals of months or years call
-- lock.create_throttled_resource in SQL: a Go duration has a fixed length.
-- name: CreateThrottledResource :one
select lock.create_throttled_resource(
    resource_id => sqlc.arg('resource_id')::text,
    throttle_interval => sqlc.arg('throttle_interval')::interval,
    permits => coalesce(nullif(sqlc.arg('permits')::integer, 0), 1)
) as created;

-- LockThrottledResource returns true at most permits times in any window of the resource's
-- interval, and never waits. details says who and why. Commit at once and work afterwards: rolled
-- back, the grant never was. Errors keep their SQLSTATE: 22004, 22023, P0002 never created, 25006,
-- 40001.
-- name: LockThrottledResource :one
select lock.lock_throttled_resource(resource_id => sqlc.arg('resource_id')::text, details => sqlc.arg('details')::text) as locked;

-- ForceReleaseThrottledResource lets a resource be locked at once, and records the operator and the
-- reason in lock.forced_release; false when its interval has passed anyway, for every permit. For
-- operators.
-- name: ForceReleaseThrottledResource :one
select lock.force_release_throttled_resource(
    resource_id => sqlc.arg('resource_id')::text, reason => sqlc.arg('reason')::text
) as released;

-- DropUnusedThrottledResources deletes at most max resources (0: 10000) whose interval ended at
-- least unusedFor ago, and returns how many; call it again until it returns 0. For operators.
-- name: DropUnusedThrottledResources :one
select lock.drop_unused_throttled_resources(unused_for => sqlc.arg('unused_for')::interval, max => coalesce(nullif(sqlc.arg('max')::integer, 0), 10000)) as dropped;

-- GetThrottledResourceStatus says who locked a resource last, until when it is throttled, how many
-- permits are left and when there will be one more; pgx.ErrNoRows when it is not known. A month of
-- ThrottleInterval counts 30 days; the times are exact.
-- name: GetThrottledResourceStatus :one
select * from lock.throttled_resource_status where resource_id = sqlc.arg('resource_id')::text;

-- LockThrottledResourceEvery is LockThrottledResource for a resource that need not be there: it is
-- made when it is new, and has this interval and these permits (1 to 100; 0: 1) from then on, as
-- CreateThrottledResource says.
-- name: LockThrottledResourceEvery :one
select lock.lock_throttled_resource(resource_id => sqlc.arg('resource_id')::text, details => sqlc.arg('details')::text) as locked
from (
    select lock.create_throttled_resource(
        resource_id => sqlc.arg('resource_id')::text,
        throttle_interval => sqlc.arg('throttle_interval')::interval,
        permits => coalesce(nullif(sqlc.arg('permits')::integer, 0), 1)
    ) as made
    offset 0
) as resource
where resource.made is not null;
