-- enqueue adds a request to a queue and returns its id; it counts when the caller's transaction commits.
--
-- A create looks first, because the insert of a second one would wait for the worker of the first. Two that are made at the
-- same time do not see each other, and then one waits for the other's transaction.
create or replace function lock.enqueue(
    request_type  text,
    entity_id     text,
    payload       jsonb  default null,
    queue_id      text   default 'default'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    added  bigint;
begin
    if enqueue.request_type is null then
        raise exception 'request_type must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass create or update.';
    elsif enqueue.request_type not in ('create', 'update') then
        raise exception 'request_type is %, and must be create or update', enqueue.request_type
            using errcode = 'invalid_parameter_value',
                  hint = 'A create is worked on alone; updates that wait for one entity are worked on together.';
    end if;
    if enqueue.request_type = 'update' then
        insert into lock.request (request_type, entity_id, payload, queue_id)
        values ('update', enqueue.entity_id, enqueue.payload, enqueue.queue_id)
        returning request.request_id into added;
        return added;
    end if;
    if not exists (
        select
        from lock.request
        where request.queue_id = enqueue.queue_id
          and request.entity_id = enqueue.entity_id
          and request.request_type = 'create'
          and not request.failed
    ) then
        insert into lock.request (request_type, entity_id, payload, queue_id)
        values ('create', enqueue.entity_id, enqueue.payload, enqueue.queue_id)
        on conflict (queue_id, entity_id) where request_type = 'create' and not failed do nothing
        returning request.request_id into added;
    end if;
    if added is null then
        raise exception 'entity % of queue % has a create already', enqueue.entity_id, enqueue.queue_id
            using errcode = 'unique_violation',
                  constraint = 'request_one_create',
                  hint = 'An entity has one create until that is in error or purged: enqueue an update, or see lock.request_history.';
    end if;
    return added;
end;
$$;

comment on function lock.enqueue(text, text, jsonb, text) is
    'Adds a request, create or update, for an entity (1 to 1024 bytes) to a queue, and returns its id. It is part of the caller''s '
    'transaction: rolled back, it never was. Never waits for workers, and not for other producers, except a second create of one entity '
    'for the first''s transaction. Workers that idle are woken at commit. Errors: 22004 null, 22023 bad type or id, 23505 the entity '
    'has a create already that is not in error (40001 under REPEATABLE READ when that is newer than the snapshot). After the lock state machine of a spreadsheet service; see docs/request.md.';

revoke all on function lock.enqueue(text, text, jsonb, text) from public;
