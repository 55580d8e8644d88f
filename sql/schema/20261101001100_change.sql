-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101001100 needs 20261101001000, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101001100, 20261101001000, 'up');
end;
$$;
-- +goose StatementEnd

-- functions of change: written by make migration, not by hand

-- file: sql/functions/change/changed_entities.sql
-- +goose StatementBegin
-- changed_entities returns the entities of a change, given their ids before and after it: both
-- where they differ. An impossible id stands for the table as a whole.
--
-- A query that has it takes it in as a part of its own: so it has no settings, and is nothing but
-- an expression.
create or replace function lock_internal.changed_entities(
    changed  text,
    old_id   text,
    new_id   text
)
returns text[]
language sql
immutable
parallel safe
as $$
    select case
        when changed_entities.old_id = changed_entities.new_id and octet_length(changed_entities.new_id) between 1 and 1024 then array[changed_entities.new_id]
        when changed_entities.old_id is not distinct from changed_entities.new_id then array[changed_entities.changed]
        else array[
            case when octet_length(changed_entities.old_id) between 1 and 1024 then changed_entities.old_id else changed_entities.changed end,
            case when octet_length(changed_entities.new_id) between 1 and 1024 then changed_entities.new_id else changed_entities.changed end]
    end;
$$;
-- +goose StatementEnd

-- file: sql/functions/change/check_tracked.sql
-- +goose StatementBegin
-- check_tracked refuses a table whose entity column is gone.
create or replace function lock_internal.check_tracked(
    target         oid,
    entity_column  text
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select
        from pg_attribute
        where pg_attribute.attrelid = check_tracked.target
          and pg_attribute.attname = check_tracked.entity_column
          and pg_attribute.attnum > 0
          and not pg_attribute.attisdropped
    ) then
        raise exception 'table % has no column "%"', check_tracked.target::regclass, check_tracked.entity_column
            using errcode = 'undefined_column',
                  hint = 'Call lock.track_changes with the column that names the entity, or stop tracking with lock.untrack_changes.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/change/recorded_columns.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- file: sql/functions/change/record_image.sql
