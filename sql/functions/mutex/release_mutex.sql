-- release_mutex clears the flag and returns true; false when it is not set, or set for another owner.
--
-- It tries, looks, grabs and waits as acquire_mutex does, so a loser has written nothing. The insert can only succeed when the mutex was released and
-- dropped meanwhile, and then makes an idle one.
create or replace function lock.release_mutex(
    task_id  text,
    owner    text  default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    grabbed  boolean not null := false;
    attempt  integer not null := 0;
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
    loop
        update lock.mutex
        set
            acquired = false,
            owner = null,
            acquired_at = null,
            released_at = clock_timestamp(),
            set_aside = false,
            unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()))
        where mutex.task_id = release_mutex.task_id
          and case
                when mutex.acquired and mutex.owner is not distinct from release_mutex.owner
                then lock_internal.uncontended(mutex.task_id) or grabbed
              end;
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
        if attempt > 0 then
            perform
            from lock.mutex
            where mutex.task_id = release_mutex.task_id
              and mutex.acquired
              and mutex.owner is not distinct from release_mutex.owner
            for no key update skip locked;
            grabbed := found;
            continue when grabbed;
        end if;
        insert into lock.mutex (task_id)
        values (release_mutex.task_id)
        on conflict do nothing;
        attempt := attempt + 1;
        if attempt > 1 then
            perform lock_internal.await_row('lock.mutex', 'task_id', release_mutex.task_id);
        end if;
        if attempt = 100 then
            perform lock_internal.give_up('mutex', release_mutex.task_id);
        end if;
    end loop;
end;
$$;

comment on function lock.release_mutex(text, text) is
    'Releases a mutex that was acquired with the same owner (null: without one) and returns true; false when it is not acquired, not by this owner, or unknown. '
    'Others can acquire it when the transaction commits; rolled back, it was never released. A denial writes nothing. Waits for another transaction that is releasing it. '
    'Errors: 22004, 22023 bad task_id or owner, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01, 55P03 lock_timeout. '
    'After the SQL mutex (update ... and acquired != false) and the Redis one (zadd xx ch).';

revoke all on function lock.release_mutex(text, text) from public;
