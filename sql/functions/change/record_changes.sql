-- record_changes is the statement trigger that records all changes of a statement as requests, and
-- every truncate.
--
-- An update fills its two transition tables in step, one old and one new row at a time. A scan
-- returns them in that order. So the n-th old row is the n-th new row before the change, whatever
-- the table's key is.
--
-- A few rows go one by one through lock_internal.add_request. Many rows come with their created_at,
-- which spares them that, unless something of the queue is put back. The plan is kept from one
-- statement to the next. Nested loops are off, because a plan for a single row would be quadratic
-- for 100,000. "offset 0" keeps the server from building a payload once for each use.
--
-- A table with columns of types that are not the server's own has its images made column by column,
-- by a statement that is planned each time: see lock_internal.recorded_columns. The body has one
-- query for each operation, because their transition tables differ.
--
-- The table's owner may have made the trigger by hand. Without transition tables their names could
-- be temporary tables or views of the owner's, which run code: hence the first test. A column may
-- have any name: "x.*" is a row, where "x" may be a column.
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
#variable_conflict use_variable
declare
    changed   constant text := tg_relid::regclass;
    columns   constant text := lock_internal.recorded_columns(tg_relid);
    old_path  constant text[] := array['old', tg_argv[0]];
    new_path  constant text[] := array['new', tg_argv[0]];
    many      boolean;
    created   timestamptz;
    side      text;
begin
    if tg_when <> 'AFTER' or tg_level <> 'STATEMENT'
        or to_regclass('pg_temp.lock_old_rows') is not null or to_regclass('pg_temp.lock_new_rows') is not null
    then
        raise exception 'trigger % of % is not one of lock.track_changes, or a temporary table is in its way', tg_name, tg_relid::regclass
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Call lock.track_changes again; name no temporary table lock_old_rows or lock_new_rows.';
    elsif tg_op = 'TRUNCATE' then
        insert into lock.request (queue_id, entity_id, request_type, payload)
        values (tg_argv[1], coalesce(pg_partition_root(tg_relid), tg_relid)::regclass::text, 'update',
            jsonb_build_object('table', changed, 'operation', tg_op, 'old', null, 'new', null));
        return null;
    end if;

    perform lock_internal.check_tracked(tg_relid, tg_argv[0]);
    if tg_op = 'DELETE' then
        many := exists (select from lock_old_rows offset 100);
    else
        many := exists (select from lock_new_rows offset 100);
    end if;
    if many then
        perform lock_internal.check_id(tg_argv[1], 'queue_id');
        perform lock_internal.wake('lock_request', tg_argv[1]);
        created := case when not lock_internal.puts_back(tg_argv[1]) then clock_timestamp() end;
    end if;

    if columns is not null then
        side := '(select row_number() over () as ordinal, to_jsonb(image.*) as line from (select %s from %s as line) as image)';
        execute format(
            $statement$
            insert into lock.request (queue_id, entity_id, request_type, payload, created_at)
            select $1, unnest(lock_internal.changed_entities($2, change.old_id, change.new_id)), 'update', change.payload, $3
            from (
                select pair.payload #>> $4 as old_id, pair.payload #>> $5 as new_id, pair.payload
                from (
                    select to_jsonb(body) as payload
                    from (select $2 as "table", $6 as operation, %s) as body
                    offset 0
                ) as pair
                offset 0
            ) as change
            $statement$,
            case tg_op
                when 'INSERT' then format('null as old, latter.line as new from %s as latter', format(side, columns, 'lock_new_rows'))
                when 'DELETE' then format('former.line as old, null as new from %s as former', format(side, columns, 'lock_old_rows'))
                else format('former.line as old, latter.line as new from %s as former join %s as latter on latter.ordinal = former.ordinal',
                    format(side, columns, 'lock_old_rows'), format(side, columns, 'lock_new_rows'))
            end)
        using tg_argv[1], changed, created,
            case tg_op when 'INSERT' then new_path else old_path end,
            case tg_op when 'DELETE' then old_path else new_path end,
            tg_op;
    elsif tg_op = 'INSERT' then
        insert into lock.request (queue_id, entity_id, request_type, payload, created_at)
        select tg_argv[1], case when octet_length(change.id) between 1 and 1024 then change.id else changed end, 'update', change.payload, created
        from (
            select built.payload #>> new_path as id, built.payload
            from (
                select to_jsonb(body) as payload
                from (
                    select changed as "table", tg_op as operation, null as old, to_jsonb(lock_new_rows.*) as new
                    from lock_new_rows
                ) as body
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
                from (
                    select changed as "table", tg_op as operation, to_jsonb(lock_old_rows.*) as old, null as new
                    from lock_old_rows
                ) as body
                offset 0
            ) as built
            offset 0
        ) as change;
    else
        insert into lock.request (queue_id, entity_id, request_type, payload, created_at)
        select tg_argv[1],
               unnest(lock_internal.changed_entities(changed, change.old_id, change.new_id)),
               'update', change.payload, created
        from (
            select pair.payload #>> old_path as old_id, pair.payload #>> new_path as new_id, pair.payload
            from (
                select to_jsonb(body) as payload
                from (select row_number() over () as ordinal, to_jsonb(lock_old_rows.*) as line from lock_old_rows) as former
                join (select row_number() over () as ordinal, to_jsonb(lock_new_rows.*) as line from lock_new_rows) as latter
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
    'Statement trigger of lock.track_changes. It runs with the rights of its own owner, and none '
    'of the table owner''s. lock.grant_tracking_to lets an owner''s tables have it.';
