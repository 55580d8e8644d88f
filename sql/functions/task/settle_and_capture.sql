-- settle_and_capture is a worker's steady state in one call: it settles the last batch, then
-- captures the next.
--
-- The order matters. Settling may wait for a row that a capture has locked for a moment, and
-- capturing never waits. So no circle can close. Workers that captured first and settled later in
-- one transaction could deadlock with each other.
create or replace function lock.settle_and_capture(
    ids        text[],
    attempts   bigint[],
    results    text[],
    max        integer,
    queue_id   text         default 'default',
    statuses   text[]       default '{new,failed}',
    owner      text         default null,
    delays     interval[]   default null,
    messages   text[]       default null,
    since      timestamptz  default null,
    shortest   interval     default '1 second',
    longest    interval     default '1 hour',
    max_tries  integer      default 25
)
returns setof lock.task
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if settle_and_capture.shortest is distinct from '1 second' or settle_and_capture.longest is distinct from '1 hour' or settle_and_capture.max_tries is distinct from 25 then
        perform lock_internal.check_interval(settle_and_capture.shortest, 'shortest', true);
        perform lock_internal.check_interval(settle_and_capture.longest, 'longest', true);
        perform lock_internal.check_count(settle_and_capture.max_tries, 'max_tries');
        if settle_and_capture.longest < settle_and_capture.shortest then
            raise exception 'longest is %, and shorter than shortest, which is %', settle_and_capture.longest, settle_and_capture.shortest
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass the bounds of the pause between two tries.';
        end if;
    end if;
    if settle_and_capture.ids is distinct from '{}' then
        perform lock_internal.settle(
            settle_and_capture.ids, settle_and_capture.attempts, settle_and_capture.results, settle_and_capture.queue_id,
            settle_and_capture.delays, settle_and_capture.messages, settle_and_capture.shortest, settle_and_capture.longest,
            settle_and_capture.max_tries, settle_and_capture.statuses
        );
    end if;
    if settle_and_capture.max = 0 then
        perform lock_internal.check_id(settle_and_capture.queue_id, 'queue_id');
        return;
    end if;
    return query
        select *
        from lock.capture(
            settle_and_capture.max, settle_and_capture.queue_id, settle_and_capture.statuses, settle_and_capture.owner, settle_and_capture.since,
            settle_and_capture.max_tries
        );
end;
$$;

comment on function lock.settle_and_capture(
    text[], bigint[], text[], integer, text, text[], text, interval[], text[], timestamptz,
    interval, interval, integer
) is
    'Settles a worker''s last batch, leaving out what is stale. Then it captures the next as '
    'lock.capture does, and returns that; max 0: captures nothing. One round trip and one commit '
    'for both, and no deadlock between workers. ids, attempts: as captured. results: one for each '
    'id. delays and messages, as in lock.set_status: one for each id, or null. It does what the '
    'results say. new: as if the task had not been captured; when statuses leave out new, it gets '
    'the first of them. done: done. failed: to be captured again after its delay, and without one '
    'at once. dead: failed, and no capture is left. retry: failed, to be captured again after its '
    'delay. Without a delay it pauses between shortest and longest: the pause doubles with its '
    'tries, with jitter. A retried task without a retries_left of its own is dead after '
    'max_tries. So is one whose time runs out. Pass empty arrays when there is nothing to settle. '
    'Errors: those of lock.set_statuses and lock.capture, 22023 bad shortest, longest or '
    'max_tries; then it neither settles nor captures.';
