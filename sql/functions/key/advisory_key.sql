-- advisory_key maps a key to the advisory lock that stands for it, and back: it is its own inverse.
--
-- The constant is 'lock.key' in ASCII. It keeps keys away from a program's own advisory locks on small numbers.
create or replace function lock.advisory_key(
    key  bigint
)
returns bigint
language sql
immutable
parallel safe
as $$
    select advisory_key.key operator(pg_catalog.#) 7813573190502540665;
$$;

comment on function lock.advisory_key(bigint) is
    'Internal: the advisory lock that stands for a key; its own inverse.';

revoke all on function lock.advisory_key(bigint) from public;
