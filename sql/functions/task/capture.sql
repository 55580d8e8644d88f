-- capture is lock.settle_and_capture with nothing to settle. How no task is given to two callers
-- stands there.
create or replace function lock.capture(
    max        integer,
    queue_id   text         default 'default',
    statuses   text[]       default '{new,failed}',
    owner      text         default null,
    since      timestamptz  default null,
    max_tries  integer      default null
)
returns setof lock.task
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if (capture.max > 0) is not true then
        perform lock_internal.check_count(capture.max, 'max');
    end if;
    return query
        select *
        from lock.settle_and_capture(
            '{}', '{}', '{}', capture.max, capture.queue_id, capture.statuses, capture.owner, since => capture.since,
            max_tries => capture.max_tries
        );
end;
$$;

comment on function lock.capture(integer, text, text[], text, timestamptz, integer) is
    'Takes at most max tasks of a queue for the caller: in_progress, attempt + 1, tries + 1, '
    'retries_left - 1. Tasks that have been in_progress for longer than their timeout come first. '
    'Then come statuses in their order of preference, and within one status the oldest '
    'available_at first. Returns the tasks as they are now; give their attempt back to '
    'lock.set_status. Never waits and never gives one attempt to two callers. No row: nothing can '
    'be had now, or the queue is paused (lock.pause_queue). owner is kept only for people to '
    'read. since: only tasks that became available then or later, and none that timed out (null: '
    'everything; infinity or a time to come: nothing). It is for workers that take one full batch '
    'after the other, so that an old snapshot does not slow them down. Pass the last available_at '
    'of a full batch. Pass null when a batch was not full, and once a second. In a transaction: a '
    'rollback puts the tasks back, and other captures skip them until then. Settle before you '
    'capture, and do nothing that can wait afterwards. A timed-out task without a retry becomes '
    'failed instead. So does one without a retries_left of its own after max_tries captures '
    '(null: never). Errors: 22004 null max, queue_id or statuses; 22023 max or max_tries below 1, '
    'bad names; 40001 under REPEATABLE READ and SERIALIZABLE. From the state transition of the '
    'SQL locks article, whose query gives one task to two callers.';
