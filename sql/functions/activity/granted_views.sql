-- granted_views lists what grant_to gives: every view of the schema whose comment does not set it apart.
--
-- A comment that starts with 'Internal:' or 'Operators:' keeps it to the owner.
create or replace function lock.granted_views()
returns setof regclass
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_class.oid::regclass
    from pg_class
    where pg_class.relnamespace = 'lock'::regnamespace
      and pg_class.relkind = 'v'
      and coalesce(obj_description(pg_class.oid, 'pg_class'), '') !~ '^(Internal|Operators):'
    order by 1;
$$;

comment on function lock.granted_views() is
    'Internal: every view that lock.grant_to gives.';

revoke all on function lock.granted_views() from public;
