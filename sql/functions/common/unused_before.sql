-- unused_before is the latest start of an hour, in UTC, all of which was over at least unused_for ago.
create or replace function lock_internal.unused_before(
    unused_for  interval
)
returns timestamp
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    select lock_internal.utc(clock_timestamp()) - unused_before.unused_for - interval '1 hour';
$$;
