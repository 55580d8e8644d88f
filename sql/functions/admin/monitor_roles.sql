-- monitor_roles lists the roles that were named to lock.grant_monitor_to.
create or replace function lock_internal.monitor_roles()
returns setof name
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_roles.rolname
    from pg_proc
    cross join aclexplode(pg_proc.proacl) as item
    join pg_roles on pg_roles.oid = item.grantee
    where pg_proc.oid = 'lock_internal.monitored()'::regprocedure
      and item.grantee <> pg_proc.proowner
    order by 1;
$$;
