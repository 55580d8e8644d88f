-- wake notifies the idle workers of a queue when this transaction commits. When no worker is idle,
-- it costs one look.
--
-- A NOTIFY takes a database-wide lock at commit, so it is sent only where a worker listens. No
-- wake-up is lost, and nobody waits. The producer gets the id of its transaction. Then it looks for
-- idle workers, in a statement of its own, and so on a newer snapshot. The worker commits its line,
-- then reads which ids are open (lock.open_transactions), then looks for work. It looks again when
-- these transactions are gone. A producer whose id is older than that reading is over, and its work
-- is found, or the worker waits for it. A producer whose id is younger looks after the line was
-- committed, and notifies.
--
-- The notification is always sent where a snapshot can be older than the statement (not READ
-- COMMITTED). So it is on YugabyteDB, where ids mean nothing to other nodes, and where nothing
-- freezes them: nobody asks for one there. One look per transaction and queue is enough. A setting
-- notes it. A rollback to a savepoint takes back the setting together with the notification. The
-- note names the transaction by id and start, so nobody can leave one for another.
create or replace function lock_internal.wake(
    channel   text,
    queue_id  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    note  text;
begin
    if not lock_internal.is_yugabyte() then
        note := concat_ws(' ', pg_current_xact_id(), extract(epoch from transaction_timestamp()), wake.channel, wake.queue_id);
        if current_setting('lock.woken', true) = note then
            return;
        end if;
        perform set_config('lock.woken', note, true);
    end if;
    perform pg_notify(wake.channel, wake.queue_id)
    from lock_internal.must_notify(wake.channel, wake.queue_id);
end;
$$;
