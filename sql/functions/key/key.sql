-- key turns a name into the bigint that is locked for it.
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
begin
    return lock_internal.key_of(null, key.name);
end;
$$;

comment on function lock.key(text) is
    'The bigint that is locked for a name: a 64-bit hash of its bytes. It stays the same as long '
    'as the database keeps its encoding. Two of 100 million names share a key with a probability '
    'below one in a thousand. They then exclude each other, which is safe. Errors: 22004 null, '
    '22023 empty or longer than 1024 bytes.';
