-- next_task_in says after how long a capture may find something that it does not find now; no row:
-- not by itself.
--
-- It looks at what is stored. So it is zero or less while another transaction holds a task that is
-- due, and may yet roll back.
create or replace function lock.next_task_in(
    queue_id  text    default 'default',
    statuses  text[]  default '{new,failed}'
)
returns setof interval
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    wanted   lock.task_status;
    soonest  timestamptz;
    per_key  integer;
begin
    perform lock_internal.check_id(next_task_in.queue_id, 'queue_id');
    perform lock_internal.check_statuses(next_task_in.statuses);
    if exists (select from lock_internal.is_paused('task', next_task_in.queue_id)) then
        return;
    end if;
    -- Not by min(): where the statistics are late, that reads all of a queue.
    select task.deadline into soonest
    from lock.task
    where task.queue_id = next_task_in.queue_id
      and task.status = 'in_progress'
      and task.deadline is not null
    order by task.deadline
    limit 1;
    foreach wanted in array next_task_in.statuses::lock.task_status[] loop
        soonest := least(soonest, (
            select task.available_at
            from lock.task
            where task.queue_id = next_task_in.queue_id
              and task.status = wanted
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
            order by task.available_at
            limit 1
        ));
    end loop;
    if exists (
        select
        from lock.task
        where task.queue_id = next_task_in.queue_id
          and task.key_number is not null
          and case task.status when 'in_progress' then 1 else 0 end = 0
    ) then
        -- Somebody has the lock of a key that has a place: the look before did not get its task.
        per_key := coalesce((select queue_limit.per_key from lock.queue_limit where queue_limit.queue_id = next_task_in.queue_id), 1);
        if exists (select from lock_internal.open_keys(next_task_in.queue_id, next_task_in.statuses, per_key, 0)) then
            soonest := least(soonest, clock_timestamp());
        end if;
    end if;
    if soonest is not null then
        return next least(soonest - clock_timestamp(), interval '36525 days');
    end if;
end;
$$;

comment on function lock.next_task_in(text, text[]) is
    'After how long (100 years at most) the next task of a queue becomes available or times '
    'out, by what is stored now. Zero or less: a transaction that is still open holds a task '
    'that is due. No row: there is none, or the queue is paused. Tasks whose key is full do not '
    'count. For a worker that found nothing and wants to know how long to sleep. Never waits. '
    'Errors: 22004 null, 22023 bad names.';
