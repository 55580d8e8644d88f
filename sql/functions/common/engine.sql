-- engine says what a key lock is made of in this database: 'advisory' (PostgreSQL) or 'row'
-- (YugabyteDB).
--
-- lock_internal.is_advisory() makes the choice. The first migration writes that function, so it is
-- in no file. Both functions are stable and not immutable. A planner puts a stable function's text
-- in its place, but calls an immutable one.
create or replace function lock.engine()
returns text
language sql
stable
parallel safe
return case when lock_internal.is_advisory() then 'advisory' else 'row' end;

comment on function lock.engine() is
    'What a key lock is made of in this database: advisory (PostgreSQL) or row (YugabyteDB). The '
    'first migration chooses it, once.';
