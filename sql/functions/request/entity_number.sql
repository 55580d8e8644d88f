-- entity_number is the number of an entity's lock: 64 bits, of a seed that is nobody else's ('requests' in ASCII).
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

comment on function lock_internal.entity_number(text, text) is
    'The number of the lock that whoever works on an entity holds.';

revoke all on function lock_internal.entity_number(text, text) from public;
