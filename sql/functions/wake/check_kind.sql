-- check_kind refuses a kind that has no queues.
create or replace function lock_internal.check_kind(
    kind  text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_kind.kind is null then
        raise exception 'kind must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass task or request.';
    elsif check_kind.kind not in ('task', 'request') then
        raise exception 'kind is %, and must be task or request', left(check_kind.kind, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass task or request.';
    end if;
end;
$$;
