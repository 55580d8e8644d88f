-- drop_unused_throttled_resources deletes throttled resources whose interval passed long ago.
--
-- It finds them as drop_unused_timeouts does.
create or replace function lock.drop_unused_throttled_resources(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    before   constant timestamp := lock_internal.unused_before(drop_unused_throttled_resources.unused_for, drop_unused_throttled_resources.max);
    dropped  bigint;
begin
    delete from lock.throttled_resource
    where throttled_resource.resource_id = any(array(
        select oldest.resource_id
        from lock.throttled_resource as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.last_locked) + oldest.throttle_interval < before
        order by oldest.unused_since
        limit drop_unused_throttled_resources.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;

comment on function lock.drop_unused_throttled_resources(interval, integer) is
    'For the schema''s owner. Deletes at most max throttled resources whose last interval, or making when they were never locked, ended at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'Never one that is denied now, never waits. A dropped one must be made again: until then locking it is an error (P0002). Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
