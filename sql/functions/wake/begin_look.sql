-- begin_look says how far a worker's listing as idle has come. Its caller looks for work
-- afterwards.
--
-- Null: the worker is not listed. False: the worker is listed, but an open transaction may have
-- missed its line. True: all transactions that may have missed the line are over. The look that
-- follows finds what they did, and all other producers notify: see lock_internal.wake.
--
-- A transaction that may have missed the line has an id from before the first transaction that saw
-- it committed. The id of that first transaction is the horizon. When the oldest open transaction
-- of a snapshot has no smaller id, all of them are over in it. The look is on a newer snapshot.
create or replace function lock_internal.begin_look(
    channel   text,
    queue_id  text,
    worker    text
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    line  record;
begin
    perform lock_internal.check_primary();
    if lock_internal.is_yugabyte() then
        return true;
    end if;
    select *
    into line
    from lock.idle_worker
    where idle_worker.channel = begin_look.channel
      and idle_worker.queue_id = begin_look.queue_id
      and idle_worker.until > clock_timestamp()
      and idle_worker.worker = begin_look.worker;
    if not found then
        return null;
    end if;
    if line.listed_by::text::xid8 = pg_current_xact_id_if_assigned() then
        raise exception 'nothing was found in this transaction already'
            using errcode = 'active_sql_transaction',
                  hint = 'Commit when there is nothing to do. Sleep as long as the answer says, and call again in a new transaction.';
    end if;
    if line.horizon is null then
        line.horizon := pg_current_xact_id()::text::bigint;
        update lock.idle_worker
        set horizon = line.horizon
        where idle_worker.channel = line.channel
          and idle_worker.queue_id = line.queue_id
          and idle_worker.until = line.until
          and idle_worker.worker = line.worker;
    end if;
    return pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= line.horizon;
end;
$$;
