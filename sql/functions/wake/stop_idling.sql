-- stop_idling takes a worker off the list, so that producers need not notify it any more. False: it
-- was not listed.
create or replace function lock.stop_idling(
    channel   text,
    queue_id  text,
    worker    text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    moment  constant timestamptz := clock_timestamp();
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_id(stop_idling.channel, 'channel');
    perform lock_internal.check_id(stop_idling.queue_id, 'queue_id');
    perform lock_internal.check_id(stop_idling.worker, 'worker');
    delete from lock.idle_worker
    where idle_worker.channel = stop_idling.channel
      and idle_worker.queue_id = stop_idling.queue_id
      and idle_worker.worker = stop_idling.worker
      and idle_worker.until > moment;
    return found;
end;
$$;

comment on function lock.stop_idling(text, text, text) is
    'Takes a worker off the list of lock.start_idling. False: it was not listed, or is no longer. '
    'Errors: 22004 null, 22023 empty or too long; 25006 on a standby.';
