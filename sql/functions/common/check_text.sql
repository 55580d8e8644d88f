-- check_text refuses a text for people that is null, blank or longer than 1024 bytes.
create or replace function lock_internal.check_text(
    value  text,
    what   text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(value, what);
    if ltrim(value, E' \t\n\x0b\f\r') = '' then
        raise exception '% must not be blank', what
            using errcode = 'invalid_parameter_value',
                  hint = format('Say in %s who does it and why.', what);
    end if;
end;
$$;
