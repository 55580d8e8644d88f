-- key_number is the number of a key's tasks and lock: a hash of 64 bits, null without a key. Its
-- seed, 'task key' in ASCII, is used nowhere else.
--
-- Two keys with one number share their places, which costs time and nothing else.
create or replace function lock_internal.key_number(
    queue_id  text,
    key       text
)
returns bigint
language sql
immutable
parallel safe
as $$
    select pg_catalog.hashtextextended(key_number.key, pg_catalog.hashtextextended(key_number.queue_id, 8386110885083178361));
$$;
