-- end_migration notes that a migration is done, and gives every role that has the functions what came with it.
create or replace function lock_internal.end_migration(
    version    bigint,
    direction  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    grantee  name;
begin
    if end_migration.direction = 'up' then
        insert into lock.migration (version)
        values (end_migration.version)
        on conflict do nothing;
    else
        delete from lock.migration
        where migration.version = end_migration.version;
    end if;
    perform lock_internal.revoke_from_public();
    for grantee in
        select pg_roles.rolname
        from pg_proc
        cross join aclexplode(pg_proc.proacl) as item
        join pg_roles on pg_roles.oid = item.grantee
        where pg_proc.oid = 'lock_internal.granted()'::regprocedure
          and item.grantee <> pg_proc.proowner
    loop
        perform lock.grant_to(grantee);
    end loop;
end;
$$;
