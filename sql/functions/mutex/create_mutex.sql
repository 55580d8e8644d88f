-- create_mutex makes a mutex that nobody has acquired and returns true; false when it exists.
create or replace function lock.create_mutex(
    task_id  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(create_mutex.task_id, 'task_id');
    perform lock_internal.check_primary();
    perform from lock.mutex where mutex.task_id = create_mutex.task_id;
    if found then
        return false;
    end if;
    insert into lock.mutex (task_id)
    values (create_mutex.task_id)
    on conflict do nothing;
    return found;
end;
$$;

comment on function lock.create_mutex(text) is
    'Makes a mutex that nobody has acquired and returns true; false when it exists, acquired or '
    'not. task_id has 1 to 1024 bytes. It is optional: lock.acquire_mutex makes what it needs. '
    'The call waits only for a transaction that is making the same mutex. Rolled back, the mutex '
    'never was. Errors: 22004, 22023 bad task_id, 25006 read-only or standby, 40001 under '
    'REPEATABLE READ and SERIALIZABLE. After the Redis mutex: zadd nx 0.';
