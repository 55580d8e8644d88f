-- settle_and_capture is a worker's steady state in one call: it settles the last batch, then captures the next.
--
-- In this order: settling may wait for a row that a capture has locked for a moment, and capturing never waits, so no circle
-- can close. A worker that captured first and settled later in one transaction could deadlock with its like.
create or replace function lock.settle_and_capture(
    ids       text[],
    attempts  bigint[],
    results   text[],
    max       integer,
    queue_id  text         default 'default',
    statuses  text[]       default '{new,failed}',
    owner     text         default null,
    delays    interval[]   default null,
    since     timestamptz  default null
)
returns setof lock.task
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if settle_and_capture.ids is distinct from '{}' then
        perform lock_internal.settle(
            settle_and_capture.ids, settle_and_capture.attempts, settle_and_capture.results, settle_and_capture.queue_id,
            settle_and_capture.delays
        );
    end if;
    return query
        select *
        from lock.capture(settle_and_capture.max, settle_and_capture.queue_id, settle_and_capture.statuses, settle_and_capture.owner, settle_and_capture.since);
end;
$$;

comment on function lock.settle_and_capture(text[], bigint[], text[], integer, text, text[], text, interval[], timestamptz) is
    'Settles a worker''s last batch (ids, attempts as captured, results: new, done or failed each; delays: one each, or null), as '
    'lock.set_statuses does and leaving out what is stale, then captures the next batch as lock.capture does, and returns that (since: as there). One round trip '
    'and one commit for both, and no deadlock between workers. Pass empty arrays when there is nothing to settle. '
    'Errors: those of lock.set_statuses and lock.capture; none of both happens then.';
