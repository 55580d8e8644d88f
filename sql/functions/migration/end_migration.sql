-- end_migration notes that a migration is done, and grants what came with it to every role that has
-- grants.
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
        select granted_roles from lock_internal.granted_roles()
    loop
        perform lock.grant_to(grantee);
    end loop;
    for grantee in
        select monitor_roles from lock_internal.monitor_roles()
    loop
        perform lock.grant_monitor_to(grantee);
    end loop;
end;
$$;
