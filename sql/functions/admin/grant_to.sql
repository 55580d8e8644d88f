-- grant_to gives a role every public function and view of the schema, and no table; PUBLIC loses
-- what it has.
create or replace function lock.grant_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    granted_function  regprocedure;
    granted_view      regclass;
begin
    perform lock_internal.check_role(grant_to.role);
    perform lock_internal.revoke_from_public();
    execute format('grant usage on schema lock, lock_internal to %I', grant_to.role);
    for granted_function in
        select granted_functions from lock_internal.granted_functions()
    loop
        execute format('grant execute on function %s to %I', granted_function, grant_to.role);
    end loop;
    for granted_view in
        select granted_views from lock_internal.granted_views()
    loop
        execute format('grant select on %s to %I', granted_view, grant_to.role);
    end loop;
end;
$$;

comment on function lock.grant_to(name) is
    'For the schema''s owner, who must call it. Gives a role every function and view that is not '
    'for the owner alone, and no table. Later migrations extend it by themselves. Errors: 22004 '
    'null, 42704 unknown role, 42501 not the owner.';
