-- key turns a name into the bigint that is locked for it: the first 8 bytes of its sha256, the same on every server.
create or replace function lock.key(
    name  text
)
returns bigint
language plpgsql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    hash  constant bigint := lock_internal.hash(key.name);
begin
    if hash is null then
        perform lock_internal.check_id(key.name, 'name');
    end if;
    return hash;
end;
$$;

comment on function lock.key(text) is
    'The bigint that is locked for a name: the first 8 bytes of sha256 of its UTF-8 bytes, the same on every server. '
    'Two of 100 million names share a key with a probability below one in a thousand; they then exclude each other, which is safe. '
    'Errors: 22004 null, 22023 empty or longer than 1024 bytes.';

revoke all on function lock.key(text) from public;
