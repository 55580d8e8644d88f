-- check_id refuses an id, name or owner that is null, empty or longer than 1024 bytes.
create or replace function lock_internal.check_id(
    value  text,
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
                  hint = format('Pass a text of 1 to 1024 bytes as %s.', what);
    elsif value = '' then
        raise exception '% must not be empty', what
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass a text of 1 to 1024 bytes as %s.', what);
    elsif octet_length(value) > 1024 then
        raise exception '% is % bytes long, and at most 1024 are allowed', what, octet_length(value)
            using errcode = 'invalid_parameter_value',
                  hint = 'Use a shorter text, for example encode(sha256(convert_to(id, ''UTF8'')), ''hex'').';
    end if;
end;
$$;
