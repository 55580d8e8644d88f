-- key turns a name into the bigint that is locked for it: the first 8 bytes of its sha256, the same on every server.
create or replace function lock.key(
    name  text
)
returns bigint
language plpgsql
immutable
parallel safe
as $$
begin
    if key.name is null or key.name = '' or octet_length(key.name) > 1024 then
        perform lock.check_id(key.name, 'name');
    end if;
    return ('x' || encode(substr(sha256(convert_to(key.name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;
end;
$$;

comment on function lock.key(text) is
    'The bigint that is locked for a name: the first 8 bytes of sha256 of its UTF-8 bytes, the same on every server. '
    'Two of 100 million names share a key with a probability below one in a thousand; they then exclude each other, which is safe. '
    'Errors: 22004 null, 22023 empty or longer than 1024 bytes.';

revoke all on function lock.key(text) from public;
