-- release_mutex clears the flag and returns true; false when it is not set, or set for another
-- owner.
--
-- The update takes the row only when nobody else has it (skip locked), and tests it under its lock.
-- A caller that loses looks and waits as acquire_mutex does. The insert only waits: a row that is
-- acquired exists, and is not dropped.
create or replace function lock.release_mutex(
    task_id  text,
    owner    text  default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    if release_mutex.task_id is null
        or octet_length(release_mutex.task_id) not between 1 and 1024
        or octet_length(release_mutex.owner) not between 1 and 1024
        or pg_is_in_recovery()
    then
        perform lock_internal.check_primary();
        perform lock_internal.check_id(release_mutex.task_id, 'task_id');
        perform lock_internal.check_id(release_mutex.owner, 'owner') where release_mutex.owner is not null;
    end if;
    for round in 1 .. 100 loop
        update lock.mutex
        set
            acquired = false,
            owner = null,
            acquired_at = null,
            released_at = clock_timestamp(),
            set_aside = false,
            unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()))
        where mutex.task_id = (
            select held.task_id
            from lock.mutex as held
            where held.task_id = release_mutex.task_id
              and held.acquired
              and held.owner is not distinct from release_mutex.owner
            for no key update skip locked
        );
        if found then
            return true;
        end if;
        perform
        from lock.mutex
        where mutex.task_id = release_mutex.task_id
          and mutex.acquired
          and mutex.owner is not distinct from release_mutex.owner;
        if not found then
            return false;
        end if;
        insert into lock.mutex (task_id) values (release_mutex.task_id) on conflict do nothing;
        perform lock_internal.await_row('lock.mutex', 'task_id', release_mutex.task_id, round);
    end loop;
end;
$$;

comment on function lock.release_mutex(text, text) is
    'Releases a mutex that was acquired with the same owner (null: without one) and returns true. '
    'Returns false when it is not acquired, not by this owner, or unknown; that writes nothing. '
    'Others can acquire it when the transaction commits; rolled back, it was never released. The '
    'call waits for another transaction that is releasing the mutex. Errors: 22004, 22023 bad '
    'task_id or owner, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, '
    '40P01 deadlock, 55P03 lock_timeout, 57014 statement_timeout. After the SQL mutex (update ... '
    'and acquired != false) and the Redis one (zadd xx ch).';
