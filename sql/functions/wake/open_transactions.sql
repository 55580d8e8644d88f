-- open_transactions lists the transactions that may have missed a worker that has just committed
-- its line: see lock_internal.wake.
--
-- It takes an id of its own first, and a snapshot then. A transaction with an older id is either
-- over in that snapshot or in the list. The own id is needed, because a snapshot does not name ids
-- above the newest one that is over. Some of these may be given already.
create or replace function lock.open_transactions(
    among  bigint[]  default null
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    own   bigint;
    seen  pg_snapshot;
begin
    if lock_internal.is_yugabyte() then
        return;
    elsif open_transactions.among is null then
        own := pg_current_xact_id()::text::bigint;
        seen := pg_current_snapshot();
        return query
            select listed.id::text::bigint
            from pg_snapshot_xip(seen) as listed(id)
            where listed.id::text::bigint < own
            union all
            select generate_series(pg_snapshot_xmax(seen)::text::bigint, own - 1);
    else
        return query
            select given.id
            from unnest(open_transactions.among) as given(id)
            where not pg_visible_in_snapshot(given.id::text::xid8, pg_current_snapshot());
    end if;
end;
$$;

comment on function lock.open_transactions(bigint[]) is
    'The ids of the transactions that have one and are still open. With among: those of these ids '
    'that are still open. For writers of workers: ask after lock.start_idling, in a later '
    'transaction, and look for work when one of them is gone. A prepared transaction counts as '
    'open. A transaction that has written nothing is not listed. Never waits. No row on '
    'YugabyteDB, where producers always notify. Errors: 25006 on a standby.';
