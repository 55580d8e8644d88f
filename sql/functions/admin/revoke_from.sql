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
    if revoke_from.role is null then
        raise exception 'role must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the name of a role.';
    end if;
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
    'For the schema''s owner. Takes back everything that lock.grant_to and lock.grant_monitor_to gave a role. Grants are taken back at once, locks that are held go on until their transactions end. Run it as the owner of the schema. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';
