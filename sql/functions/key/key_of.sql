-- key_of is the key that is meant by a number, or by a name of 1 to 1024 bytes. When both are
-- given, the name counts.
--
-- The advisory lock of a name is its hash with our constant as the seed. So it is not what a
-- program's own hashtextextended(name, 0) gives. The key is what lock.advisory_key makes of that.
-- Bytes are hashed, whatever the collation.
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
