-- resume_queue ends a pause and wakes the queue's idle workers; false: it was not paused.
--
-- It acts as the producer of all that waits. Idle workers are told as they are of a new task or
-- request, by the same handshake.
create or replace function lock.resume_queue(
    kind      text,
    queue_id  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_kind(resume_queue.kind);
    perform lock_internal.check_id(resume_queue.queue_id, 'queue_id');
    update lock.queue_pause
    set resumed_by = session_user,
        resumed_at = clock_timestamp()
    where queue_pause.kind = resume_queue.kind
      and queue_pause.queue_id = resume_queue.queue_id
      and queue_pause.resumed_at is null;
    if not found then
        return false;
    end if;
    perform lock_internal.wake('lock_' || resume_queue.kind, resume_queue.queue_id);
    return true;
end;
$$;

comment on function lock.resume_queue(text, text) is
    'For operators. Ends a pause of lock.pause_queue, and wakes the queue''s idle workers at '
    'commit. False: it was not paused. Waits only for an open transaction that pauses or resumes '
    'the same queue. Errors: 22004 null, 22023 another kind or a bad queue_id, 25006 on a '
    'standby, 40001 under REPEATABLE READ and SERIALIZABLE.';
