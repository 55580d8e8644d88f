-- engine says what a key lock is made of in this database: 'advisory' (PostgreSQL) or 'row' (YugabyteDB).
--
-- lock_internal.is_advisory() is the choice, written by the first migration, and so in no
-- file. Both are stable and not immutable: a planner puts a stable function's text in its place, and calls an immutable one.
create or replace function lock.engine()
returns text
language sql
stable
parallel safe
return case when lock_internal.is_advisory() then 'advisory' else 'row' end;

comment on function lock.engine() is
    'What a key lock is made of in this database: advisory (PostgreSQL) or row (YugabyteDB). Chosen once, by the first migration.';
