-- create_timeout makes a timeout that can be acquired at once. When it exists, the call returns
-- false and gives it the new interval.
create or replace function lock.create_timeout(
    task_id  text,
    timeout  interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_id(create_timeout.task_id, 'task_id');
    perform lock_internal.check_interval(create_timeout.timeout, 'timeout', false);
    -- As text, because 1 month and 30 days are equal as intervals.
    perform
    from lock.timeout
    where timeout.task_id = create_timeout.task_id
      and timeout.timeout::text = create_timeout.timeout::text;
    if found then
        return false;
    end if;
    insert into lock.timeout (task_id, timeout)
    values (create_timeout.task_id, create_timeout.timeout)
    on conflict do nothing;
    if found then
        return true;
    end if;
    update lock.timeout
    set
        timeout = create_timeout.timeout,
        unused_since = greatest(timeout.unused_since, lock_internal.full_hour(lock_internal.utc(timeout.ts) + create_timeout.timeout))
    where timeout.task_id = create_timeout.task_id;
    if not found then
        perform lock_internal.give_up('timeout', create_timeout.task_id);
    end if;
    return false;
end;
$$;

comment on function lock.create_timeout(text, interval) is
    'Makes a timeout that can be acquired at once and returns true (task_id: 1 to 1024 bytes; '
    'timeout: over 0, up to 100 years). When the timeout exists, the call returns false and gives '
    'it the new interval, which counts from the last grant. A day is 24 hours, whatever the '
    'session''s time zone; months and years are calendar arithmetic in UTC. The call writes '
    'nothing when the timeout exists with this interval. It waits for a transaction that is '
    'making, changing or acquiring the timeout. Errors: 22004, 22023 bad arguments, 25006 '
    'read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, or when it is being '
    'dropped.';
