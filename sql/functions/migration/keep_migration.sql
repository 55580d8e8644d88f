-- keep_migration leaves out a migration that is noted already, as when the data of another database
-- are restored into one that has been migrated.
create or replace function lock_internal.keep_migration()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform
    from lock.migration
    where migration.version = new.version;
    if found then
        return null;
    end if;
    return new;
end;
$$;
