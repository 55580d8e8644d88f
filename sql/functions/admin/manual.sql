-- manual returns what lock.help prints of one name, or of all names when it is null: signatures and
-- comments.
create or replace function lock_internal.manual(
    name  text
)
returns setof text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    entry      record;
    paragraph  text;
    previous   text := '';
begin
    for entry in
        select
            pg_proc.proname::text as name,
            format(
                'lock.%s(%s) returns %s', pg_proc.proname, pg_get_function_arguments(pg_proc.oid), pg_get_function_result(pg_proc.oid)
            ) as signature,
            obj_description(pg_proc.oid, 'pg_proc') as comment
        from pg_proc
        where pg_proc.pronamespace = 'lock'::regnamespace
          and pg_proc.prorettype <> 'trigger'::regtype
        union all
        select
            pg_class.relname::text,
            format('view lock.%s (%s)', pg_class.relname, (
                select string_agg(format('%s %s', attname, format_type(atttypid, atttypmod)), ', ' order by attnum)
                from pg_attribute
                where attrelid = pg_class.oid and attnum > 0 and not attisdropped
            )),
            obj_description(pg_class.oid, 'pg_class')
        from pg_class
        where pg_class.relnamespace = 'lock'::regnamespace
          and pg_class.relkind = 'v'
        order by 1, 2
    loop
        continue when manual.name <> entry.name;
        if previous <> '' then
            return next '';
        end if;
        previous := entry.name;
        return query select lock_internal.wrap(entry.signature, 0, 8);
        foreach paragraph in array string_to_array(coalesce(entry.comment, ''), E'\n') loop
            return query select lock_internal.wrap(paragraph, 4, 4);
        end loop;
    end loop;
end;
$$;
