-- grant_to gives a role every function and view that programs use, and no table.
create or replace function lock.grant_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_to.role, 'application');
end;
$$;

comment on function lock.grant_to(name) is
    'For the schema''s owner, who must call it. Makes a role an application: it may call every '
    'function that programs use, and read the views. It may touch no table, and do nothing that '
    'is for operators (lock.grant_operator_to) or the owner. Everybody else loses every right on '
    'the schema that no such call gave. Later migrations extend it by themselves. '
    'lock.revoke_from takes it back. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';
