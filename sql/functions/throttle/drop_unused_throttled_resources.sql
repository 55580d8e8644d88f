-- drop_unused_throttled_resources deletes throttled resources whose interval passed long ago.
create or replace function lock.drop_unused_throttled_resources(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    select lock_internal.drop_unused(
        'lock.throttled_resource', 'resource_id',
        'last_locked at time zone ''UTC'' + throttle_interval',
        drop_unused_throttled_resources.unused_for, drop_unused_throttled_resources.max
    );
$$;

comment on function lock.drop_unused_throttled_resources(interval, integer) is
    'For the schema''s owner. Deletes at most max throttled resources whose last interval, or making when they were never locked, ended at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'Never one that is denied now, never waits. A dropped one must be made again: until then locking it is an error (P0002). Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.drop_unused_throttled_resources(interval, integer) from public;
