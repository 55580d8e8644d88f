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

-- A look for lines asks for those that count. So dead entries, which an old snapshot keeps, are
-- read for at most as long as a line lasts.
create table if not exists lock.idle_worker (
    channel    text collate "C"  not null,
    queue_id   text collate "C"  not null,
    worker     text collate "C"  not null,
    until      timestamptz       not null,
    since      timestamptz,
    listed_by  bigint,
    horizon    bigint,
    constraint idle_worker_pkey primary key (channel, queue_id, until, worker)
);

-- An index of the bare column could be taken for those looks.
create index if not exists idle_worker_until_idx on lock.idle_worker ((until at time zone interval '0') asc);

comment on table lock.idle_worker is
    'Workers that listen and have nothing to do. Producers of their queues notify them. Worth '
    'nothing after a crash.';

comment on column lock.idle_worker.until is
    'When the line stops counting. After that a worker that died costs producers no more '
    'notifications.';

comment on column lock.idle_worker.listed_by is
    'For lock.await_task and lock.await_request: the id of the transaction that made the line. '
    'since is the time when it did.';

comment on column lock.idle_worker.horizon is
    'For lock.await_task and lock.await_request: transactions that may have missed the line have '
    'an id below this one. Null: the line was not yet seen committed.';

-- +goose StatementBegin
do $$
begin
    if version() not like '%-YB-%' then
        alter table lock.idle_worker set unlogged;
    end if;
end;
$$;
-- +goose StatementEnd

create table if not exists lock.queue_pause (
    pause_id    bigint            not null generated always as identity,
    kind        text collate "C"  not null,
    queue_id    text collate "C"  not null,
    paused_by   text              not null,
    paused_at   timestamptz       not null default clock_timestamp(),
    reason      text              not null,
    resumed_by  text,
    resumed_at  timestamptz,
    constraint queue_pause_pkey primary key (pause_id)
);

create unique index if not exists queue_pause_kind_queue_id_idx on lock.queue_pause (kind, queue_id)
    where resumed_at is null;

comment on table lock.queue_pause is
    'Every pause of a queue (lock.pause_queue): the operators that paused and resumed it, when '
    'and why. Only its owner deletes from it, by hand.';

comment on column lock.queue_pause.kind is
    'task or request.';

comment on column lock.queue_pause.paused_by is
    'The role that logged in (session_user); so is resumed_by.';

comment on column lock.queue_pause.resumed_at is
    'Null: it is paused.';

-- functions of wake: written by make migration, not by hand

