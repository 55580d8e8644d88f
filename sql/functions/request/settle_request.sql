-- settle_request ends what a process captured in this transaction: complete, error, or new for another try; how many.
--
-- Only what was captured is settled: a request that came later is not in request_batch. The heads that capture_request found
-- free are heads no more; the others stay, settled as they are. Those that are not in the batch are written unchanged, so that
-- whoever captures the entity on a snapshot from before meets a change, and gets 40001. A delay is for the whole entity, so
-- all its heads get it.
create or replace function lock.settle_request(
    process_id  uuid,
    status      text      default 'complete',
    message     text      default null,
    delay       interval  default '0'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    batch    record;
    kept     boolean;
    until    timestamptz;
    ended    timestamptz;
    moved    bigint;
    settled  bigint := 0;
begin
    if settle_request.process_id is null or settle_request.status is null then
        raise exception '% must not be null', case when settle_request.process_id is null then 'process_id' else 'status' end
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the process_id of lock.capture_request, and complete, error or new.';
    elsif settle_request.status not in ('complete', 'error', 'new') then
        raise exception 'status is %, and must be complete, error or new', settle_request.status
            using errcode = 'invalid_parameter_value',
                  hint = 'new puts the requests back for another try.';
    elsif settle_request.delay is distinct from interval '0' then
        perform lock_internal.check_interval(settle_request.delay, 'delay', false);
        if settle_request.status <> 'new' then
            raise exception 'what is settled as % cannot have a delay', settle_request.status
                using errcode = 'invalid_parameter_value',
                      hint = 'A delay is for status new: the time until the next try.';
        end if;
    end if;

    for batch in
        delete from lock.request_batch
        where request_batch.process_id = settle_request.process_id
        returning request_batch.*
    loop
        kept := cardinality(batch.free) < cardinality(batch.heads);
        if kept then
            perform set_config('lock.heads_kept', 'true', true);
        end if;
        if settle_request.status = 'new' then
            if settle_request.delay > interval '0' then
                until := (lock_internal.utc(clock_timestamp()) + settle_request.delay) at time zone interval '0';
                update lock.request
                set available_at = until
                where request.request_id = any (batch.heads)
                  and request.request_status <> 'in-progress';
            end if;
            update lock.request
            set request_status = 'new',
                process_id = null,
                started_at = null,
                attempts = request.attempts + 1,
                message = settle_request.message,
                available_at = until,
                head = request.request_id in (select unnest(batch.heads))
            where request.request_id = any (batch.request_ids);
            get diagnostics moved = row_count;
        else
            ended := clock_timestamp();
            update lock.request
            set request_status = settle_request.status::lock.request_status,
                settled_at = ended,
                attempts = request.attempts + 1,
                message = settle_request.message,
                head = kept and request.request_id in (select unnest(batch.heads) except select unnest(batch.free))
            where request.request_id = any (batch.request_ids);
            get diagnostics moved = row_count;
            if batch.heads <> batch.request_ids[1:1] then
                update lock.request
                set head = request.head
                where request.request_id = any (array(select unnest(batch.heads) except select unnest(batch.request_ids)))
                  and not (request.settled_at is not null and request.request_id = any (batch.free));
                if found then
                    perform set_config('lock.heads_kept', 'true', true);
                end if;
            end if;
            perform lock_internal.retire_heads(batch.queue_id, batch.entity_id, batch.free);
        end if;
        settled := settled + moved;
    end loop;
    return settled;
end;
$$;

comment on function lock.settle_request(uuid, text, text, interval) is
    'Settles everything that process_id captured in this transaction as complete or error, with a message that is kept, and returns how many '
    'requests that were (0: none, settled already, or another transaction''s). new puts them back at their old place for another try '
    'instead, not before delay is over; attempts counts the tries. The entity stays the caller''s until the transaction ends. Never waits. '
    'Errors: 22004 null, 22023 bad status or delay, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.settle_request(uuid, text, text, interval) from public;
