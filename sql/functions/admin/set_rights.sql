-- set_rights makes every role's rights on both schemas what lock_internal.wanted_rights says, and
-- so takes from everybody what default privileges, a restore without ACLs or a hand gave.
--
-- A role that is gone is forgotten first: another of its name would have its rights.
create or replace function lock_internal.set_rights()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    forgotten  name;
    wrong      record;
begin
    for forgotten in
        delete from lock.granted_role
        where granted_role.role not in (select pg_roles.rolname from pg_roles)
        returning granted_role.role
    loop
        raise warning 'role "%" is gone, and so is what it was granted on schema lock', forgotten;
    end loop;
    for wrong in
        select distinct actual.grantee, actual.object
        from lock_internal.actual_rights() as actual
        where (actual.grantee, actual.object, actual.privilege) not in (
            select wanted.grantee, wanted.object, wanted.privilege
            from lock_internal.wanted_rights() as wanted
        )
    loop
        execute format('revoke all on %s from %s cascade', wrong.object, wrong.grantee);
    end loop;
    for wrong in
        select wanted.grantee, wanted.object, wanted.privilege
        from lock_internal.wanted_rights() as wanted
        except
        select actual.grantee, actual.object, actual.privilege
        from lock_internal.actual_rights() as actual
    loop
        execute format('grant %s on %s to %s', wrong.privilege, wrong.object, wrong.grantee);
    end loop;
end;
$$;
