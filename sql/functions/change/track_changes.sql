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
