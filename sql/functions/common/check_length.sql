-- check_length refuses what check_interval refuses, and mixtures that are not positive in February.
create or replace function lock_internal.check_length(
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
    perform lock_internal.check_interval(check_length.value, check_length.what, check_length.fixed);
    if timestamp '2001-02-01' + check_length.value <= timestamp '2001-02-01' then
        raise exception '% must be positive in every month, and % is not', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Do not mix positive months with negative days.';
    end if;
end;
$$;
