-- add_lease_name makes the row of a new name. It returns the first token, which no lease on this
-- name ever had.
--
-- lock.drop_unused_leases forgets names, and keeps in lock.lease_floor the greatest token of any of
-- them. This function shares that row until the transaction ends, so nobody raises the floor after
-- it was read here. Under REPEATABLE READ a floor that is newer than the snapshot is 40001. Both
-- functions take the floor before the names: no deadlock.
create or replace function lock_internal.add_lease_name(
    name  text
)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    first  bigint;
begin
    select lease_floor.token + 1 into strict first
    from lock.lease_floor
    where lease_floor.only_row
    for share;
    insert into lock.lease_name (name, token, granted_at)
    values (add_lease_name.name, first, clock_timestamp())
    on conflict on constraint lease_name_pkey do update
    set token = lease_name.token + 1,
        granted_at = clock_timestamp()
    returning lease_name.token into first;
    return first;
end;
$$;
