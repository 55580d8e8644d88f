-- end_migration notes that a migration is done, and gives every role that has the functions what came with it.
create or replace function lock_internal.end_migration(
    number     integer,
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
        insert into lock.migration (number)
        values (end_migration.number)
        on conflict do nothing;
    else
        delete from lock.migration
        where migration.number = end_migration.number;
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

comment on function lock_internal.end_migration(integer, text) is
    'The last statement of every migration.';

revoke all on function lock_internal.end_migration(integer, text) from public;
