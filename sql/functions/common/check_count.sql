-- check_count refuses a number of things that is null or below 1.
create or replace function lock_internal.check_count(
    value  integer,
    what   text
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
                  hint = format('Pass a number of at least 1 as %s.', what);
    elsif value < 1 then
        raise exception '% must be at least 1, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass a number of at least 1 as %s.', what);
    end if;
end;
$$;
