-- check_task refuses what no task can have.
create or replace function lock_internal.check_task(
    queue_id      text,
    status        lock.task_status,
    retries_left  integer,
    timeout       interval,
    available_at  timestamptz
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_task.queue_id is null or check_task.queue_id = '' or octet_length(check_task.queue_id) > 1024 then
        perform lock_internal.check_id(check_task.queue_id, 'queue_id');
    end if;
    if check_task.status is null then
        raise exception 'status must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass new, done or failed.';
    elsif check_task.status = 'in_progress' then
        raise exception 'only lock.capture makes a task in_progress'
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass new, done or failed.';
    elsif check_task.retries_left < 1 then
        raise exception 'retries_left must be at least 1, not %: the task could never run', check_task.retries_left
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass how many captures the task may have: 1 is one try, null any number.';
    elsif not isfinite(check_task.available_at) then
        raise exception 'available_at must be finite, not %', check_task.available_at
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass a time, or null for now.';
    end if;
    if check_task.timeout is not null then
        perform lock_internal.check_interval(check_task.timeout, 'timeout', true);
    end if;
end;
$$;
