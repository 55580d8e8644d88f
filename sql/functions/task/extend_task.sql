-- extend_task gives the holder of an attempt more time, counted from now; false: the attempt is
-- stale.
create or replace function lock.extend_task(
    id        text,
    attempt   bigint,
    timeout   interval,
    queue_id  text  default 'default'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(extend_task.id, 'id');
    perform lock_internal.check_id(extend_task.queue_id, 'queue_id');
    perform lock_internal.check_interval(extend_task.timeout, 'timeout', true);
    if extend_task.attempt is null then
        raise exception 'attempt must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the attempt that lock.capture returned.';
    end if;
    -- The wait, if any, is in the subselect. So the new deadline counts from the end of the wait.
    update lock.task
    set deadline = (lock_internal.utc(clock_timestamp()) + extend_task.timeout) at time zone interval '0'
    where task.queue_id = extend_task.queue_id
      and task.id = (
        select held.id
        from lock.task as held
        where held.queue_id = extend_task.queue_id
          and held.id = extend_task.id
          and held.attempt = extend_task.attempt
          and held.status = 'in_progress'
        for no key update
      );
    if not found then
        perform lock_internal.check_known(extend_task.id, extend_task.queue_id);
        return false;
    end if;
    return true;
end;
$$;

comment on function lock.extend_task(text, bigint, interval, text) is
    'Gives the holder of an attempt timeout from now on. It does so even after its time has run '
    'out, if nobody took the task over. False: the attempt is stale, and the work should stop. '
    'The task''s own timeout stays for later attempts. Waits while another transaction is '
    'changing the task. Errors: P0002 unknown task; 22004 null; 22023 bad id, timeout not '
    'positive, infinite or with months.';
