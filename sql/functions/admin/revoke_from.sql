-- revoke_from takes back everything that a role has in the schema.
create or replace function lock.revoke_from(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_role(revoke_from.role);
    delete from lock.granted_role
    where granted_role.role = revoke_from.role;
    perform lock_internal.set_rights();
end;
$$;

comment on function lock.revoke_from(name) is
    'For the schema''s owner, who must call it. Takes back everything that a role has on the '
    'schema: what lock.grant_to, lock.grant_monitor_to, lock.grant_operator_to and '
    'lock.grant_tracking_to gave, and anything else. It takes effect at once. Locks that are held '
    'go on until their transactions end. Everybody else loses every right on the schema that no '
    'such call gave. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';
