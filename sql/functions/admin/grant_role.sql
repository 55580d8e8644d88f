-- grant_role writes down that a role is granted a level, and makes all rights what is written.
create or replace function lock_internal.grant_role(
    role   name,
    level  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_role(grant_role.role);
    insert into lock.granted_role (role, level)
    values (grant_role.role, grant_role.level)
    on conflict do nothing;
    perform lock_internal.set_rights();
end;
$$;
