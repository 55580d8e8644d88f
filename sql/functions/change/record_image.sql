-- record_image records the change of one row of a table, given as images of it.
--
-- An insert has only a new image, and a delete only an old one. A change without an entity, or with
-- an impossible id, is recorded under the table's own name.
--
-- It is in PL/pgSQL, because the server plans a function in SQL at every call.
create or replace function lock_internal.record_image(
    changed        text,
    operation      text,
    old            jsonb,
    new            jsonb,
    entity_column  text,
    queue_id       text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    insert into lock.request (queue_id, entity_id, request_type, payload)
    select
        record_image.queue_id,
        unnest(lock_internal.changed_entities(
            record_image.changed,
            coalesce(record_image.old, record_image.new) ->> record_image.entity_column,
            coalesce(record_image.new, record_image.old) ->> record_image.entity_column
        )),
        'update',
        jsonb_build_object('table', record_image.changed, 'operation', record_image.operation, 'old', record_image.old, 'new', record_image.new);
end;
$$;
