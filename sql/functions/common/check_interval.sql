-- check_interval refuses an interval that is null, infinite, or over 100 years.
--
-- It must be positive in every month. Where a fixed length is needed, it must not have months.
create or replace function lock_internal.check_interval(
    value  interval,
    what   text,
    fixed  boolean
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null then
        raise exception '% must not be null', what
            using errcode = 'null_value_not_allowed',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif not isfinite(value) then
        raise exception '% must be finite, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif fixed and extract(year from value) * 12 + extract(month from value) <> 0 then
        raise exception '% must have a fixed length, and % contains months', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Months and years differ in length: use days, hours or seconds.';
    elsif value <= interval '0' then
        raise exception '% must be positive, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif value > interval '36525 days' or timestamp '2000-01-01' + value > timestamp '2100-01-01' then
        raise exception '% must be at most 36525 days (100 years), not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass a shorter interval.';
    elsif timestamp '2001-02-01' + value <= timestamp '2001-02-01' then
        raise exception '% must be positive in every month, and % is not', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Do not mix positive months with negative days.';
    end if;
end;
$$;
