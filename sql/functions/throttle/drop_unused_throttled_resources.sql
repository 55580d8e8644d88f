-- drop_unused_throttled_resources deletes throttled resources whose interval passed long ago.
--
-- It finds them as drop_unused_timeouts does, and drops one of several permits only when it could
-- lock them all.
create or replace function lock.drop_unused_throttled_resources(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    before   constant timestamp := lock_internal.unused_before(drop_unused_throttled_resources.unused_for, drop_unused_throttled_resources.max);
    unused   text[];
    dropped  bigint;
begin
    unused := array(
        select oldest.resource_id
        from lock.throttled_resource as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.last_locked) + oldest.throttle_interval < before
          and (
            oldest.permits = 1
            or not exists (
                select
                from lock.throttled_permit
                where throttled_permit.resource_id = oldest.resource_id
                  and lock_internal.utc(throttled_permit.last_locked) + throttled_permit.throttle_interval >= before
            )
          )
        order by oldest.unused_since
        limit drop_unused_throttled_resources.max
        for update skip locked
    );
    with locked as (
        select throttled_permit.resource_id
        from lock.throttled_permit
        where throttled_permit.resource_id = any(unused)
          and lock_internal.utc(throttled_permit.last_locked) + throttled_permit.throttle_interval < before
        for update skip locked
    )
    select array_agg(throttled_resource.resource_id) into unused
    from lock.throttled_resource
    left join (select locked.resource_id, count(*) as permits from locked group by locked.resource_id) as idle
        on idle.resource_id = throttled_resource.resource_id
    where throttled_resource.resource_id = any(unused)
      and (throttled_resource.permits = 1 or throttled_resource.permits = idle.permits);
    delete from lock.throttled_permit where throttled_permit.resource_id = any(unused);
    delete from lock.throttled_resource where throttled_resource.resource_id = any(unused);
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;

comment on function lock.drop_unused_throttled_resources(interval, integer) is
    'For operators. Deletes at most max throttled resources whose last interval, or making when '
    'they were never locked, ended at least unused_for ago. It deletes the longest unused first '
    'and returns how many; call it again until it returns 0. It never deletes one that is denied '
    'now, and never waits. A dropped one must be made again: until then locking it is an error '
    '(P0002). Times are kept to the hour, so one can stay up to an hour longer. Errors: 22004, '
    '22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
