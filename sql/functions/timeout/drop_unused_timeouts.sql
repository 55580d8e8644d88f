-- drop_unused_timeouts deletes timeouts whose interval passed long ago.
--
-- It walks the index on unused_since, which holds whole hours and only finds candidates. The plans
-- that scan or sort are switched off. A row is tested under its lock. A row that a transaction
-- holds is passed over, so what is being acquired stays.
create or replace function lock.drop_unused_timeouts(
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
    before   constant timestamp := lock_internal.unused_before(drop_unused_timeouts.unused_for, drop_unused_timeouts.max);
    dropped  bigint;
begin
    delete from lock.timeout
    where timeout.task_id = any(array(
        select oldest.task_id
        from lock.timeout as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.ts) + oldest.timeout < before
        order by oldest.unused_since
        limit drop_unused_timeouts.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;

comment on function lock.drop_unused_timeouts(interval, integer) is
    'For operators. Deletes at most max timeouts whose last interval ended at least unused_for '
    'ago. For one that was never acquired, its making counts. It deletes the longest unused first '
    'and returns how many; call it again until it returns 0. It never deletes one that is denied '
    'now, and never waits. A dropped one must be made again: until then acquiring it is an error '
    '(P0002). Times are kept to the hour, so one can stay up to an hour longer. Errors: 22004, '
    '22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
