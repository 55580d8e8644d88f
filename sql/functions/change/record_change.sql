-- record_change is the row trigger that records one change of a table as a request.
--
-- For partitioned tables, whose partitions may be written directly and come later, and for YugabyteDB, which has no
-- transition tables. Everywhere else record_changes does the same, a statement at a time.
--
-- The settings are those that JSON depends on: one value must be one entity, whoever writes it.
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
    old_row     constant jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) end;
    new_row     constant jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) end;
    changed     constant text := coalesce(pg_partition_root(tg_relid), tg_relid)::regclass;
    old_entity  text;
    new_entity  text;
    payload     jsonb;
begin
    if not coalesce(new_row, old_row) ? tg_argv[0] then
        perform lock_internal.check_tracked(tg_relid, tg_argv[0]);
    end if;
    old_entity := old_row ->> tg_argv[0];
    new_entity := new_row ->> tg_argv[0];
    -- A change that belongs to no entity, or to one with an impossible id, is recorded under the table's own name.
    if octet_length(old_entity) not between 1 and 1024 or old_entity is null then
        old_entity := changed;
    end if;
    if octet_length(new_entity) not between 1 and 1024 or new_entity is null then
        new_entity := changed;
    end if;
    payload := jsonb_build_object('table', changed, 'operation', tg_op, 'old', old_row, 'new', new_row);
    if tg_op = 'DELETE' or tg_op = 'UPDATE' and old_entity <> new_entity then
        insert into lock.request (queue_id, entity_id, request_type, payload)
        values (tg_argv[1], old_entity, 'update', payload);
    end if;
    if tg_op <> 'DELETE' then
        insert into lock.request (queue_id, entity_id, request_type, payload)
        values (tg_argv[1], new_entity, 'update', payload);
    end if;
    return null;
end;
$$;

comment on function lock.record_change() is
    'Row trigger of lock.track_changes. Runs with the rights of its owner, and so do casts to json of the table''s column types: grant '
    'execute only to roles that are trusted with schema lock.';

revoke all on function lock.record_change() from public;
