-- check_token refuses a name or token that is null, and a name that no lease can have.
create or replace function lock_internal.check_token(
    name   text,
    token  bigint
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(check_token.name, 'name');
    if check_token.token is null then
        raise exception 'token must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the token that lock.acquire_lease returned.';
    end if;
end;
$$;
