-- granted_functions lists what grant_to gives: every function of the schema whose comment does not set it apart.
--
-- A comment that starts with 'Internal:' or 'Operators:' keeps it to the owner.
create or replace function lock.granted_functions()
returns setof regprocedure
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_proc.oid::regprocedure
    from pg_proc
    where pg_proc.pronamespace = 'lock'::regnamespace
      and pg_proc.prorettype <> 'trigger'::regtype
      and coalesce(obj_description(pg_proc.oid, 'pg_proc'), '') !~ '^(Internal|Operators):'
    order by 1;
$$;

comment on function lock.granted_functions() is
    'Internal: every function that lock.grant_to gives.';

revoke all on function lock.granted_functions() from public;
