-- +goose Up
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(8, 'up');

create table if not exists lock.idle_worker (
    channel   text collate "C"  not null,
    queue_id  text collate "C"  not null,
    worker    text collate "C"  not null,
    until     timestamptz       not null,
    constraint idle_worker_pkey primary key (channel, queue_id, worker)
);

comment on table lock.idle_worker is
    'Workers that listen and have nothing to do: their producers notify them. Worth nothing after a crash.';

comment on column lock.idle_worker.until is
    'When the line stops counting, so that a worker that died costs its producers no more notifications.';

-- +goose StatementBegin
do $$
begin
    if version() not like '%-YB-%' then
        alter table lock.idle_worker set unlogged;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions of wake: written by make migration, not by hand

-- file: sql/functions/wake/producers.sql
-- +goose StatementBegin
-- producers lists the open transactions that may have missed a worker which has just committed its line: see lock_internal.wake.
--
-- Queues share 1024 locks, so that one transaction never holds more of them; a stranger in the answer costs a look for work.
-- YugabyteDB shows locks late, and notifies always: nobody can have missed anything there.
create or replace function lock.producers(
    channel   text,
    queue_id  text,
    among     text[] default null
)
returns setof text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(producers.channel, 'channel');
    perform lock_internal.check_id(producers.queue_id, 'queue_id');
    if lock_internal.is_yugabyte() then
        return;
    end if;
    return query
        select distinct pg_locks.virtualtransaction
        from pg_locks
        where pg_locks.locktype = 'advisory'
          and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
          and pg_locks.classid = 2002873189
          and pg_locks.objid = (hashtext(producers.channel || ' ' || producers.queue_id) & 1023)::oid
          and pg_locks.objsubid = 2
          and (producers.among is null or pg_locks.virtualtransaction = any (producers.among));
end;
$$;
-- +goose StatementEnd

comment on function lock.producers(text, text, text[]) is
    'The open transactions (pg_locks.virtualtransaction) that have made work for the queue, or, with among, those of them that are still '
    'open. Ask after lock.start_idling, in a later transaction, and look for work when one of them is gone. Reads pg_locks. '
    'Errors: 22004 null, 22023 empty or too long.';

revoke all on function lock.producers(text, text, text[]) from public;

-- file: sql/functions/wake/start_idling.sql
-- +goose StatementBegin
-- start_idling lists a worker that listens and has nothing to do, so that producers notify it; it must be committed at once.
--
-- Producers hold no lock on a line of the list, and workers touch only their own and, once when they are new and skipping
-- what is locked, those of any queue that died an hour ago. A line keeps its place in the table when it changes (no index has until), so coming and going leaves
-- no dead index entries behind.
create or replace function lock.start_idling(
    channel   text,
    queue_id  text,
    worker    text,
    lasting   interval
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(start_idling.channel, 'channel');
    perform lock_internal.check_id(start_idling.queue_id, 'queue_id');
    perform lock_internal.check_id(start_idling.worker, 'worker');
    perform lock_internal.check_interval(start_idling.lasting, 'lasting', false);
    update lock.idle_worker
    set until = clock_timestamp() + start_idling.lasting
    where idle_worker.channel = start_idling.channel
      and idle_worker.queue_id = start_idling.queue_id
      and idle_worker.worker = start_idling.worker;
    if found then
        return;
    end if;
    insert into lock.idle_worker (channel, queue_id, worker, until)
    values (start_idling.channel, start_idling.queue_id, start_idling.worker, clock_timestamp() + start_idling.lasting)
    on conflict on constraint idle_worker_pkey do update
    set until = excluded.until;
    delete from lock.idle_worker
    where (idle_worker.channel, idle_worker.queue_id, idle_worker.worker) in (
        select gone.channel, gone.queue_id, gone.worker
        from lock.idle_worker as gone
        where gone.until < clock_timestamp() - interval '1 hour'
        for update skip locked
    );
end;
$$;
-- +goose StatementEnd

comment on function lock.start_idling(text, text, text, interval) is
    'Lists a worker as idle for lasting, so that producers of the queue notify channel, with the queue''s id as payload. For writers of '
    'workers: (1) listen; (2) start_idling, committed; (3) lock.producers; (4) look for work once more; sleep until a notification, until '
    'less than lasting is over, or until the producers of step 3 are gone, and look again. A worker that dies costs its queue needless '
    'notifications for lasting, nothing else. Never waits for producers. Errors: 22004 null, 22023 empty or too long, or a bad interval.';

revoke all on function lock.start_idling(text, text, text, interval) from public;

-- file: sql/functions/wake/stop_idling.sql
-- +goose StatementBegin
-- stop_idling takes a worker off the list: producers need not notify it any more. False: it was not listed.
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
as $$
begin
    perform lock_internal.check_id(stop_idling.channel, 'channel');
    perform lock_internal.check_id(stop_idling.queue_id, 'queue_id');
    perform lock_internal.check_id(stop_idling.worker, 'worker');
    update lock.idle_worker
    set until = clock_timestamp()
    where idle_worker.channel = stop_idling.channel
      and idle_worker.queue_id = stop_idling.queue_id
      and idle_worker.worker = stop_idling.worker
      and idle_worker.until > clock_timestamp();
    return found;
end;
$$;
-- +goose StatementEnd

comment on function lock.stop_idling(text, text, text) is
    'Takes a worker off the list of lock.start_idling; false: it was not listed, or no longer. Errors: 22004 null, 22023 empty or too long.';

revoke all on function lock.stop_idling(text, text, text) from public;

-- file: sql/functions/wake/wake.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock_internal.wake(text, text) is
    'Notifies the idle workers of a queue at commit. Call it after or before the change that they should see, in its transaction, '
    'and again for every change: only the first call of a transaction costs anything. Never waits.';

revoke all on function lock_internal.wake(text, text) from public;

-- end of functions

select lock_internal.end_migration(8, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(8, 'down');

-- functions of wake: written by make migration, not by hand

-- gone: sql/functions/wake/wake.sql
drop function if exists lock_internal.wake(text, text);

-- gone: sql/functions/wake/stop_idling.sql
drop function if exists lock.stop_idling(text, text, text);

-- gone: sql/functions/wake/start_idling.sql
drop function if exists lock.start_idling(text, text, text, interval);

-- gone: sql/functions/wake/producers.sql
drop function if exists lock.producers(text, text, text[]);

-- end of functions

drop table if exists lock.idle_worker;

select lock_internal.end_migration(8, 'down');
