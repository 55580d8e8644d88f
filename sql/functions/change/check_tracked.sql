-- check_tracked refuses a table whose entity column is gone.
create or replace function lock_internal.check_tracked(
    target         oid,
    entity_column  text
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select
        from pg_attribute
        where pg_attribute.attrelid = check_tracked.target
          and pg_attribute.attname = check_tracked.entity_column
          and pg_attribute.attnum > 0
          and not pg_attribute.attisdropped
    ) then
        raise exception 'table % has no column "%"', check_tracked.target::regclass, check_tracked.entity_column
            using errcode = 'undefined_column',
                  hint = 'Call lock.track_changes with the column that names the entity, or stop tracking with lock.untrack_changes.';
    end if;
end;
$$;
