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

comment on function lock.record_change() is
    'Row trigger of lock.track_changes. It runs with the rights of its own owner, and none of the '
    'table owner''s. lock.grant_tracking_to lets an owner''s tables have it.';
