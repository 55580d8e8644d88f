-- utc is a time as the clocks of UTC show it. An interval that is added to it depends on no
-- session's time zone.
--
-- It uses an offset of zero, because the name of a zone would be looked up at each call.
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