-- file: sql/functions/wake/begin_look.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- file: sql/functions/wake/check_kind.sql
-- +goose StatementBegin
-- check_kind refuses a kind that has no queues.
create or replace function lock_internal.check_kind(
    kind  text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_kind.kind is null then
        raise exception 'kind must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass task or request.';
    elsif check_kind.kind not in ('task', 'request') then
        raise exception 'kind is %, and must be task or request', left(check_kind.kind, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass task or request.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/wake/start_idling.sql
-- +goose StatementBegin
-- start_idling lists a worker that listens and has nothing to do, so that producers notify it.
-- Commit it at once.
--
-- Producers lock no line of the list, and workers only their own. A worker that goes on idling
-- deletes lines of workers that died an hour ago: a hundred at most, so that nobody pays for the
-- lines of others. It skips lines that are locked.
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
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    moment  constant timestamptz := clock_timestamp();
    gone    lock.idle_worker;
begin
    perform lock_internal.check_primary();
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
    for gone in
        select idle_worker.*
        from lock.idle_worker
        where lock_internal.utc(idle_worker.until) < lock_internal.utc(moment - interval '1 hour')
        limit 100
        for update skip locked
    loop
        delete from lock.idle_worker
        where idle_worker.channel = gone.channel
          and idle_worker.queue_id = gone.queue_id
          and idle_worker.worker = gone.worker
          and idle_worker.until = gone.until;
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.start_idling(text, text, text, interval) is
    'Lists a worker as idle for lasting. Producers of the queue then notify channel, with the '
    'queue''s id as payload. For writers of workers: (1) listen; (2) call start_idling, and '
    'commit; (3) call lock.open_transactions, and commit; (4) look for work once more. Then sleep '
    'until a notification comes, or until less than lasting is over. Meanwhile ask, in growing '
    'pauses, whether one of the transactions of step 3 is gone; then look again. A worker that '
    'dies costs its queue needless notifications for lasting, and nothing else. Never waits for '
    'producers. Errors: 22004 null, 22023 empty or too long, or a bad interval; 25006 on a '
    'standby.';

-- file: sql/functions/wake/end_look.sql
-- +goose StatementBegin
-- end_look says for how many seconds a worker that found nothing sleeps, and lists it as idle.
--
-- listed is the answer that lock_internal.begin_look gave before the look. due is the time until
-- there is work that no producer announces. Zero or less means: there is work, and another open
-- transaction holds it. Nobody can tell when that transaction ends, or one that may have missed the
-- line. So the pause grows with the time since the listing. A listing in the future was made
-- before the clock was set back, and is taken for as old as it is ahead.
create or replace function lock_internal.end_look(
    channel   text,
    queue_id  text,
    worker    text,
    listed    boolean,
    poll      interval,
    due       interval
)
returns double precision
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    moment   constant timestamptz := clock_timestamp();
    lasting  constant interval := 2 * end_look.poll + interval '1 second';
    line     lock.idle_worker;
    age      interval;
    pause    interval := end_look.poll;
begin
    if end_look.listed is null then
        insert into lock.idle_worker (channel, queue_id, worker, until, since, listed_by)
        values (
            end_look.channel, end_look.queue_id, end_look.worker, moment + lasting, moment,
            pg_current_xact_id()::text::bigint
        );
        return 0;
    end if;
    if not lock_internal.is_yugabyte() then
        select *
        into line
        from lock.idle_worker
        where idle_worker.channel = end_look.channel
          and idle_worker.queue_id = end_look.queue_id
          and idle_worker.until > moment
          and idle_worker.worker = end_look.worker;
        if not found then
            return 0;
        elsif line.until < moment + end_look.poll + interval '1 second' then
            -- A look before this is committed may find that the line has run out. So the look that
            -- counts is the next one, as for a new line.
            perform lock.start_idling(end_look.channel, end_look.queue_id, end_look.worker, lasting);
            update lock.idle_worker
            set since = moment,
                listed_by = pg_current_xact_id()::text::bigint,
                horizon = null
            where idle_worker.channel = end_look.channel
              and idle_worker.queue_id = end_look.queue_id
              and idle_worker.until > moment
              and idle_worker.worker = end_look.worker;
            return 0;
        end if;
    end if;
    age := least(greatest(moment - line.since, line.since - moment), interval '1 second');
    if end_look.due > interval '0' then
        pause := least(pause, end_look.due);
    elsif end_look.due is not null then
        pause := least(pause, greatest(age, interval '0.1 seconds'));
    end if;
    if not end_look.listed then
        pause := least(pause, greatest(age, interval '0.001 seconds'));
    end if;
    return extract(epoch from pause);
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/wake/is_paused.sql
-- +goose StatementBegin
-- is_paused gives a row when a queue is paused. It costs one descent of an index that holds only
-- what is paused.
--
-- A query that has it in its from clause takes it in as a part of its own plan, like must_notify.
create or replace function lock_internal.is_paused(
    kind      text,
    queue_id  text
)
returns setof boolean
language sql
stable
as $$
    select true
    from lock.queue_pause
    where queue_pause.kind = is_paused.kind
      and queue_pause.queue_id = is_paused.queue_id
      and queue_pause.resumed_at is null;
$$;
-- +goose StatementEnd

-- file: sql/functions/wake/must_notify.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- file: sql/functions/wake/open_transactions.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.open_transactions(bigint[]) is
    'The ids of the transactions that have one and are still open. With among: those of these ids '
    'that are still open. For writers of workers: ask after lock.start_idling, in a later '
    'transaction, and look for work when one of them is gone. A prepared transaction counts as '
    'open. A transaction that has written nothing is not listed. Never waits. No row on '
    'YugabyteDB, where producers always notify. Errors: 25006 on a standby.';

-- file: sql/functions/wake/pause_queue.sql
-- +goose StatementBegin
-- pause_queue makes a queue give nothing to anybody until lock.resume_queue; false: it is paused
-- already.
--
-- It stops captures that look after its commit. A capture looks once, at its beginning. A capture
-- that looked before goes on.
create or replace function lock.pause_queue(
    kind      text,
    queue_id  text,
    reason    text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    perform lock_internal.check_kind(pause_queue.kind);
    perform lock_internal.check_id(pause_queue.queue_id, 'queue_id');
    perform lock_internal.check_text(pause_queue.reason, 'reason');
    perform lock_internal.check_primary();
    if exists (select from lock_internal.is_paused(pause_queue.kind, pause_queue.queue_id)) then
        return false;
    end if;
    insert into lock.queue_pause (kind, queue_id, paused_by, reason)
    values (pause_queue.kind, pause_queue.queue_id, session_user, pause_queue.reason)
    on conflict (kind, queue_id) where resumed_at is null do nothing;
    return found;
end;
$$;
-- +goose StatementEnd

comment on function lock.pause_queue(text, text, text) is
    'For operators. Pauses a queue of kind task or request. It gives nothing to anybody, whether '
    'new, failed, timed out or put back, until lock.resume_queue. False: it is paused already, '
    'and its reason stays. Works for queues that have nothing yet. Captured work goes on and is '
    'settled as before, and producers go on producing. A capture that began before this call''s '
    'transaction committed may still take something. A transaction under REPEATABLE READ or '
    'SERIALIZABLE sees what its snapshot does. lock.queue_pause keeps the operator, the time and '
    'the reason; lock.queue_depth shows which queues are paused. Waits only for an open '
    'transaction that pauses or resumes the same queue. Errors: 22004 null; 22023 another kind, '
    'an empty or blank text, or one longer than 1024 bytes; 25006 on a standby; 40001 under '
    'REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/wake/record_action.sql
-- +goose StatementBegin
-- record_action writes down what an operator does by a function that keeps no record of its own.
create or replace function lock.record_action(
    kind     text,
    id       text,
    reason   text,
    details  jsonb
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_kind(record_action.kind);
    perform lock_internal.check_text(left(record_action.id, 250), 'id');
    perform lock_internal.check_text(record_action.reason, 'reason');
    perform lock_internal.record_forced_release(
        record_action.kind, record_action.id, record_action.reason, coalesce(record_action.details, '{}')
    );
end;
$$;
-- +goose StatementEnd

comment on function lock.record_action(text, text, text, jsonb) is
    'For operators. Adds a line to lock.forced_release about an action on a queue of kind task or '
    'request that keeps no record itself, such as a retry: the console calls it. id names the '
    'queue, or queue and id; the line also has the role that logged in. It belongs to the '
    'caller''s transaction: call it together with the action. Errors: 22004 null, 22023 another '
    'kind, an empty or blank text or one longer than 1024 bytes, 25006 read-only.';

-- file: sql/functions/wake/wake.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- file: sql/functions/wake/resume_queue.sql
-- +goose StatementBegin
-- resume_queue ends a pause and wakes the queue's idle workers; false: it was not paused.
--
-- It acts as the producer of all that waits. Idle workers are told as they are of a new task or
-- request, by the same handshake.
create or replace function lock.resume_queue(
    kind      text,
    queue_id  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_kind(resume_queue.kind);
    perform lock_internal.check_id(resume_queue.queue_id, 'queue_id');
    update lock.queue_pause
    set resumed_by = session_user,
        resumed_at = clock_timestamp()
    where queue_pause.kind = resume_queue.kind
      and queue_pause.queue_id = resume_queue.queue_id
      and queue_pause.resumed_at is null;
    if not found then
        return false;
    end if;
    perform lock_internal.wake('lock_' || resume_queue.kind, resume_queue.queue_id);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.resume_queue(text, text) is
    'For operators. Ends a pause of lock.pause_queue, and wakes the queue''s idle workers at '
    'commit. False: it was not paused. Waits only for an open transaction that pauses or resumes '
    'the same queue. Errors: 22004 null, 22023 another kind or a bad queue_id, 25006 on a '
    'standby, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/wake/stop_idling.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.stop_idling(text, text, text) is
    'Takes a worker off the list of lock.start_idling. False: it was not listed, or is no longer. '
    'Errors: 22004 null, 22023 empty or too long; 25006 on a standby.';

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
select lock_internal.refuse_dependents('{lock.idle_worker, lock.queue_pause}');
select lock_internal.refuse_loss('lock.queue_pause', 'resumed_at is null', 'queues that are paused');

-- functions of wake: written by make migration, not by hand

-- gone: sql/functions/wake/stop_idling.sql
drop function if exists lock.stop_idling(text, text, text);

-- gone: sql/functions/wake/resume_queue.sql
drop function if exists lock.resume_queue(text, text);

-- gone: sql/functions/wake/wake.sql
drop function if exists lock_internal.wake(text, text);

-- gone: sql/functions/wake/record_action.sql
drop function if exists lock.record_action(text, text, text, jsonb);

-- gone: sql/functions/wake/pause_queue.sql
drop function if exists lock.pause_queue(text, text, text);

-- gone: sql/functions/wake/open_transactions.sql
drop function if exists lock.open_transactions(bigint[]);

-- gone: sql/functions/wake/must_notify.sql
drop function if exists lock_internal.must_notify(text, text);

-- gone: sql/functions/wake/is_paused.sql
drop function if exists lock_internal.is_paused(text, text);

-- gone: sql/functions/wake/end_look.sql
drop function if exists lock_internal.end_look(text, text, text, boolean, interval, interval);

-- gone: sql/functions/wake/start_idling.sql
drop function if exists lock.start_idling(text, text, text, interval);

-- gone: sql/functions/wake/check_kind.sql
drop function if exists lock_internal.check_kind(text);

-- gone: sql/functions/wake/begin_look.sql
drop function if exists lock_internal.begin_look(text, text, text);

-- end of functions

drop table if exists lock.queue_pause;
drop table if exists lock.idle_worker;

select lock_internal.end_migration(20261101000800, 'down');
