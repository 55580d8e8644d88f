-- key_of is the key that is meant by a number, or by a name of 1 to 1024 bytes; a name goes before a number.
--
-- The advisory lock of a name is its hash with our constant as the seed, so that it is not what a program's own
-- hashtextextended(name, 0) gives; its key is what lock.advisory_key makes of that. Bytes are hashed, whatever the collation.
create or replace function lock_internal.key_of(
    key   bigint,
    name  text
)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if key_of.name is not null then
        perform lock_internal.check_id(key_of.name, 'name');
        return lock.advisory_key(hashtextextended(key_of.name collate "C", 7813573190502540665));
    elsif key_of.key is null then
        raise exception 'key must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a bigint, or a name of 1 to 1024 bytes.';
    end if;
    return key_of.key;
end;
$$;

comment on function lock_internal.key_of(bigint, text) is
    'The key that a number or a name means (22004 neither, 22023 a bad name).';

revoke all on function lock_internal.key_of(bigint, text) from public;
