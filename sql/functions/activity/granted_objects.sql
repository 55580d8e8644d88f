-- granted_objects lists what grant_to gives: every function and view of the schema whose comment does not set it apart.
--
-- A comment that starts with 'Internal:' or 'Operators:' keeps a function or view to the owner. Tables are never given.
create or replace function lock.granted_objects()
returns setof text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select 'function ' || pg_proc.oid::regprocedure
    from pg_proc
    where pg_proc.pronamespace = 'lock'::regnamespace
      and pg_proc.prorettype <> 'trigger'::regtype
      and coalesce(obj_description(pg_proc.oid, 'pg_proc'), '') !~ '^(Internal|Operators):'
    union all
    select 'table ' || pg_class.oid::regclass
    from pg_class
    where pg_class.relnamespace = 'lock'::regnamespace
      and pg_class.relkind = 'v'
      and coalesce(obj_description(pg_class.oid, 'pg_class'), '') !~ '^(Internal|Operators):'
    order by 1;
$$;

comment on function lock.granted_objects() is
    'Internal: what lock.grant_to gives, as the objects of a grant statement.';

revoke all on function lock.granted_objects() from public;
