-- purge_tasks deletes settled tasks that nobody has touched for a while, oldest first, and returns
-- how many.
create or replace function lock.purge_tasks(
    older_than  interval,
    max         integer           default 10000,
    queue_id    text              default 'default',
    status      lock.task_status  default 'done'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    before  timestamptz;
    chosen  text[];
    purged  bigint;
begin
    perform lock_internal.check_interval(purge_tasks.older_than, 'older_than', false);
    perform lock_internal.check_task(purge_tasks.queue_id, purge_tasks.status, null, null, null);
    if purge_tasks.status not in ('done', 'failed') then
        raise exception 'only done and failed tasks can be purged, not %', purge_tasks.status
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass done, or failed for the dead letters.';
    end if;
    perform lock_internal.check_count(purge_tasks.max, 'max');
    before := clock_timestamp() - purge_tasks.older_than;
    chosen := array(
        select task.id
        from lock.task
        where task.queue_id = purge_tasks.queue_id
          and task.status = purge_tasks.status
          and task.status <> 'in_progress'
          and task.retries_left = 0
          and task.available_at < before
        order by task.available_at
        limit purge_tasks.max
        for update skip locked
    );
    if purge_tasks.status = 'done' then
        chosen := chosen || array(
            select task.id
            from lock.task
            where task.queue_id = purge_tasks.queue_id
              and task.status = purge_tasks.status
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
              and task.available_at < before
            order by task.available_at
            limit purge_tasks.max - cardinality(chosen)
            for update skip locked
        );
    end if;
    delete from lock.task
    where task.queue_id = purge_tasks.queue_id
      and task.id = any (chosen);
    get diagnostics purged = row_count;
    return purged;
end;
$$;

comment on function lock.purge_tasks(interval, integer, text, lock.task_status) is
    'For operators. Deletes at most max done tasks that were settled longer than older_than ago, '
    'oldest first, and returns how many. With status failed it deletes dead letters, and never a '
    'task that can still be captured as failed. Skips tasks that other transactions hold, and '
    'never waits. Call it until it returns less than max. A purged id can be created again; then '
    'its attempt counts from 0. Errors: 22004 null; 22023 bad interval, max below 1, other '
    'statuses.';
