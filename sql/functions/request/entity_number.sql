-- entity_number is the number of an entity's lock: a hash of 64 bits. Its seed, 'requests' in
-- ASCII, is used nowhere else.
create or replace function lock_internal.entity_number(
    queue_id   text,
    entity_id  text
)
returns bigint
language sql
immutable
parallel safe
as $$
    select pg_catalog.hashtextextended(entity_number.entity_id, pg_catalog.hashtextextended(entity_number.queue_id, 8243119441998738547));
$$;
