-- record_images records changes of a table, given as images of their rows.
--
-- An insert has only new images, and a delete only old ones. A change without an entity, or with an
-- impossible id, is recorded under the table's own name.
--
-- It is in PL/pgSQL, because the server plans a function in SQL at every call.
create or replace function lock_internal.record_images(
    changed        text,
    operation      text,
    olds           jsonb[],
    news           jsonb[],
    entity_column  text,
    queue_id       text,
    created_at     timestamptz
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    insert into lock.request (queue_id, entity_id, request_type, payload, created_at)
    select
        record_images.queue_id,
        entity.id,
        'update',
        jsonb_build_object('table', record_images.changed, 'operation', record_images.operation, 'old', change.old, 'new', change.new),
        record_images.created_at
    from unnest(record_images.olds, record_images.news) with ordinality as change(old, new, ordinal)
    cross join lateral (
        select distinct case when octet_length(side.id) between 1 and 1024 then side.id else record_images.changed end as id
        from (
            values
                (record_images.operation <> 'INSERT', change.old ->> record_images.entity_column),
                (record_images.operation <> 'DELETE', change.new ->> record_images.entity_column)
        ) as side(is_there, id)
        where side.is_there
    ) as entity
    order by change.ordinal;
end;
$$;
