-- cancel_request ends a request that nobody works on as error, and records the operator and the
-- reason.
--
-- It takes the entity's lock, as a worker does, and looks at the request in a later statement. So
-- the request is outstanding when it is ended, no worker has it, and no other transaction ends it.
create or replace function lock.cancel_request(
    request_id  bigint,
    reason      text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    wanted  lock.request;
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_text(cancel_request.reason, 'reason');
    if cancel_request.request_id is null then
        raise exception 'request_id must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the id of a request that is outstanding; lock.request_history shows it.';
    end if;
    select *
    into wanted
    from lock.request
    where request.request_id = cancel_request.request_id;
    if not found then
        raise exception 'there is no request %', cancel_request.request_id
            using errcode = 'no_data_found',
                  hint = 'It may have been settled and purged: look at lock.request_history.';
    elsif wanted.settled_at is not null or not lock_internal.try_entity(wanted.queue_id, wanted.entity_id) then
        return false;
    end if;
    -- Workers pass over the entity until this transaction ends, whatever it finds. They are woken
    -- then, because they may have missed something.
    perform lock_internal.wake('lock_request', wanted.queue_id);
    update lock.request
    set request_status = 'error',
        message = left('cancelled: ' || cancel_request.reason, 4000),
        settled_at = clock_timestamp()
    where request.request_id = cancel_request.request_id
      and request.request_status = 'new'
      and request.settled_at is null;
    if not found then
        return false;
    end if;
    -- What came behind it waited for it: see settle_request. It was never tried.
    update lock.request
    set available_at = null
    where request.queue_id = wanted.queue_id
      and request.entity_id = wanted.entity_id
      and request.settled_at is null
      and request.available_at is not null
      and request.tries = 0
      and not exists (
          select
          from lock.request as other
          where other.queue_id = wanted.queue_id
            and other.entity_id = wanted.entity_id
            and other.settled_at is null
            and other.available_at > clock_timestamp()
            and other.tries > 0
      );
    perform lock_internal.record_forced_release(
        'request',
        wanted.queue_id || ': ' || wanted.entity_id,
        cancel_request.reason,
        jsonb_build_object('action', 'cancel') || to_jsonb(wanted)
    );
    return true;
end;
$$;

comment on function lock.cancel_request(bigint, text) is
    'For operators. Ends an outstanding request as error, and returns true. The reason (1 to 1024 '
    'bytes) becomes its message. Returns false when the request is settled, or when a worker has '
    'its entity now: ask again later. lock.forced_release records the operator, the reason and '
    'the request. The caller has the entity until the transaction ends. After a rollback the '
    'request is as it was. A cancelled create frees the updates behind it, as a create that ended '
    'in error does. Never waits. Wakes idle workers at commit. Errors: 22004 null, 22023 bad '
    'reason, P0002 no such request, 25006 read-only or standby, 40001 under REPEATABLE READ and '
    'SERIALIZABLE.';
