-- check_tokens refuses a number of tokens that is null, below 1 or above 3,000,000,000. The product
-- of two such numbers fits into a bigint.
create or replace function lock_internal.check_tokens(
    value  bigint,
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
    elsif value > 3000000000 then
        raise exception '% must be at most 3000000000, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Count in larger units, such as kilobytes instead of bytes.';
    end if;
end;
$$;
