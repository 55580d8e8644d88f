-- add_request completes a new request: it checks the ids, and wakes the idle workers of the queue.
--
-- A producer looks at no worker. A request of an entity that is put back gets its available_at,
-- so that no search meets it before. The next search finds what it commits.
create or replace function lock_internal.add_request()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    if new.entity_id is null or new.entity_id = '' or octet_length(new.entity_id) > 1024 then
        perform lock_internal.check_id(new.entity_id, 'entity_id');
    elsif new.queue_id is null or new.queue_id = '' or octet_length(new.queue_id) > 1024 then
        perform lock_internal.check_id(new.queue_id, 'queue_id');
    end if;
    new.created_at := coalesce(new.created_at, clock_timestamp());

    if new.request_status in ('complete', 'error') then
        new.settled_at := coalesce(new.settled_at, clock_timestamp());
        return new;
    elsif new.request_status <> 'new' or new.settled_at is not null or new.process_id is not null then
        raise exception 'a new request is inserted as new, and lock.capture_request captures it'
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave out request_status, process_id and settled_at. Insert a piece of history as complete or error.';
    end if;
    if new.available_at is null then
        new.available_at := (
            select request.available_at
            from lock.request
            where lock_internal.entity_number(request.queue_id, request.entity_id)
                  = lock_internal.entity_number(new.queue_id, new.entity_id)
              and request.settled_at is null
              and request.available_at > clock_timestamp()
            order by request.available_at desc
            limit 1
        );
    end if;
    perform lock_internal.wake('lock_request', new.queue_id);
    return new;
end;
$$;
