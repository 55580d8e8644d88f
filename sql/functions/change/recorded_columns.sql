-- recorded_columns returns the columns from which a row's image is made, or null where to_jsonb may
-- make it.
--
-- The triggers run with the rights of the schema's owner. to_jsonb calls a cast to json where a
-- type has one. The owner of a type can give it a cast that runs code. So the output function,
-- which only a superuser can define, writes a column of a type that is not the server's own. An
-- enum becomes its label, anything else text. A domain counts as its base type.
--
-- A snapshot that is older than the statement may show other columns than the rows have. So outside
-- READ COMMITTED, and on YugabyteDB, every image is made from columns. A column whose type is not
-- the one that was judged here is written as text.
create or replace function lock_internal.recorded_columns(
    target  oid
)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    newest   constant boolean := current_setting('transaction_isolation') = 'read committed' and not lock_internal.is_yugabyte();
    columns  text;
begin
    if newest and not exists (
        select
        from pg_attribute
        where pg_attribute.attrelid = recorded_columns.target
          and pg_attribute.attnum > 0
          and pg_attribute.atttypid >= 16384
    ) then
        return null;
    end if;
    with recursive based as (
        select pg_attribute.attnum, pg_attribute.attname, pg_attribute.atttypid as type, pg_attribute.atttypid as base
        from pg_attribute
        where pg_attribute.attrelid = recorded_columns.target
          and pg_attribute.attnum > 0
          and not pg_attribute.attisdropped
        union all
        select based.attnum, based.attname, based.type, pg_type.typbasetype
        from based
        join pg_type on pg_type.oid = based.base
        where pg_type.typtype = 'd'
    ),
    judged as (
        select based.attnum, based.attname, case when min(based.base) < 16384 then based.type else 0 end as known
        from based
        group by based.attnum, based.attname, based.type
    )
    select string_agg(
        format(
            'case when pg_typeof(line.%1$I)::oid = %2$s then to_jsonb(line.%1$I) '
            'when num_nonnulls(line.%1$I) = 1 then to_jsonb(format(''%%s'', line.%1$I)) end as %1$I',
            judged.attname, judged.known
        ), ', ' order by judged.attnum)
    into columns
    from judged
    having not newest or bool_or(judged.known = 0);
    return columns;
end;
$$;