-- +goose StatementBegin
-- record_image records the change of one row of a table, given as images of it.
--
-- An insert has only a new image, and a delete only an old one. A change without an entity, or with
-- an impossible id, is recorded under the table's own name.
--
-- It is in PL/pgSQL, because the server plans a function in SQL at every call.
create or replace function lock_internal.record_image(
    changed        text,
    operation      text,
    old            jsonb,
    new            jsonb,
    entity_column  text,
    queue_id       text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    insert into lock.request (queue_id, entity_id, request_type, payload)
    select
        record_image.queue_id,
        unnest(lock_internal.changed_entities(
            record_image.changed,
            coalesce(record_image.old, record_image.new) ->> record_image.entity_column,
            coalesce(record_image.new, record_image.old) ->> record_image.entity_column
        )),
        'update',
        jsonb_build_object('table', record_image.changed, 'operation', record_image.operation, 'old', record_image.old, 'new', record_image.new);
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/change/record_change.sql
-- +goose StatementBegin
-- record_change is the row trigger that records one change of a table as a request.
--
-- A partitioned table has it, because its partitions may be written directly and come later. So has
-- every table on YugabyteDB, which has no transition tables. Elsewhere record_changes does the
-- same, a statement at a time.
--
-- JSON depends on the settings. They are fixed here so that one value is one entity, whoever writes
-- it.
create or replace function lock.record_change()
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
as $$
declare
    changed  constant text := coalesce(pg_partition_root(tg_relid), tg_relid)::regclass;
    columns  constant text := lock_internal.recorded_columns(tg_relid);
    former   jsonb;
    latter   jsonb;
begin
    if tg_op <> 'INSERT' and columns is null then
        former := to_jsonb(old);
    elsif tg_op <> 'INSERT' then
        execute format('select to_jsonb(image.*) from (select %s from (select ($1).*) as line) as image', columns) into former using old;
    end if;
    if tg_op <> 'DELETE' and columns is null then
        latter := to_jsonb(new);
    elsif tg_op <> 'DELETE' then
        execute format('select to_jsonb(image.*) from (select %s from (select ($1).*) as line) as image', columns) into latter using new;
    end if;
    if not coalesce(latter, former) ? tg_argv[0] then
        perform lock_internal.check_tracked(tg_relid, tg_argv[0]);
    end if;
    perform lock_internal.record_image(changed, tg_op, former, latter, tg_argv[0], tg_argv[1]);
    return null;
end;
$$;
-- +goose StatementEnd

comment on function lock.record_change() is
    'Row trigger of lock.track_changes. It runs with the rights of its own owner, and none of the '
    'table owner''s. lock.grant_tracking_to lets an owner''s tables have it.';

-- file: sql/functions/change/record_changes.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.record_changes() is
    'Statement trigger of lock.track_changes. It runs with the rights of its own owner, and none '
    'of the table owner''s. lock.grant_tracking_to lets an owner''s tables have it.';

-- file: sql/functions/change/untrack_changes.sql
-- +goose StatementBegin
-- untrack_changes stops recording the changes of a table; recorded changes stay.
create or replace function lock.untrack_changes(
    target  regclass
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    tracker  record;
begin
    if untrack_changes.target is null then
        raise exception 'target must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a table, such as ''public.orders''.';
    end if;
    -- A row trigger of a partitioned table is dropped together with its copies on the partitions.
    for tracker in
        select pg_trigger.tgname, pg_trigger.tgrelid::regclass as target
        from pg_trigger
        where pg_trigger.tgrelid in (
                select untrack_changes.target
                union
                select pg_partition_tree.relid
                from pg_partition_tree(untrack_changes.target)
          )
          and pg_trigger.tgfoid in ('lock.record_change()'::regprocedure, 'lock.record_changes()'::regprocedure)
          and (pg_trigger.tgrelid = untrack_changes.target or pg_trigger.tgfoid = 'lock.record_changes()'::regprocedure)
    loop
        execute format('drop trigger %I on %s', tracker.tgname, tracker.target);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.untrack_changes(regclass) is
    'Stops recording the changes of a table. It does nothing to a table that is not tracked. '
    'Recorded changes stay, and workers work on them. Call it as the table''s owner. It waits for '
    'the table''s readers and writers, and stops them until the transaction ends. Errors: 22004 '
    'null, 42501 not the owner.';

-- file: sql/functions/change/track_changes.sql
-- +goose StatementBegin
-- track_changes records every change of a table from now on, as an update request of the entity
-- that a column names.
--
-- An ordinary table on PostgreSQL gets statement triggers. All others get a row trigger: see
-- lock.record_change. Every table of a partition tree gets a trigger for truncate, because a
-- truncate of one does not fire the triggers of another.
create or replace function lock.track_changes(
    target         regclass,
    entity_column  name,
    queue_id       text  default 'changes'
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    place      record;
    arguments  text;
    part       regclass;
begin
    if track_changes.target is null or track_changes.entity_column is null then
        raise exception '% must not be null', case when track_changes.target is null then 'target' else 'entity_column' end
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a table, such as ''public.orders'', and the column that names the entity.';
    end if;
    if track_changes.queue_id is null or octet_length(track_changes.queue_id) not between 1 and 1024 then
        raise exception 'queue_id must not be null, empty or longer than 1024 bytes'
            using errcode = case when track_changes.queue_id is null then '22004' else '22023' end,
                  hint = 'Pass a text of 1 to 1024 bytes, or leave it out: the queue is then changes.';
    end if;
    select pg_class.relkind, pg_class.relispartition, pg_namespace.nspname as schema, pg_class.relowner, pg_get_userbyid(pg_class.relowner) as owner
    into place
    from pg_class
    join pg_namespace on pg_namespace.oid = pg_class.relnamespace
    where pg_class.oid = track_changes.target;
    if place.relkind is null or place.relkind not in ('r', 'p') or place.schema in ('lock', 'lock_internal', 'pg_catalog', 'information_schema') then
        raise exception '% cannot be tracked', track_changes.target
            using errcode = 'wrong_object_type',
                  hint = 'Pass an ordinary or a partitioned table outside schema lock and the system''s schemas.';
    elsif place.relispartition then
        raise exception '% is a partition', track_changes.target
            using errcode = 'wrong_object_type',
                  hint = format('Track %s: this records the changes of all its partitions.', pg_partition_root(track_changes.target));
    elsif not has_function_privilege(place.relowner, 'lock.record_change()', 'execute')
        or not has_function_privilege(place.relowner, 'lock.record_changes()', 'execute')
    then
        raise exception 'tables of role % may not be tracked', place.owner
            using errcode = 'insufficient_privilege',
                  hint = format('As the owner of schema lock: select lock.grant_tracking_to(%L).', place.owner);
    end if;
    if not exists (
        select
        from pg_attribute
        where pg_attribute.attrelid = track_changes.target
          and pg_attribute.attname = track_changes.entity_column
          and pg_attribute.attnum > 0
          and not pg_attribute.attisdropped
    ) then
        raise exception 'table % has no column "%"', track_changes.target, track_changes.entity_column
            using errcode = 'undefined_column',
                  hint = 'Pass the column''s name exactly as it is stored, without quotes.';
    end if;

    perform lock.untrack_changes(track_changes.target);
    arguments := format('(%L, %L)', track_changes.entity_column, track_changes.queue_id);
    if place.relkind = 'p' or lock.engine() = 'row' then
        execute format('create trigger lock_change after insert or update or delete on %s for each row execute function lock.record_change%s',
            track_changes.target, arguments);
    else
        execute format('create trigger lock_insert after insert on %s referencing new table as lock_new_rows '
            'for each statement execute function lock.record_changes%s', track_changes.target, arguments);
        execute format('create trigger lock_update after update on %s referencing old table as lock_old_rows new table as lock_new_rows '
            'for each statement execute function lock.record_changes%s', track_changes.target, arguments);
        execute format('create trigger lock_delete after delete on %s referencing old table as lock_old_rows '
            'for each statement execute function lock.record_changes%s', track_changes.target, arguments);
    end if;
    for part in
        select track_changes.target
        union
        select pg_partition_tree.relid
        from pg_partition_tree(track_changes.target)
    loop
        execute format('create trigger lock_truncate after truncate on %s for each statement execute function lock.record_changes%s',
            part, arguments);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.track_changes(regclass, name, text) is
    'Records every insert, update and delete of a table, whoever makes it, in the same '
    'transaction. Each becomes an update request of the entity that entity_column names. The '
    'payload is {table, operation, old, new}. A column of a type of your own is in it as text. An '
    'update that changes entity_column is recorded for both entities. A truncate is recorded '
    'under the table''s own name. So is a change whose entity is null, empty or longer than 1024 '
    'bytes. Called again it replaces column and queue. A role that writes to the table needs no '
    'right on schema lock. Call it as the table''s owner. The owner needs what '
    'lock.grant_tracking_to gives, also where a superuser calls it. It takes a lock on the table: '
    'it waits for the table''s writers, and stops them until the transaction ends. Errors: 22004 '
    'null, 22023 bad queue_id, 42703 no such column, 42809 not a table, or a partition, 42501 not '
    'allowed, 42710 another session has just tracked it: call again.';

-- end of functions

select lock_internal.end_migration(20261101001100, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101001100 needs 20261101001000, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101001100, 20261101001000, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_loss('pg_catalog.pg_trigger', 'tgfoid in (to_regprocedure(''lock.record_change()''), to_regprocedure(''lock.record_changes()'')) and tgparentid = 0', 'triggers that record changes');

-- Tracked tables are the users': their triggers go before the functions they call.
-- +goose StatementBegin
do $$
declare
    tracked  regclass;
begin
    if to_regprocedure('lock.untrack_changes(regclass)') is not null then
        for tracked in
            select distinct pg_trigger.tgrelid
            from pg_trigger
            where pg_trigger.tgfoid in ('lock.record_change()'::regprocedure, 'lock.record_changes()'::regprocedure)
              and pg_trigger.tgparentid = 0
        loop
            perform lock.untrack_changes(tracked);
        end loop;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions of change: written by make migration, not by hand

-- gone: sql/functions/change/track_changes.sql
drop function if exists lock.track_changes(regclass, name, text);

-- gone: sql/functions/change/untrack_changes.sql
drop function if exists lock.untrack_changes(regclass);

-- gone: sql/functions/change/record_changes.sql
drop function if exists lock.record_changes();

-- gone: sql/functions/change/record_change.sql
drop function if exists lock.record_change();

-- gone: sql/functions/change/record_image.sql
drop function if exists lock_internal.record_image(text, text, jsonb, jsonb, text, text);

-- gone: sql/functions/change/recorded_columns.sql
drop function if exists lock_internal.recorded_columns(oid);

-- gone: sql/functions/change/check_tracked.sql
drop function if exists lock_internal.check_tracked(oid, text);

-- gone: sql/functions/change/changed_entities.sql
drop function if exists lock_internal.changed_entities(text, text, text);

-- end of functions

select lock_internal.end_migration(20261101001100, 'down');
