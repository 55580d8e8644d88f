-- unused_before checks the arguments of the functions that drop unused ids.
--
-- It returns, in UTC, the latest start of an hour all of which was over at least unused_for ago.
create or replace function lock_internal.unused_before(
    unused_for  interval,
    max         integer
)
returns timestamp
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_interval(unused_before.unused_for, 'unused_for', false);
    perform lock_internal.check_count(unused_before.max, 'max');
    return lock_internal.utc(clock_timestamp()) - unused_before.unused_for - interval '1 hour';
end;
$$;
