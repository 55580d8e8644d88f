-- recorded_columns is null where to_jsonb may make a row's image, and else the columns from which an image is made.
--
-- The triggers run with the rights of the schema's owner. to_jsonb calls a cast to json where a type has one, and whoever owns
-- a type can give it one that runs code. So a column of a type that is not the server's own is written by its output function
-- instead, which only a superuser can define: an enum as its label, anything else as text. A domain counts as what it is over.
create or replace function lock_internal.recorded_columns(
    target  oid
)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    columns  text;
begin
    if not exists (
        select
        from pg_attribute
        where pg_attribute.attrelid = recorded_columns.target
          and pg_attribute.attnum > 0
          and pg_attribute.atttypid >= 16384
    ) then
        return null;
    end if;
    with recursive based as (
        select pg_attribute.attnum, pg_attribute.attname, pg_attribute.atttypid as type
        from pg_attribute
        where pg_attribute.attrelid = recorded_columns.target
          and pg_attribute.attnum > 0
          and not pg_attribute.attisdropped
        union all
        select based.attnum, based.attname, pg_type.typbasetype
        from based
        join pg_type on pg_type.oid = based.type
        where pg_type.typtype = 'd'
    ),
    judged as (
        select based.attnum, based.attname, min(based.type) < 16384 as known
        from based
        group by based.attnum, based.attname
    )
    select string_agg(
        case
            when judged.known then format('line.%I', judged.attname)
            else format('case when num_nonnulls(line.%1$I) = 1 then format(''%%s'', line.%1$I) end as %1$I', judged.attname)
        end, ', ' order by judged.attnum)
    into columns
    from judged
    having not bool_and(judged.known);
    return columns;
end;
$$;
