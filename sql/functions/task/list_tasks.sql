-- list_tasks shows some tasks of a queue in one status. An index holds each status in the order
-- that is shown.
create or replace function lock.list_tasks(
    queue_id  text              default 'default',
    status    lock.task_status  default 'new',
    max       integer           default 100
)
returns setof lock.task
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    perform lock_internal.check_id(list_tasks.queue_id, 'queue_id');
    perform lock_internal.check_count(list_tasks.max, 'max');
    if list_tasks.status is null then
        raise exception 'status must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass new, in_progress, done or failed.';
    elsif list_tasks.status = 'in_progress' then
        return query
            select *
            from (
                (
                    select task.*
                    from lock.task
                    where task.queue_id = list_tasks.queue_id
                      and task.status = 'in_progress'
                      and task.deadline is not null
                    order by task.deadline
                    limit list_tasks.max
                )
                union all
                (
                    select task.*
                    from lock.task
                    where task.queue_id = list_tasks.queue_id
                      and task.status = 'in_progress'
                      and task.deadline is null
                    order by task.changed_at
                    limit list_tasks.max
                )
            ) as held
            order by held.deadline, held.changed_at
            limit list_tasks.max;
        return;
    end if;
    return query
        select *
        from (
            (
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.status = list_tasks.status
                  and task.status <> 'in_progress'
                  and task.retries_left is distinct from 0
                order by task.available_at
                limit list_tasks.max
            )
            union all
            (
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.status = list_tasks.status
                  and task.status <> 'in_progress'
                  and task.retries_left = 0
                order by task.available_at
                limit list_tasks.max
            )
        ) as oldest
        order by oldest.available_at
        limit list_tasks.max;
end;
$$;

comment on function lock.list_tasks(text, lock.task_status, integer) is
    'At most max tasks of a queue in one status, as they are stored. Tasks in_progress come by '
    'their deadline, those without a timeout last. Other statuses come by available_at, oldest '
    'first, dead letters (lock.dead_letter) among them. Never waits. What an open transaction has '
    'captured shows as before. Errors: 22004 null; 22023 bad queue_id, max below 1; 22P02 a '
    'status that does not exist.';
