-- add_request completes a new request: checks its ids, and wakes the idle workers of its queue.
--
-- Producers look at nobody: neither at other requests nor at workers. What they commit is found by the next search.
create or replace function lock_internal.add_request()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
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
        raise exception 'a request is inserted as new, and captured by lock.capture_request'
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave request_status, process_id and settled_at out; or, for a piece of history, insert it as complete or error.';
    end if;
    perform lock_internal.wake('lock_request', new.queue_id);
    return new;
end;
$$;

comment on function lock_internal.add_request() is
    'The trigger that completes a new request. Never waits. Errors: 22004, 22023 bad id or status.';

revoke all on function lock_internal.add_request() from public;
