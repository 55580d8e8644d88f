-- force_release_mutex takes a mutex away from its holder, and records the operator and the reason.
create or replace function lock.force_release_mutex(
    task_id  text,
    reason   text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    previous  jsonb;
begin
    perform lock_internal.check_id(force_release_mutex.task_id, 'task_id');
    perform lock_internal.check_text(force_release_mutex.reason, 'reason');
    select to_jsonb(mutex) into previous
    from lock.mutex
    where mutex.task_id = force_release_mutex.task_id
      and mutex.acquired
    for no key update;
    if not found then
        return false;
    end if;
    update lock.mutex
    set
        acquired = false,
        owner = null,
        acquired_at = null,
        released_at = clock_timestamp(),
        set_aside = false,
        unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()))
    where mutex.task_id = force_release_mutex.task_id;
    perform lock_internal.record_forced_release('mutex', force_release_mutex.task_id, force_release_mutex.reason, previous);
    return true;
end;
$$;

comment on function lock.force_release_mutex(text, text) is
    'For operators. Releases a mutex, whichever owner acquired it, and returns true; false when '
    'it is not acquired. lock.forced_release records the operator, the reason (1 to 1024 bytes), '
    'and the owner and time of the acquisition. The holder is not told: make sure that it is '
    'gone. The call waits for a transaction that is releasing the mutex. Errors: 22004, 22023 bad '
    'task_id or reason, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
