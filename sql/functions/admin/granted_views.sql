-- granted_views lists what grant_to gives: every view of schema lock.
create or replace function lock_internal.granted_views()
returns setof regclass
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_class.oid::regclass
    from pg_class
    where pg_class.relnamespace = 'lock'::regnamespace
      and pg_class.relkind = 'v'
    order by 1;
$$;
