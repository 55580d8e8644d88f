-- retry_tasks makes dead letters of a queue new once more, the oldest first, and returns how many.
--
-- It never waits: it passes over a dead letter that another transaction is changing.
create or replace function lock.retry_tasks(
    queue_id      text     default 'default',
    retries_left  integer  default 1,
    max           integer  default 1000
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
    wanted   lock.task_status;
    moved    bigint;
    revived  bigint := 0;
begin
    perform lock_internal.check_id(retry_tasks.queue_id, 'queue_id');
    perform lock_internal.check_count(coalesce(retry_tasks.retries_left, 1), 'retries_left');
    perform lock_internal.check_count(retry_tasks.max, 'max');
    foreach wanted in array '{failed,new}'::lock.task_status[] loop
        update lock.task
        set status = 'new',
            tries = 0,
            retries_left = retry_tasks.retries_left,
            key_number = lock_internal.key_number(task.queue_id, task.key),
            available_at = clock_timestamp(),
            changed_at = clock_timestamp()
        where task.queue_id = retry_tasks.queue_id
          and task.id = any (array(
            select dead.id
            from lock.task as dead
            where dead.queue_id = retry_tasks.queue_id
              and dead.status = wanted
              and dead.status <> 'in_progress'
              and dead.retries_left = 0
            order by dead.available_at
            limit retry_tasks.max - revived
            for update skip locked
          ));
        get diagnostics moved = row_count;
        revived := revived + moved;
    end loop;
    if revived > 0 then
        perform lock_internal.wake('lock_task', retry_tasks.queue_id);
    end if;
    return revived;
end;
$$;

comment on function lock.retry_tasks(text, integer, integer) is
    'Revives at most max dead letters of a queue (lock.dead_letter). Those that died first come '
    'first, and those that never were tried come last. The tasks are new, available now, with '
    'retries_left captures ahead (null: any number). Returns how many: call it again while it '
    'returns max. Their tries are 0 again. Never waits: it passes over what another transaction '
    'is changing. Wakes idle workers at commit. Errors: 22004 null queue_id or max; 22023 bad '
    'queue_id, retries_left or max below 1; 40001 under REPEATABLE READ and SERIALIZABLE.';
