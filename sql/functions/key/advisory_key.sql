-- advisory_key maps a key to the advisory lock that stands for it, and back: it is its own inverse.
--
-- The constant is 'lock.key' in ASCII. It keeps keys away from a program's own advisory locks on
-- small numbers.
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
    'The advisory lock that stands for a key. It is its own inverse: given an advisory lock of '
    'pg_locks, it returns the key. Null for null.';
