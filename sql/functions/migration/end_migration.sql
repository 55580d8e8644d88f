-- end_migration notes that a migration is done, and gives every role what it was granted of that
-- which came with it, and nothing else.
create or replace function lock_internal.end_migration(
    version    bigint,
    direction  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if end_migration.direction = 'up' then
        insert into lock.migration (version)
        values (end_migration.version)
        on conflict do nothing;
    else
        delete from lock.migration
        where migration.version = end_migration.version;
    end if;
    perform lock_internal.set_rights();
end;
$$;
