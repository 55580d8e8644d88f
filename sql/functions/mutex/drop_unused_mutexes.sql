-- drop_unused_mutexes deletes mutexes that were released long ago, and never one that is acquired.
--
-- Any number of the oldest rows can be acquired ones. A call that meets them sets them aside until
-- they are released, out of the index that it walks. So they are in the way of one call, and not of
-- every call. A call that met only such rows goes on. Therefore 0 means that nothing is left to
-- drop.
create or replace function lock.drop_unused_mutexes(
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
    before   constant timestamp := lock_internal.unused_before(drop_unused_mutexes.unused_for, drop_unused_mutexes.max);
    idle     text[];
    held     text[];
    dropped  bigint;
begin
    loop
        select
            array_agg(oldest.task_id) filter (where not oldest.acquired),
            array_agg(oldest.task_id) filter (where oldest.acquired)
        into idle, held
        from (
            select mutex.task_id, mutex.acquired
            from lock.mutex
            where mutex.unused_since <= before
              and not mutex.set_aside
              and (mutex.acquired or lock_internal.utc(mutex.released_at) < before)
            order by mutex.unused_since
            limit drop_unused_mutexes.max
            for update skip locked
        ) as oldest;
        delete from lock.mutex
        where mutex.task_id = any(idle);
        get diagnostics dropped = row_count;
        update lock.mutex
        set set_aside = true
        where mutex.task_id = any(held);
        if dropped > 0 or held is null then
            return dropped;
        end if;
    end loop;
end;
$$;

comment on function lock.drop_unused_mutexes(interval, integer) is
    'For operators. Deletes at most max mutexes that were made or last released at least '
    'unused_for ago, and returns how many. The longest unused go first. Call it again until it '
    'returns 0. It never deletes one that is acquired, and never waits. The next acquire makes a '
    'dropped one again. Times are kept to the hour, so a mutex can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and '
    'SERIALIZABLE.';
