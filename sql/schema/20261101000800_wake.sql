-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000800 needs 20261101000700, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000800, 20261101000700, 'up');
end;
$$;
-- +goose StatementEnd

-- Whoever asks for lines asks for those that count: so dead entries, which an old snapshot keeps, are read for as long as a line lasts at most.
create table if not exists lock.idle_worker (
    channel   text collate "C"  not null,
    queue_id  text collate "C"  not null,
    worker    text collate "C"  not null,
    until     timestamptz       not null,
    constraint idle_worker_pkey primary key (channel, queue_id, until, worker)
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

-- file: sql/functions/wake/open_transactions.sql
-- +goose StatementBegin
-- open_transactions lists who may have missed a worker that has just committed its line: see lock_internal.wake.
--
-- It takes an id of its own first and a snapshot then. Whoever has an older id is either over in that snapshot or in the list.
-- The own id is needed because a snapshot does not name ids above the newest one that is over, and some of these may be given already.
create or replace function lock.open_transactions(
    among  bigint[]  default null
)
returns setof bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
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
-- +goose StatementEnd

comment on function lock.open_transactions(bigint[]) is
    'The ids of the transactions that have one and are still open, or, with among, those of these ids that still are. For writers of workers: '
    'ask after lock.start_idling, in a later transaction, and look for work when one of them is gone. A prepared transaction is open, '
    'one that has written nothing is not listed. Never waits. No row on YugabyteDB, where producers always notify. '
    'Errors: 25006 on a standby.';

-- file: sql/functions/wake/start_idling.sql
-- +goose StatementBegin
-- start_idling lists a worker that listens and has nothing to do, so that producers notify it; it must be committed at once.
--
-- Producers lock no line of the list, and workers only their own. One that goes on idling takes away what workers that died an
-- hour ago have left, and skips what is locked.
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
declare
    moment  constant timestamptz := clock_timestamp();
begin
    perform lock_internal.check_id(start_idling.channel, 'channel');
    if octet_length(start_idling.channel) > 63 then
        raise exception 'a channel''s name has at most 63 bytes, and this one %', octet_length(start_idling.channel)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass lock_task or lock_request.';
    end if;
    perform lock_internal.check_id(start_idling.queue_id, 'queue_id');
    perform lock_internal.check_id(start_idling.worker, 'worker');
    perform lock_internal.check_interval(start_idling.lasting, 'lasting', false);
    update lock.idle_worker
    set until = moment + start_idling.lasting
    where idle_worker.channel = start_idling.channel
      and idle_worker.queue_id = start_idling.queue_id
      and idle_worker.worker = start_idling.worker
      and idle_worker.until > moment;
    if not found then
        insert into lock.idle_worker (channel, queue_id, worker, until)
        values (start_idling.channel, start_idling.queue_id, start_idling.worker, moment + start_idling.lasting)
        on conflict on constraint idle_worker_pkey do nothing;
        return;
    end if;
    delete from lock.idle_worker
    where (idle_worker.channel, idle_worker.queue_id, idle_worker.until, idle_worker.worker) in (
        select gone.channel, gone.queue_id, gone.until, gone.worker
        from lock.idle_worker as gone
        where gone.until < moment - interval '1 hour'
        for update skip locked
    );
end;
$$;
-- +goose StatementEnd

comment on function lock.start_idling(text, text, text, interval) is
    'Lists a worker as idle for lasting, so that producers of the queue notify channel, with the queue''s id as payload. For writers of '
    'workers: (1) listen; (2) start_idling, committed; (3) lock.open_transactions, committed; (4) look for work once more; sleep until a '
    'notification or until less than lasting is over, and, in growing pauses, ask whether one of the transactions of step 3 is gone; look '
    'again. A worker that dies costs its queue needless notifications for lasting, nothing else. Never waits for producers. '
    'Errors: 22004 null, 22023 empty or too long, or a bad interval.';

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
declare
    moment  constant timestamptz := clock_timestamp();
begin
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
-- +goose StatementEnd

comment on function lock.stop_idling(text, text, text) is
    'Takes a worker off the list of lock.start_idling; false: it was not listed, or no longer. Errors: 22004 null, 22023 empty or too long.';

-- file: sql/functions/wake/wake.sql
-- +goose StatementBegin
-- wake notifies the idle workers of a queue when this transaction commits, and costs one look when nobody idles.
--
-- A NOTIFY takes a database-wide lock at commit, so it is sent only where somebody listens. No wake-up is lost, and nobody waits:
-- The producer gets the id of its transaction, and then looks who idles, in a statement of its own and so on a newer snapshot.
-- The worker commits its line, then reads which ids are open (lock.open_transactions), then looks for work, and again when they are gone.
-- A producer whose id is older than that reading is over, and its work is found, or it is waited for.
-- A producer whose id is younger looks after the line was committed, and notifies.
--
-- Where a snapshot can be older than the statement (not READ COMMITTED) or ids mean nothing to other nodes (YugabyteDB), the
-- notification is always sent. One look per transaction and queue is enough. It is noted in a setting, which a rollback to a savepoint
-- takes back together with the notification. The note names the transaction by id and start, so nobody can leave one for another.
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
    note    constant text := concat_ws(' ', pg_current_xact_id(), extract(epoch from transaction_timestamp()), wake.channel, wake.queue_id);
    moment  constant timestamptz := clock_timestamp();
begin
    if current_setting('lock.woken', true) = note then
        return;
    elsif lock_internal.is_yugabyte() then
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
    perform set_config('lock.woken', note, true);
end;
$$;
-- +goose StatementEnd

-- end of functions

select lock_internal.end_migration(20261101000800, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000800 needs 20261101000700, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000800, 20261101000700, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.idle_worker}');

-- functions of wake: written by make migration, not by hand

-- gone: sql/functions/wake/wake.sql
drop function if exists lock_internal.wake(text, text);

-- gone: sql/functions/wake/stop_idling.sql
drop function if exists lock.stop_idling(text, text, text);

-- gone: sql/functions/wake/start_idling.sql
drop function if exists lock.start_idling(text, text, text, interval);

-- gone: sql/functions/wake/open_transactions.sql
drop function if exists lock.open_transactions(bigint[]);

-- end of functions

drop table if exists lock.idle_worker;

select lock_internal.end_migration(20261101000800, 'down');
