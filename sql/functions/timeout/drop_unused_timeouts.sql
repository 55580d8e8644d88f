-- drop_unused_timeouts deletes timeouts whose interval passed long ago.
create or replace function lock.drop_unused_timeouts(
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
        'lock.timeout', 'task_id',
        'ts at time zone ''UTC'' + timeout',
        drop_unused_timeouts.unused_for, drop_unused_timeouts.max
    );
$$;

comment on function lock.drop_unused_timeouts(interval, integer) is
    'For the schema''s owner. Deletes at most max timeouts whose last interval, or making when they were never acquired, ended at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'Never one that is denied now, never waits. A dropped one must be made again: until then acquiring it is an error (P0002). Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.drop_unused_timeouts(interval, integer) from public;
