-- hash is the key of a name, or null for a name that is null, empty or longer than 1024 bytes.
--
-- Stable, because convert_to is: only so is it inlined. The result is the same everywhere, and lock.key says so.
create or replace function lock_internal.hash(
    name  text
)
returns bigint
language sql
stable
parallel safe
as $$
    select case
        when octet_length(hash.name) between 1 and 1024
        then ('x' || encode(substr(sha256(convert_to(hash.name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
    end;
$$;

comment on function lock_internal.hash(text) is
    'The first 8 bytes of sha256 of a name, or null where lock_internal.check_id would refuse the name.';

revoke all on function lock_internal.hash(text) from public;
