-- check_max refuses a limit that is null or below 1.
create or replace function lock_internal.check_max(
    max  integer
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_max.max is null then
        raise exception 'max must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass how many one call may take at most.';
    elsif check_max.max < 1 then
        raise exception 'max must be at least 1, not %', check_max.max
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass how many one call may take at most.';
    end if;
end;
$$;
