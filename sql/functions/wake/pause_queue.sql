-- pause_queue makes a queue give nothing to anybody until lock.resume_queue; false: it is paused
-- already.
--
-- It stops captures that look after its commit. A capture looks once, at its beginning. A capture
-- that looked before goes on.
create or replace function lock.pause_queue(
    kind      text,
    queue_id  text,
    reason    text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    perform lock_internal.check_kind(pause_queue.kind);
    perform lock_internal.check_id(pause_queue.queue_id, 'queue_id');
    perform lock_internal.check_text(pause_queue.reason, 'reason');
    perform lock_internal.check_primary();
    if exists (select from lock_internal.is_paused(pause_queue.kind, pause_queue.queue_id)) then
        return false;
    end if;
    insert into lock.queue_pause (kind, queue_id, paused_by, reason)
    values (pause_queue.kind, pause_queue.queue_id, session_user, pause_queue.reason)
    on conflict (kind, queue_id) where resumed_at is null do nothing;
    return found;
end;
$$;

comment on function lock.pause_queue(text, text, text) is
    'For operators. Pauses a queue of kind task or request. It gives nothing to anybody, whether '
    'new, failed, timed out or put back, until lock.resume_queue. False: it is paused already, '
    'and its reason stays. Works for queues that have nothing yet. Captured work goes on and is '
    'settled as before, and producers go on producing. A capture that began before this call''s '
    'transaction committed may still take something. A transaction under REPEATABLE READ or '
    'SERIALIZABLE sees what its snapshot does. lock.queue_pause keeps the operator, the time and '
    'the reason; lock.queue_depth shows which queues are paused. Waits only for an open '
    'transaction that pauses or resumes the same queue. Errors: 22004 null; 22023 another kind, '
    'an empty or blank text, or one longer than 1024 bytes; 25006 on a standby; 40001 under '
    'REPEATABLE READ and SERIALIZABLE.';
