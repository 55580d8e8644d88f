-- revoke_from takes back everything that a role has in the schema.
create or replace function lock.revoke_from(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    granted_function  regprocedure;
begin
    perform lock_internal.check_role(revoke_from.role);
    execute format('revoke usage on schema lock, lock_internal from %I', revoke_from.role);
    for granted_function in
        select granted_functions from lock_internal.granted_functions()
        union
        select monitor_functions from lock_internal.monitor_functions()
    loop
        execute format('revoke execute on function %s from %I', granted_function, revoke_from.role);
    end loop;
    execute format('revoke select on all tables in schema lock from %I', revoke_from.role);
end;
$$;

comment on function lock.revoke_from(name) is
    'For the schema''s owner, who must call it. Takes back everything that lock.grant_to and '
    'lock.grant_monitor_to gave a role. It takes effect at once. Locks that are held go on until '
    'their transactions end. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';
