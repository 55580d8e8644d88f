-- some_of writes out the first ten of a list, and how many more there are.
create or replace function lock_internal.some_of(
    items  text[]
)
returns text
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select array_to_string(items[:10], ', ') || case when cardinality(items) > 10 then format(' and %s more', cardinality(items) - 10) else '' end;
$$;
