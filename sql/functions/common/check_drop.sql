-- check_drop refuses bad arguments of the functions that drop unused ids.
create or replace function lock_internal.check_drop(
    unused_for  interval,
    max         integer
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_length(check_drop.unused_for, 'unused_for', false);
    perform lock_internal.check_max(check_drop.max);
end;
$$;
