-- try_entity takes the lock of an entity until the transaction ends, if nobody else has it; never
-- waits.
--
-- A worker holds this lock while it works on an entity. Producers never ask for it. The number is a
-- hash. Two entities with one number are not worked on at once, which costs time and nothing else.
-- The number is in the space of two integers, so no key lock has it.
create or replace function lock_internal.try_entity(
    queue_id   text,
    entity_id  text
)
returns boolean
language sql
volatile
as $$
    select case
        when lock_internal.is_advisory() then pg_catalog.pg_try_advisory_xact_lock(
            (lock_internal.entity_number(try_entity.queue_id, try_entity.entity_id) >> 32)::integer,
            lock_internal.entity_number(try_entity.queue_id, try_entity.entity_id)::bit(32)::integer
        )
        else lock_internal.hold_row(
            lock_internal.entity_number(try_entity.queue_id, try_entity.entity_id),
            'request ' || try_entity.queue_id || ' ' || try_entity.entity_id,
            shared => false,
            wait => interval '0'
        )
    end;
$$;
