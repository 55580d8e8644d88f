-- engine says what a key lock is made of in this database: 'advisory' (PostgreSQL) or 'row' (YugabyteDB).
--
-- Declared immutable so that a plan folds it into a constant. That is sound because lock.chosen_engine is written once,
-- by the first migration, before any function that asks exists.
create or replace function lock.engine()
returns text
language sql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select chosen_engine.engine from lock.chosen_engine;
$$;

comment on function lock.engine() is
    'What a key lock is made of in this database: advisory (PostgreSQL) or row (YugabyteDB). Chosen once, by the first migration.';

revoke all on function lock.engine() from public;
