-- force_release_time_slot forgets which slot was the newest, and records the operator and the
-- reason.
create or replace function lock.force_release_time_slot(
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
    perform lock_internal.check_id(force_release_time_slot.task_id, 'task_id');
    perform lock_internal.check_text(force_release_time_slot.reason, 'reason');
    select to_jsonb(time_slot) into previous
    from lock.time_slot
    where time_slot.task_id = force_release_time_slot.task_id
      and time_slot.slot_start > '-infinity'
    for no key update;
    if not found then
        return false;
    end if;
    update lock.time_slot
    set slot_start = '-infinity', resolution = '0'
    where time_slot.task_id = force_release_time_slot.task_id;
    perform lock_internal.record_forced_release('time_slot', force_release_time_slot.task_id, force_release_time_slot.reason, previous);
    return true;
end;
$$;

comment on function lock.force_release_time_slot(text, text) is
    'For operators. Forgets the newest slot of a task and returns true; false when there is '
    'nothing to forget. After that any slot can be acquired next, even one that was granted '
    'before. Use it when a producer took a slot far in the future, or when a clock was set back. '
    'lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'The call waits for a transaction that has just acquired a slot. Errors: 22004, 22023 bad '
    'arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
