-- enqueue adds a request to a queue and returns its id; it counts when the caller's transaction
-- commits.
--
-- A create looks first. The insert of a second create would wait for the worker that has the first.
-- Two creates that are made at the same time do not see each other, and one waits for the other's
-- transaction.
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
        raise exception 'request_type is %, and must be create or update', left(enqueue.request_type, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass create or update. A worker gets a create alone, and all waiting updates of one entity together.';
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
                  hint = 'Enqueue an update, or look at lock.request_history. An entity has one create until that is in error or purged.';
    end if;
    return added;
end;
$$;

comment on function lock.enqueue(text, text, jsonb, text) is
    'Adds a request, create or update, for an entity (1 to 1024 bytes) to a queue, and returns its '
    'id. It is part of the caller''s transaction: after a rollback it never was. Never waits for '
    'a worker. Waits for another producer only with a second create of one entity, until the '
    'first''s transaction ends. Idle workers are woken at commit. Errors: 22004 null, 22023 bad '
    'type or id, 23505 the entity has a create already that is not in error (40001 under '
    'REPEATABLE READ when that is newer than the snapshot). After the lock state machine of a '
    'spreadsheet service; see docs/request.md.';
