-- keep_grant leaves out a role that is granted already, as when the data of another database are
-- restored into one that has been migrated.
create or replace function lock_internal.keep_grant()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform
    from lock.granted_role
    where granted_role.role = new.role
      and granted_role.level = new.level;
    if found then
        return null;
    end if;
    return new;
end;
$$;
