-- must_notify gives a row when the producer that asks has to notify the queue's workers. What the
-- producer has to have done before is said at lock_internal.wake.
--
-- A query that has it in its from clause takes it in as a part of its own plan: so it has no
-- settings, and is nothing but a query. Lines count until they ended before the statement began.
-- YugabyteDB before 2025.2.3 does not know the setting, and ignores notifications.
create or replace function lock_internal.must_notify(
    channel   text,
    queue_id  text
)
returns setof boolean
language sql
stable
as $$
    select true
    where case
        when lock_internal.is_yugabyte() then current_setting('yb_enable_listen_notify', true) = 'on'
        when current_setting('transaction_isolation') <> 'read committed' then true
        else exists (
            select
            from lock.idle_worker
            where idle_worker.channel = must_notify.channel
              and idle_worker.queue_id = must_notify.queue_id
              and idle_worker.until > statement_timestamp()
        )
    end;
$$;
