-- settle_request ends what a process captured in this transaction, and returns how many requests:
-- as complete or error, or back for another try.
--
-- Nobody interleaves, because the transaction holds the entities' locks. A request that came later
-- is not in request_batch. A request that is put back until later makes its whole entity wait. So
-- up to 1000 others of the entity get the same available_at, and no search meets them.
create or replace function lock.settle_request(
    process_id  uuid,
    status      text      default 'complete',
    message     text      default null,
    delay       interval  default '0',
    expects     bigint    default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    ended    constant timestamptz := case when settle_request.status in ('complete', 'error') then clock_timestamp() end;
    until    timestamptz;
    settled  bigint;
begin
    if settle_request.process_id is null or settle_request.status is null then
        raise exception '% must not be null', case when settle_request.process_id is null then 'process_id' else 'status' end
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the process_id of lock.capture_request, and complete, error, retry or new.';
    elsif settle_request.status not in ('complete', 'error', 'retry', 'new') then
        raise exception 'status is %, and must be complete, error, retry or new', left(settle_request.status, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass complete or error, retry to put the requests back for another try, or new to put them back untried.';
    elsif settle_request.delay is distinct from interval '0' then
        perform lock_internal.check_interval(settle_request.delay, 'delay', false);
        if settle_request.status in ('complete', 'error') then
            raise exception 'a request that is settled as % cannot have a delay', settle_request.status
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass a delay with status retry or new only: it is the time until the next try.';
        end if;
    end if;

    if settle_request.delay > interval '0' then
        until := (lock_internal.utc(clock_timestamp()) + settle_request.delay) at time zone interval '0';
        update lock.request
        set available_at = until
        where request.request_id = any (array(
            select behind.request_id
            from lock.request_batch
            cross join lateral (
                select request.request_id
                from lock.request
                where request.queue_id = request_batch.queue_id
                  and request.entity_id = request_batch.entity_id
                  and request.settled_at is null
                  and request.request_status = 'new'
                order by request.request_id + 0
                limit 1000
            ) as behind
            where request_batch.process_id = settle_request.process_id
        ));
    end if;
    with batch as (
        delete from lock.request_batch
        where request_batch.process_id = settle_request.process_id
        returning request_batch.request_ids
    )
    update lock.request
    set request_status = case when ended is null then 'new' else settle_request.status end::lock.request_status,
        tries = request.tries - (settle_request.status = 'new')::integer,
        process_id = case when ended is not null then request.process_id end,
        started_at = case when ended is not null then request.started_at end,
        message = left(settle_request.message, 4000),
        available_at = case when ended is null then until else request.available_at end,
        settled_at = ended
    where request.request_id = any (array(select unnest(batch.request_ids) from batch));
    get diagnostics settled = row_count;
    if settled <> settle_request.expects then
        raise exception 'process % settles % requests of this transaction, and expects %',
            settle_request.process_id, settled, settle_request.expects
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Something else settled or deleted requests of the batch, or began another transaction.';
    end if;
    return settled;
end;
$$;

comment on function lock.settle_request(uuid, text, text, interval, bigint) is
    'Settles everything that process_id captured in this transaction, as complete or error. It '
    'keeps the first 4000 characters of message. Returns how many requests that were. 0: there '
    'were none, they are settled already, or another transaction has them. retry puts them back '
    'at their old place for another try, not before delay is over. lock.capture_request counts '
    'the tries. new is the same as if they had not been captured: the try does not count. '
    'expects: how many it should be; null: any number. With another number it raises 55000. The '
    'caller has the entity until the transaction ends. Never waits. Errors: 22004 null, 22023 bad '
    'status or delay, 55000 not what expects says.';
