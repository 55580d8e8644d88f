-- refuse_dependents stops a migration that goes down when an application's view is built on a
-- relation that it drops.
--
-- PostgreSQL would refuse the drop as well. It would name the view in a detail that goose does not
-- print.
create or replace function lock_internal.refuse_dependents(
    relations  text[]
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    dependents  text;
begin
    select string_agg(distinct format('%s is built on %s', pg_rewrite.ev_class::regclass, relation), '; ')
    into dependents
    from unnest(refuse_dependents.relations) as relation
    join pg_depend
      on pg_depend.refclassid = 'pg_class'::regclass
      and pg_depend.refobjid = to_regclass(relation)
      and pg_depend.classid = 'pg_rewrite'::regclass
    join pg_rewrite on pg_rewrite.oid = pg_depend.objid
    join pg_class on pg_class.oid = pg_rewrite.ev_class
    where pg_class.relnamespace <> 'lock'::regnamespace;
    if dependents is not null then
        raise exception '%', dependents
            using errcode = 'dependent_objects_still_exist',
                  hint = 'Drop the view, run goose down, and create the view again after the next goose up.';
    end if;
end;
$$;
