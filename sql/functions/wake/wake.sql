-- wake notifies the idle workers of a queue when this transaction commits, and costs one look when nobody idles.
--
-- A NOTIFY takes a database-wide lock at commit, so it is sent only where somebody listens. No wake-up is lost, and nobody waits:
-- The producer gets the id of its transaction, and then looks who idles, in a statement of its own and so on a newer snapshot.
-- The worker commits its line, then reads which ids are open (lock.open_transactions), and looks for work then and when they are gone.
-- A producer whose id is older than that reading is over, and its work is found, or it is waited for.
-- A producer whose id is younger looks after the line was committed, and notifies.
--
-- Where a snapshot can be older than the statement (not READ COMMITTED) or ids mean nothing to other nodes (YugabyteDB), the
-- notification is always sent. Nothing is remembered from call to call: the look costs less than 10 us, and a setting that says
-- "done already" can be left behind or set by anybody, and would lose wake-ups.
create or replace function lock_internal.wake(
    channel   text,
    queue_id  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    moment  constant timestamptz := clock_timestamp();
begin
    perform pg_current_xact_id();
    if lock_internal.is_yugabyte() then
        if current_setting('yb_enable_listen_notify', true) is distinct from 'off' then
            perform pg_notify(wake.channel, wake.queue_id);
        end if;
    elsif current_setting('transaction_isolation') <> 'read committed'
        or exists (
            select
            from lock.idle_worker
            where idle_worker.channel = wake.channel
              and idle_worker.queue_id = wake.queue_id
              and idle_worker.until > moment
        )
    then
        perform pg_notify(wake.channel, wake.queue_id);
    end if;
end;
$$;

comment on function lock_internal.wake(text, text) is
    'Notifies the idle workers of a queue at commit. Call it after or before the change that they should see, in its transaction. Never waits.';

revoke all on function lock_internal.wake(text, text) from public;
