-- milliseconds turns a wait into what lock_timeout takes: rounded up, at least 1, at most its greatest value (24.8 days).
create or replace function lock_internal.milliseconds(
    wait  interval
)
returns integer
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select greatest(1, least(2147483647, ceil(extract(epoch from milliseconds.wait) * 1000)))::integer;
$$;
