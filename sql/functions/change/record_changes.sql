-- record_changes is the statement trigger that records all changes of a statement as requests, and every truncate.
--
-- The transition tables of an update are filled in step, one old and one new row at a time, and a scan returns them in that
-- order: so the n-th old row is the n-th new row before the change, whatever the table has for a key.
--
-- A few rows go one by one through lock_internal.add_request; many come with their created_at, which spares them that.
-- Nested loops are off because the plan is kept from one statement to the next, and made for a single row it would be
-- quadratic for 100,000.
-- "offset 0" keeps a payload from being built once for each use.
create or replace function lock.record_changes()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set intervalstyle = 'postgres'
set bytea_output = 'hex'
set extra_float_digits = 1
set datestyle = 'ISO'
set lc_monetary = 'C'
set quote_all_identifiers = off
set enable_nestloop = off
set enable_mergejoin = off
set jit = off
set work_mem = '32MB'
as $$
declare
    changed   constant text := tg_relid::regclass;
    old_path  constant text[] := array['old', tg_argv[0]];
    new_path  constant text[] := array['new', tg_argv[0]];
    many      boolean;
    created   timestamptz;
begin
    if tg_op = 'TRUNCATE' then
        insert into lock.request (queue_id, entity_id, request_type, payload)
        values (tg_argv[1], coalesce(pg_partition_root(tg_relid), tg_relid)::regclass::text, 'update',
            jsonb_build_object('table', changed, 'operation', tg_op, 'old', null, 'new', null));
        return null;
    end if;

    perform lock_internal.check_tracked(tg_relid, tg_argv[0]);
    if tg_op = 'DELETE' then
        many := exists (select from old_rows offset 100);
    else
        many := exists (select from new_rows offset 100);
    end if;
    if many then
        perform lock_internal.wake('lock_request', tg_argv[1]);
        created := clock_timestamp();
    end if;

    if tg_op = 'INSERT' then
        insert into lock.request (queue_id, entity_id, request_type, payload, created_at)
        select tg_argv[1], case when octet_length(change.id) between 1 and 1024 then change.id else changed end, 'update', change.payload, created
        from (
            select built.payload #>> new_path as id, built.payload
            from (
                select to_jsonb(body) as payload
                from (select changed as "table", tg_op as operation, null as old, new_rows as new from new_rows) as body
                offset 0
            ) as built
            offset 0
        ) as change;
    elsif tg_op = 'DELETE' then
        insert into lock.request (queue_id, entity_id, request_type, payload, created_at)
        select tg_argv[1], case when octet_length(change.id) between 1 and 1024 then change.id else changed end, 'update', change.payload, created
        from (
            select built.payload #>> old_path as id, built.payload
            from (
                select to_jsonb(body) as payload
                from (select changed as "table", tg_op as operation, old_rows as old, null as new from old_rows) as body
                offset 0
            ) as built
            offset 0
        ) as change;
    else
        -- Both ids, where they differ.
        insert into lock.request (queue_id, entity_id, request_type, payload, created_at)
        select tg_argv[1],
               unnest(
                   case when change.old_id = change.new_id and octet_length(change.new_id) between 1 and 1024 then array[change.new_id]
                        when change.old_id is not distinct from change.new_id then array[changed]
                        else array[
                            case when octet_length(change.old_id) between 1 and 1024 then change.old_id else changed end,
                            case when octet_length(change.new_id) between 1 and 1024 then change.new_id else changed end]
                   end),
               'update', change.payload, created
        from (
            select pair.payload #>> old_path as old_id, pair.payload #>> new_path as new_id, pair.payload
            from (
                select to_jsonb(body) as payload
                from (select row_number() over () as ordinal, old_rows as line from old_rows) as former
                join (select row_number() over () as ordinal, new_rows as line from new_rows) as latter
                    on latter.ordinal = former.ordinal
                cross join lateral (
                    select changed as "table", tg_op as operation, former.line as old, latter.line as new
                ) as body
                offset 0
            ) as pair
            offset 0
        ) as change;
    end if;
    return null;
end;
$$;

comment on function lock.record_changes() is
    'Statement trigger of lock.track_changes. Runs with the rights of its owner, and so do casts to json of the table''s column types: grant '
    'execute only to roles that are trusted with schema lock.';

revoke all on function lock.record_changes() from public;
