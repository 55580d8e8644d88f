-- check_statuses refuses a list of statuses that capture cannot take tasks from.
create or replace function lock_internal.check_statuses(
    statuses  text[]
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_statuses.statuses is null then
        raise exception 'statuses must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass some of new, failed and done, in the order of preference, as in ''{new,failed}''.';
    elsif cardinality(check_statuses.statuses) = 0 or not check_statuses.statuses <@ '{new,done,failed}' then
        raise exception 'statuses must be some of new, failed and done, not %', left(check_statuses.statuses::text, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'A task that is in_progress is taken over by any capture once its timeout has passed, and not before.';
    end if;
end;
$$;
