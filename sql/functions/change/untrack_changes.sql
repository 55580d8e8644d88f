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

comment on function lock.untrack_changes(regclass) is
    'Stops recording the changes of a table. It does nothing to a table that is not tracked. '
    'Recorded changes stay, and workers work on them. Call it as the table''s owner. It waits for '
    'the table''s readers and writers, and stops them until the transaction ends. Errors: 22004 '
    'null, 42501 not the owner.';
