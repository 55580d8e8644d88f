-- add_request completes a new request: checks its ids, decides whether it is a head, and wakes the idle workers of its queue.
--
-- A request that finds a head of its entity becomes a follower, and locks that head for key share until it is committed.
-- A worker takes a head off the queue only when it could lock it for update: that fails while an uncommitted follower counts
-- on it, and what counted on it before is committed and found. A producer that meets such a lock, or finds on a newer
-- snapshot that the head is one no more, makes its own request a head. So nobody ever waits, neither producers nor workers.
-- Two heads of one entity do no harm; an entity without any would be lost. Where the snapshot can be old every request is
-- a head.
--
-- Two spellings of one condition: "head" reads the index of the queue's order, "head >= true" the index by entity. Neither
-- query can be planned on the other's index, whatever the statistics say.
create or replace function lock_internal.add_request()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    leader  bigint;
begin
    if new.entity_id is null or new.entity_id = '' or octet_length(new.entity_id) > 1024 then
        perform lock_internal.check_id(new.entity_id, 'entity_id');
    elsif new.queue_id is null or new.queue_id = '' or octet_length(new.queue_id) > 1024 then
        perform lock_internal.check_id(new.queue_id, 'queue_id');
    end if;

    if new.request_status in ('complete', 'error') then
        new.head := false;
        new.settled_at := coalesce(new.settled_at, clock_timestamp());
        return new;
    elsif new.request_status <> 'new' or new.settled_at is not null or new.process_id is not null then
        raise exception 'a request is inserted as new, and captured by lock.capture_request'
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave request_status, process_id and settled_at out; or, for a piece of history, insert it as complete or error.';
    end if;

    if current_setting('transaction_isolation') = 'read committed' then
        select request.request_id
        into leader
        from lock.request
        where request.queue_id = new.queue_id
          and request.entity_id = new.entity_id
          and request.head >= true
        limit 1
        for key share skip locked;
        new.head := leader is null or not exists (
            select
            from lock.request
            where request.request_id = leader
              and request.head
        );
    else
        new.head := true;
    end if;

    if current_setting('lock.woken', true) is distinct from 'lock_request ' || new.queue_id then
        perform lock_internal.wake('lock_request', new.queue_id);
    end if;
    return new;
end;
$$;

comment on function lock_internal.add_request() is
    'The trigger that completes a new request. Never waits. Errors: 22004, 22023 bad id or status.';

revoke all on function lock_internal.add_request() from public;
