-- drop_unused_time_slots forgets tasks whose newest slot ended, and was granted, long ago.
create or replace function lock.drop_unused_time_slots(
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
        'lock.time_slot', 'task_id',
        'greatest(slot_start at time zone ''UTC'' + resolution, granted_at at time zone ''UTC'')',
        drop_unused_time_slots.unused_for, drop_unused_time_slots.max
    );
$$;

comment on function lock.drop_unused_time_slots(interval, integer) is
    'For the schema''s owner. Forgets at most max tasks whose newest slot ended, and was granted, at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'A dropped task remembers no slot: an at that is older than unused_for is granted again. So unused_for must exceed the age of the latest data point that a producer may still send. '
    'With at left out no slot is ever granted twice. Never waits. Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.drop_unused_time_slots(interval, integer) from public;
