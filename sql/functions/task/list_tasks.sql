-- list_tasks shows some tasks of a queue in one status. An index holds each status in the order
-- that is shown. Those that wait for their key are in another, key by key.
create or replace function lock.list_tasks(
    queue_id  text              default 'default',
    status    lock.task_status  default 'new',
    max       integer           default 100,
    key       text              default null
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
declare
    number  constant bigint := lock_internal.key_number(list_tasks.queue_id, list_tasks.key);
begin
    perform lock_internal.check_id(list_tasks.queue_id, 'queue_id');
    perform lock_internal.check_count(list_tasks.max, 'max');
    if list_tasks.status is null then
        raise exception 'status must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass new, in_progress, done or failed.';
    elsif list_tasks.key is not null then
        perform lock_internal.check_id(list_tasks.key, 'key');
        if list_tasks.status = 'in_progress' then
            return query
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.key_number = number
                  and task.key = list_tasks.key
                  and case task.status when 'in_progress' then 1 else 0 end = 1
                order by task.changed_at
                limit list_tasks.max;
        else
            return query
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.key_number = number
                  and task.key = list_tasks.key
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.status = list_tasks.status
                order by task.available_at
                limit list_tasks.max;
        end if;
        return;
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
                  and task.key_number is null
                order by task.available_at
                limit list_tasks.max
            )
            union all
            (
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.key_number is not null
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.status = list_tasks.status
                order by task.key_number, task.available_at
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

comment on function lock.list_tasks(text, lock.task_status, integer, text) is
    'At most max tasks of a queue in one status, as they are stored. Tasks in_progress come by '
    'their deadline, those without a timeout last. Other statuses come by available_at, oldest '
    'first, dead letters (lock.dead_letter) among them. Of tasks that wait for a key it shows '
    'those of some keys when there are more than max. key: only those that wait for this key, '
    'oldest first, or, with in_progress, those that have it (null: all tasks). Never waits. '
    'What an open transaction has captured shows as before. Errors: 22004 null; 22023 bad '
    'queue_id or key, max below 1; 22P02 a status that does not exist.';
