-- drop_unused_time_slots forgets tasks whose newest slot ended, and was granted, long ago.
--
-- It finds them as drop_unused_timeouts does.
create or replace function lock.drop_unused_time_slots(
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
    before   constant timestamp := lock_internal.unused_before(drop_unused_time_slots.unused_for, drop_unused_time_slots.max);
    dropped  bigint;
begin
    delete from lock.time_slot
    where time_slot.task_id = any(array(
        select oldest.task_id
        from lock.time_slot as oldest
        where oldest.unused_since <= before
          and greatest(lock_internal.utc(oldest.slot_start) + oldest.resolution, lock_internal.utc(oldest.granted_at)) < before
        order by oldest.unused_since
        limit drop_unused_time_slots.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;

comment on function lock.drop_unused_time_slots(interval, integer) is
    'For operators. Forgets at most max tasks whose newest slot ended, and was granted, at least '
    'unused_for ago; returns how many. The longest unused go first. Call it again until it '
    'returns 0. A dropped task remembers no slot: an at that is older than unused_for is granted '
    'again. So unused_for must exceed the age of the latest data point that a producer may still '
    'send. With at left out no slot is ever granted twice. It never waits. Times are kept to the '
    'hour, so one can stay up to an hour longer. Errors: 22004, 22023 bad arguments, 25006 '
    'read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
