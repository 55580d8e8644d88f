-- check_retries refuses to revive a task without a capture ahead.
create or replace function lock_internal.check_retries(
    retries_left  integer
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_retries.retries_left < 1 then
        raise exception 'retries_left must be at least 1, not %', check_retries.retries_left
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass how many captures the task may have; null: any number.';
    end if;
end;
$$;
