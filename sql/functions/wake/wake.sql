-- wake notifies the idle workers of a queue when this transaction commits, and costs two look-ups when nobody idles.
--
-- A NOTIFY takes a database-wide lock at commit, so it is sent only where somebody listens. The question is asked in this
-- order: first a shared advisory lock that this transaction keeps, then, on a newer snapshot, the list of idle workers. A
-- worker does the reverse: it commits its line in the list, then reads who has the lock (lock.producers), and looks for work
-- once more when those are gone. So one of the two sees the other, and nobody ever waits: the lock is only taken shared.
--
-- One look per transaction and queue is enough, because the lock stays: it is noted in a setting of the transaction, which a
-- rollback to a savepoint takes back together with the lock and the notification. Where the snapshot can be old (not READ
-- COMMITTED) or the locks of others cannot be seen at once (YugabyteDB), the notification is always sent.
create or replace function lock_internal.wake(
    channel   text,
    queue_id  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    topic  constant text := wake.channel || ' ' || wake.queue_id;
begin
    if current_setting('lock.woken', true) = topic then
        return;
    end if;
    if lock_internal.is_yugabyte() then
        if current_setting('yb_enable_listen_notify', true) is distinct from 'off' then
            perform pg_notify(wake.channel, wake.queue_id);
        end if;
    else
        perform pg_advisory_xact_lock_shared(2002873189, hashtext(topic) & 1023);
        if current_setting('transaction_isolation') <> 'read committed'
            or exists (
                select
                from lock.idle_worker
                where idle_worker.channel = wake.channel
                  and idle_worker.queue_id = wake.queue_id
                  and idle_worker.until > clock_timestamp()
            )
        then
            perform pg_notify(wake.channel, wake.queue_id);
        end if;
    end if;
    perform set_config('lock.woken', topic, true);
end;
$$;

comment on function lock_internal.wake(text, text) is
    'Notifies the idle workers of a queue at commit. Call it after or before the change that they should see, in its transaction, '
    'and again for every change: only the first call of a transaction costs anything. Never waits.';

revoke all on function lock_internal.wake(text, text) from public;
