-- force_release_timeout lets a timeout be acquired at once, and records the operator and the
-- reason.
create or replace function lock.force_release_timeout(
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
    perform lock_internal.check_id(force_release_timeout.task_id, 'task_id');
    perform lock_internal.check_text(force_release_timeout.reason, 'reason');
    select to_jsonb(held) into previous
    from lock.timeout as held
    where held.task_id = force_release_timeout.task_id
      and lock_internal.utc(held.ts) + held.timeout >= lock_internal.utc(clock_timestamp())
    for no key update;
    if not found then
        perform from lock.timeout where timeout.task_id = force_release_timeout.task_id;
        if found then
            return false;
        end if;
        raise exception 'timeout "%" was never created', force_release_timeout.task_id
            using errcode = 'no_data_found',
                  hint = 'Pass a task_id that exists: select task_id from lock.timeout lists them.';
    end if;
    update lock.timeout
    set ts = '-infinity'
    where timeout.task_id = force_release_timeout.task_id;
    perform lock_internal.record_forced_release('timeout', force_release_timeout.task_id, force_release_timeout.reason, previous);
    return true;
end;
$$;

comment on function lock.force_release_timeout(text, text) is
    'For operators. Lets a timeout be acquired at once and returns true; false when its interval '
    'has passed anyway. lock.forced_release records the operator, the reason (1 to 1024 bytes) '
    'and what was stored. The call waits for a transaction that has just acquired the timeout. '
    'Errors: 22004, 22023 bad arguments, P0002 never created, 25006 read-only, 40001 under '
    'REPEATABLE READ and SERIALIZABLE.';
