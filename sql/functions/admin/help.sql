-- help prints the manual: the comments of all functions and views, in lines of at most 80
-- characters.
create or replace function lock.help()
returns setof text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query select lock_internal.manual(null);
end;
$$;

create or replace function lock.help(
    function  text
)
returns setof text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted  text;
    near    text;
begin
    perform lock_internal.check_id(help.function, 'function');
    wanted := regexp_replace(lower(btrim(help.function)), '^lock[.]|[(].*$', '', 'g');
    return query select lock_internal.manual(wanted);
    if found then
        return;
    end if;
    select string_agg(candidate.name, ', ' order by candidate.name)
    into near
    from (
        select pg_proc.proname::text as name
        from pg_proc
        where pg_proc.pronamespace = 'lock'::regnamespace
          and pg_proc.prorettype <> 'trigger'::regtype
        union
        select pg_class.relname
        from pg_class
        where pg_class.relnamespace = 'lock'::regnamespace
          and pg_class.relkind = 'v'
    ) as candidate
    where starts_with(candidate.name, left(wanted, 3))
       or exists (
            select
            from unnest(string_to_array(wanted, '_')) as word
            where length(word) > 2
              and strpos(candidate.name, rtrim(word, 's')) > 0
        );
    raise exception 'there is no function or view lock.%', left(wanted, 63)
        using errcode = 'no_data_found',
              hint = coalesce('Did you mean one of these: ' || near || '? ', '') || 'select lock.help() prints all of them.';
end;
$$;

comment on function lock.help() is
    'The manual: every function and view of schema lock with its comment, in lines of at most 80 '
    'characters. In psql, \pset format unaligned and \t print it bare. Reads the catalogue, '
    'writes nothing, and works on a standby.';

comment on function lock.help(text) is
    'The manual of one function, with all its overloads, or of one view, in lines of at most 80 '
    'characters. The name may have the schema in front, as in lock.capture. Errors: 22004 null, '
    '22023 empty or longer than 1024 bytes, P0002 no such name; the hint has names that are like '
    'it.';
