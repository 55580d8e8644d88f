-- raise_floor lets a second row of lock.lease_floor raise the first, as when the data of another
-- database are restored into one that has been migrated.
create or replace function lock_internal.raise_floor()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    update lock.lease_floor
    set token = greatest(lease_floor.token, new.token)
    where lease_floor.only_row;
    if found then
        return null;
    end if;
    return new;
end;
$$;
