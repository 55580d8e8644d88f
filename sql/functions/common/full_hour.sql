-- full_hour is the start of an hour. The columns unused_since hold it, so that their indexes change
-- once an hour. It is cheaper than date_trunc.
create or replace function lock_internal.full_hour(
    at  timestamp
)
returns timestamp
language sql
immutable
parallel safe
as $$
    select date_bin(interval '1 hour', full_hour.at, timestamp 'epoch');
$$;
