-- is_yugabyte says whether this server is YugabyteDB.
--
-- It is declared immutable so that a plan folds it into a constant. That is sound, because no
-- server changes what it is.
create or replace function lock_internal.is_yugabyte()
returns boolean
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select version() like '%-YB-%';
$$;
