-- utc is a time as the clocks of UTC show it: adding an interval to that depends on no session's time zone.
--
-- By an offset of nothing, because the zone's name would be looked up at each call.
create or replace function lock_internal.utc(
    at  timestamptz
)
returns timestamp
language sql
immutable
parallel safe
as $$
    select utc.at at time zone interval '0';
$$;
