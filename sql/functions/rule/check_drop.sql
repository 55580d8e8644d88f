-- check_drop refuses bad arguments of the functions that drop unused ids.
create or replace function lock.check_drop(
    unused_for  interval,
    max         integer
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock.check_primary();
    perform lock.check_length(check_drop.unused_for, 'unused_for', false);
    perform lock.check_max(check_drop.max);
end;
$$;

comment on function lock.check_drop(interval, integer) is
    'Internal: refuses a bad unused_for (as lock.check_length does) or max (22004, 22023).';

revoke all on function lock.check_drop(interval, integer) from public;
