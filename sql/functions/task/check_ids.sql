-- check_ids refuses a list of ids that is null, or has a null, an id twice, or an id that is empty
-- or too long.
create or replace function lock_internal.check_ids(
    ids  text[]
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    good  bigint;
    bad   text;
begin
    if array_ndims(check_ids.ids) > 1 then
        raise exception 'ids must have one dimension, not %', array_ndims(check_ids.ids)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass an array of texts of 1 to 1024 bytes.';
    elsif check_ids.ids is null or array_position(check_ids.ids, null) is not null then
        raise exception 'ids and their elements must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass an array of texts of 1 to 1024 bytes.';
    end if;
    select count(distinct given.id collate "C") into good
    from unnest(check_ids.ids) as given(id)
    where octet_length(given.id) between 1 and 1024;
    if good < cardinality(check_ids.ids) then
        select given.id into bad
        from unnest(check_ids.ids) as given(id)
        group by given.id
        having count(*) > 1 or given.id = '' or octet_length(given.id) > 1024
        limit 1;
        perform lock_internal.check_id(bad, 'id');
        raise exception 'id % is given twice', bad
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass every id once.';
    end if;
end;
$$;
