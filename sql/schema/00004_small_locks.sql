-- +goose Up
select lock.start_migration(4, 'up');

-- Ids are compared as bytes (collate "C"), as everywhere in this schema: that is faster, and no upgrade of the operating system can
-- change the order that the unique indexes rely on, which would let one id have two rows.
--
-- Every table keeps room in its pages (fillfactor), so that a grant changes the row in place and no index. unused_since holds
-- whole hours for the same reason: its index, which the drop_unused functions walk, changes once an hour. It is set by every
-- grant and not generated, because a generated column costs every update a tenth of its time; those functions trust it only
-- to find candidates. lock.timeout has no check constraint, which would cost a grant a fifth of its time: lock.create_timeout checks.

create table if not exists lock.mutex (
    task_id       text collate "C"  not null,
    acquired      boolean           not null default false,
    owner         text,
    acquired_at   timestamptz,
    released_at   timestamptz       not null default clock_timestamp(),
    set_aside     boolean           not null default false,
    unused_since  timestamp         not null default date_trunc('hour', clock_timestamp() at time zone 'UTC'),
    constraint mutex_pkey primary key (task_id)
) with (fillfactor = 80);

create index if not exists mutex_unused_since_idx on lock.mutex (unused_since asc) where not set_aside;

comment on table lock.mutex is
    'Durable flags: acquired stays acquired until released, crash or not. lock.mutex_status is the view for everybody.';

comment on column lock.mutex.owner is
    'What the holder passed as owner, or null.';

comment on column lock.mutex.acquired_at is
    'Since when it is acquired; null when it is not.';

comment on column lock.mutex.released_at is
    'When it was last released, or made.';

comment on column lock.mutex.set_aside is
    'lock.drop_unused_mutexes met it acquired, and will not look at it again before it is released.';

comment on column lock.mutex.unused_since is
    'The hour of released_at, in UTC.';

create table if not exists lock.timeout (
    task_id       text collate "C"  not null,
    ts            timestamptz       not null default '-infinity',
    timeout       interval          not null,
    unused_since  timestamp         not null default date_trunc('hour', clock_timestamp() at time zone 'UTC'),
    constraint timeout_pkey primary key (task_id)
) with (fillfactor = 80);

create index if not exists timeout_unused_since_idx on lock.timeout (unused_since asc);

comment on table lock.timeout is
    'Locks that can be acquired again once their interval has passed. lock.timeout_status is the view for everybody.';

comment on column lock.timeout.ts is
    'When it was last acquired; -infinity: never, or released by force.';

comment on column lock.timeout.unused_since is
    'The hour, in UTC, in which the last interval ends, or in which it was made.';

create table if not exists lock.time_slot (
    task_id       text collate "C"  not null,
    slot_start    timestamptz       not null,
    resolution    interval          not null default '0',
    granted_at    timestamptz       not null default clock_timestamp(),
    unused_since  timestamp         not null default date_trunc('hour', clock_timestamp() at time zone 'UTC'),
    constraint time_slot_pkey primary key (task_id)
) with (fillfactor = 80);

create index if not exists time_slot_unused_since_idx on lock.time_slot (unused_since asc);

comment on table lock.time_slot is
    'The newest slot of time that each task was granted. lock.time_slot_status is the view for everybody.';

comment on column lock.time_slot.slot_start is
    'The start of the newest slot granted; -infinity: forgotten by force.';

comment on column lock.time_slot.resolution is
    'How long that slot is. The next call may have another resolution.';

comment on column lock.time_slot.unused_since is
    'The hour, in UTC, in which the newest slot ends or in which it was granted, whichever is later.';

create table if not exists lock.throttled_resource (
    resource_id          text collate "C"  not null,
    throttle_interval    interval          not null,
    last_locked          timestamptz       not null default '-infinity',
    last_locker_details  text              not null default '',
    unused_since         timestamp         not null default date_trunc('hour', clock_timestamp() at time zone 'UTC'),
    constraint throttled_resource_pkey primary key (resource_id),
    constraint positive_delays_only check (throttle_interval > interval '0'),
    constraint empty_rules check (
        last_locked = '-infinity' and last_locker_details = ''
        or last_locked <> '-infinity' and length(trim(last_locker_details)) > 0
    )
) with (fillfactor = 80);

create index if not exists throttled_resource_unused_since_idx on lock.throttled_resource (unused_since asc);

comment on table lock.throttled_resource is
    'Resources that are granted at most once per interval. lock.throttled_resource_status is the view for everybody.';

comment on column lock.throttled_resource.last_locked is
    'When it was last granted; -infinity: never, or released by force.';

comment on column lock.throttled_resource.last_locker_details is
    'Who locked it last, and why; empty when last_locked is -infinity.';

comment on column lock.throttled_resource.unused_since is
    'The hour, in UTC, in which the last interval ends, or in which it was made.';

create table if not exists lock.forced_release (
    release_id   bigint       not null generated always as identity,
    kind         text         not null,
    id           text         not null,
    reason       text         not null,
    released_by  text         not null,
    released_at  timestamptz  not null default clock_timestamp(),
    previous     jsonb        not null,
    constraint forced_release_pkey primary key (release_id)
);

comment on table lock.forced_release is
    'Every lock that an operator took away from its holder. Nothing deletes from it but its owner, by hand.';

comment on column lock.forced_release.kind is
    'mutex, timeout, time_slot or throttle.';

comment on column lock.forced_release.released_by is
    'The role that logged in (session_user).';

comment on column lock.forced_release.previous is
    'The row as it was: the holder, since when, until when.';

create or replace view lock.mutex_status as
select
    mutex.task_id,
    mutex.acquired,
    mutex.owner,
    mutex.acquired_at,
    (case when mutex.acquired then clock_timestamp() - mutex.acquired_at end)::interval as held_for,
    mutex.released_at
from lock.mutex;

comment on view lock.mutex_status is
    'Who holds which mutex, since when and for how long; released_at is its last release, or its making.';

create or replace view lock.timeout_status as
select
    timed.task_id,
    timed.timeout,
    timed.ts,
    timed.free_at,
    timed.free_at >= timed.right_now as locked,
    case when timed.free_at >= timed.right_now then timed.free_at - timed.right_now else interval '0' end as free_in,
    timed.ts > timed.right_now as clock_was_set_back
from (
    select
        timeout.task_id,
        timeout.timeout,
        timeout.ts,
        ((timeout.ts at time zone 'UTC' + timeout.timeout) at time zone 'UTC')::timestamptz as free_at,
        clock_timestamp() as right_now
    from lock.timeout
) as timed;

comment on view lock.timeout_status is
    'Until when each timeout is locked: it can be acquired after free_at, in free_in. clock_was_set_back: its time lies in the future.';

create or replace view lock.time_slot_status as
select
    timed.task_id,
    timed.slot_start,
    timed.slot_end,
    timed.granted_at,
    case when timed.slot_end > timed.right_now then least(timed.slot_end - timed.right_now, interval '36525 days') else interval '0' end as free_in
from (
    select
        time_slot.task_id,
        time_slot.slot_start,
        ((time_slot.slot_start at time zone 'UTC' + time_slot.resolution) at time zone 'UTC')::timestamptz as slot_end,
        time_slot.granted_at,
        clock_timestamp() as right_now
    from lock.time_slot
) as timed;

comment on view lock.time_slot_status is
    'The newest slot that each task was granted, and when; free_in: how long (100 years at most) until the slot of now is a newer one, at the same resolution.';

create or replace view lock.throttled_resource_status as
select
    timed.resource_id,
    timed.throttle_interval,
    timed.last_locked,
    timed.last_locker_details,
    timed.free_at,
    timed.free_at >= timed.right_now as throttled,
    case when timed.free_at >= timed.right_now then timed.free_at - timed.right_now else interval '0' end as free_in,
    timed.last_locked > timed.right_now as clock_was_set_back
from (
    select
        throttled_resource.resource_id,
        throttled_resource.throttle_interval,
        throttled_resource.last_locked,
        throttled_resource.last_locker_details,
        ((throttled_resource.last_locked at time zone 'UTC' + throttled_resource.throttle_interval) at time zone 'UTC')::timestamptz as free_at,
        clock_timestamp() as right_now
    from lock.throttled_resource
) as timed;

comment on view lock.throttled_resource_status is
    'Why and until when each resource is throttled: who locked it last, the time of the next grant (after free_at) and the time until then (free_in). clock_was_set_back: its time lies in the future.';

-- functions: written by make migration, not by hand

-- file: sql/functions/rule/await_row.sql
-- +goose StatementBegin
-- await_row waits until nobody has the row locked, without keeping it: the subtransaction's rollback lets go.
--
-- An insert on conflict do nothing waits for whoever makes, changes or deletes a row, and not for who has only locked it.
create or replace function lock.await_row(
    target     regclass,
    id_column  name,
    id         text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('select from %s where %I = $1 for no key update', await_row.target, await_row.id_column)
    using await_row.id;
    raise exception 'the row is free'
        using errcode = 'LK003';
exception
    when sqlstate 'LK003' then
        null;
end;
$$;
-- +goose StatementEnd

comment on function lock.await_row(regclass, name, text) is
    'Internal: waits until nobody has a row locked.';

revoke all on function lock.await_row(regclass, name, text) from public;

-- file: sql/functions/rule/check_drop.sql
-- +goose StatementBegin
-- check_drop refuses bad arguments of the functions that drop unused ids.
create or replace function lock.check_drop(
    unused_for  interval,
    max         integer
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock.check_primary();
    perform lock.check_length(check_drop.unused_for, 'unused_for', false);
    perform lock.check_max(check_drop.max);
end;
$$;
-- +goose StatementEnd

comment on function lock.check_drop(interval, integer) is
    'Internal: refuses a bad unused_for (as lock.check_length does) or max (22004, 22023).';

revoke all on function lock.check_drop(interval, integer) from public;

-- file: sql/functions/rule/check_length.sql
-- +goose StatementBegin
-- check_length refuses what check_interval refuses, and mixtures that are not positive in February.
create or replace function lock.check_length(
    value  interval,
    what   text,
    fixed  boolean
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock.check_interval(check_length.value, check_length.what, check_length.fixed);
    if timestamp '2001-02-01' + check_length.value <= timestamp '2001-02-01' then
        raise exception '% must be positive in every month, and % is not', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Do not mix positive months with negative days.';
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.check_length(interval, text, boolean) is
    'Internal: refuses what lock.check_interval refuses, and an interval that is not positive in every month (22023).';

revoke all on function lock.check_length(interval, text, boolean) from public;

-- file: sql/functions/rule/drop_unused.sql
-- +goose StatementBegin
-- drop_unused deletes the rows of a table that have been unused longest, by its column and index unused_since.
--
-- That column holds whole hours, so that the index changes once an hour and not with every grant; only hours that are over
-- count, which makes every row of them old enough; free_at, an expression, is asked as well. The row is checked again under its lock, and one that a transaction
-- holds is passed over, so what is being acquired stays. Sorting and scanning plans are switched off: the index alone keeps
-- a call at O(log n + max).
create or replace function lock.drop_unused(
    target      regclass,
    id_column   name,
    free_at     text,
    unused_for  interval,
    max         integer
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    ids      text[];
    dropped  bigint;
begin
    perform lock.check_drop(drop_unused.unused_for, drop_unused.max);
    execute format(
        'select array_agg(oldest.id) from ('
        ' select %1$I as id from %2$s where unused_since <= $1 and %3$s < $1 order by unused_since limit $2 for update skip locked) as oldest',
        drop_unused.id_column, drop_unused.target, drop_unused.free_at
    )
    into ids
    using lock.unused_before(drop_unused.unused_for), drop_unused.max;
    execute format('delete from %2$s where %1$I = any($1)', drop_unused.id_column, drop_unused.target)
    using ids;
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;
-- +goose StatementEnd

comment on function lock.drop_unused(regclass, name, text, interval, integer) is
    'Internal: deletes at most max rows that have been unused for longest and for at least unused_for, and returns how many.';

revoke all on function lock.drop_unused(regclass, name, text, interval, integer) from public;

-- file: sql/functions/rule/give_up.sql
-- +goose StatementBegin
-- give_up ends a loop that found its row taken, and then free again, too many times.
create or replace function lock.give_up(
    kind  text,
    id    text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception '% "%" changed hands again and again, or is not visible to this transaction', kind, id
        using errcode = 'serialization_failure',
              hint = 'Retry the transaction.';
end;
$$;
-- +goose StatementEnd

comment on function lock.give_up(text, text) is
    'Internal: raises 40001 after a bounded number of attempts.';

revoke all on function lock.give_up(text, text) from public;

-- file: sql/functions/rule/record_forced_release.sql
-- +goose StatementBegin
-- record_forced_release writes down who took a lock away from its holder, why, and what was taken.
create or replace function lock.record_forced_release(
    kind      text,
    id        text,
    reason    text,
    previous  jsonb
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into lock.forced_release (kind, id, reason, released_by, previous)
    values (record_forced_release.kind, record_forced_release.id, record_forced_release.reason, session_user, record_forced_release.previous);
end;
$$;
-- +goose StatementEnd

comment on function lock.record_forced_release(text, text, text, jsonb) is
    'Internal: one row of lock.forced_release; the operator is the role that logged in.';

revoke all on function lock.record_forced_release(text, text, text, jsonb) from public;

-- file: sql/functions/rule/utc.sql
-- +goose StatementBegin
-- utc is a time as the clocks of UTC show it: adding an interval to that depends on no session's time zone.
--
-- By an offset of nothing, because the zone's name would be looked up at each call.
create or replace function lock.utc(
    at  timestamptz
)
returns timestamp
language sql
immutable
parallel safe
as $$
    select utc.at at time zone interval '0';
$$;
-- +goose StatementEnd

comment on function lock.utc(timestamptz) is
    'Internal: a time in UTC, without a zone.';

revoke all on function lock.utc(timestamptz) from public;

-- file: sql/functions/rule/full_hour.sql
-- +goose StatementBegin
-- full_hour is the start of an hour: what the columns unused_since hold, so that their indexes change once an hour. Cheaper than date_trunc.
create or replace function lock.full_hour(
    at  timestamp
)
returns timestamp
language sql
immutable
parallel safe
as $$
    select date_bin(interval '1 hour', full_hour.at, timestamp 'epoch');
$$;
-- +goose StatementEnd

comment on function lock.full_hour(timestamp) is
    'Internal: the start of the hour of a time.';

revoke all on function lock.full_hour(timestamp) from public;

-- file: sql/functions/rule/uncontended.sql
-- +goose StatementBegin
-- uncontended says whether this transaction is the only open one that is at work on an id, so that a plain update of its row does not wait.
--
-- It tries an advisory lock that the transaction keeps, one of 1024: few enough for the server's lock table, however many ids a
-- transaction touches. So false may also mean that another id of the same bucket is at work, and who then goes on without it is not seen
-- by the next who asks: this is a hint, and the row's own lock decides. It is worth having because an update that waits and then finds the
-- row changed has locked it all the same. YugabyteDB's updates do not, and its advisory locks are slow: always true.
create or replace function lock.uncontended(
    id  text
)
returns boolean
language sql
volatile
as $$
    select lock.is_yugabyte() or pg_try_advisory_xact_lock(1819240299, hashtext(uncontended.id) & 1023);
$$;
-- +goose StatementEnd

comment on function lock.uncontended(text) is
    'Internal: whether no other open transaction is at work on this id, as far as advisory locks tell. Never waits.';

revoke all on function lock.uncontended(text) from public;

-- file: sql/functions/rule/unused_before.sql
-- +goose StatementBegin
-- unused_before is the latest start of an hour, in UTC, all of which was over at least unused_for ago.
create or replace function lock.unused_before(
    unused_for  interval
)
returns timestamp
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    select lock.utc(clock_timestamp()) - unused_before.unused_for - interval '1 hour';
$$;
-- +goose StatementEnd

comment on function lock.unused_before(interval) is
    'Internal: what a column unused_since, which holds the start of an hour in UTC, must not exceed.';

revoke all on function lock.unused_before(interval) from public;

-- file: sql/functions/mutex/acquire_mutex.sql
-- +goose StatementBegin
-- acquire_mutex sets the flag and returns true, or returns false when it is set: exactly one of any number of callers wins.
--
-- The first update is the whole grant when nobody else is at work on the id; lock.uncontended says so, and is asked only when
-- the flag is free. A flag that is seen set is a denial, which writes nothing.
--
-- What is neither is new, or in the hands of an open transaction, or shares its bucket with such an id. The insert makes the one
-- that is new and waits for the one that is being acquired, and needs no transaction id to do so; then all starts again. What is still
-- free has a bucket that is taken: from then on the row is grabbed when nobody has it (skip locked). So a caller that waited
-- and lost has written nothing either, but for two cases: a row that was locked and not changed, and one that was grabbed.
-- There the update waits, and keeps the row locked until its own transaction ends.
create or replace function lock.acquire_mutex(
    task_id  text,
    owner    text  default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    grabbed  boolean not null := false;
    attempt  integer not null := 0;
begin
    if acquire_mutex.task_id is null
        or octet_length(acquire_mutex.task_id) not between 1 and 1024
        or octet_length(acquire_mutex.owner) not between 1 and 1024
        or pg_is_in_recovery()
    then
        perform lock.check_primary();
        perform lock.check_id(acquire_mutex.task_id, 'task_id');
        perform lock.check_id(acquire_mutex.owner, 'owner') where acquire_mutex.owner is not null;
    end if;
    loop
        update lock.mutex
        set acquired = true, owner = acquire_mutex.owner, acquired_at = clock_timestamp()
        where mutex.task_id = acquire_mutex.task_id
          and case when not mutex.acquired then lock.uncontended(mutex.task_id) or grabbed end;
        if found then
            return true;
        end if;
        perform
        from lock.mutex
        where mutex.task_id = acquire_mutex.task_id
          and mutex.acquired;
        if found then
            return false;
        end if;
        if attempt > 0 then
            perform
            from lock.mutex
            where mutex.task_id = acquire_mutex.task_id
              and not mutex.acquired
            for no key update skip locked;
            grabbed := found;
            continue when grabbed;
        end if;
        insert into lock.mutex (task_id, acquired, owner, acquired_at)
        values (acquire_mutex.task_id, true, acquire_mutex.owner, clock_timestamp())
        on conflict do nothing;
        if found then
            return true;
        end if;
        attempt := attempt + 1;
        if attempt > 1 then
            perform lock.await_row('lock.mutex', 'task_id', acquire_mutex.task_id);
        end if;
        if attempt = 100 then
            perform lock.give_up('mutex', acquire_mutex.task_id);
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.acquire_mutex(text, text) is
    'Acquires a mutex (task_id: 1 to 1024 bytes) and returns true, or returns false when it is acquired; makes it when it is new. Exactly one of any number of concurrent callers gets true. '
    'It stays acquired, crash or not, until lock.release_mutex by the same owner (text, or null for nobody in particular), or lock.force_release_mutex. Not re-entrant. '
    'The grant is part of the transaction: rolled back, it never was. A denial is immediate and writes nothing; while another transaction has acquired it and not ended, the call waits for that end, because only then the answer is known. '
    'Errors: 22004, 22023 bad task_id or owner, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01 deadlock when transactions acquire several in different orders, 55P03 lock_timeout. '
    'After the SQL mutex (update ... and acquired != true) and the Redis one (zadd xx ch).';

revoke all on function lock.acquire_mutex(text, text) from public;

-- file: sql/functions/mutex/create_mutex.sql
-- +goose StatementBegin
-- create_mutex makes a mutex that nobody has acquired; false when it exists.
create or replace function lock.create_mutex(
    task_id  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock.check_id(create_mutex.task_id, 'task_id');
    perform lock.check_primary();
    perform from lock.mutex where mutex.task_id = create_mutex.task_id;
    if found then
        return false;
    end if;
    insert into lock.mutex (task_id)
    values (create_mutex.task_id)
    on conflict do nothing;
    return found;
end;
$$;
-- +goose StatementEnd

comment on function lock.create_mutex(text) is
    'Makes a mutex (task_id: 1 to 1024 bytes) that nobody has acquired and returns true; false when it exists already, acquired or not. '
    'Optional: lock.acquire_mutex makes what it needs. Waits only for a transaction that is making the same mutex. Rolled back, it never was. '
    'Errors: 22004, 22023 bad task_id, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE. '
    'After the Redis mutex: zadd nx 0.';

revoke all on function lock.create_mutex(text) from public;

-- file: sql/functions/mutex/drop_unused_mutexes.sql
-- +goose StatementBegin
-- drop_unused_mutexes deletes mutexes that were released long ago; never one that is acquired.
--
-- Among the oldest rows there can be acquired ones, any number of them. A call that meets them sets them aside, out of the
-- index that it walks, until they are released: so they are in the way once and not in every call. It goes on while it
-- only met such rows, and therefore 0 means that nothing is left to drop.
create or replace function lock.drop_unused_mutexes(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    idle     text[];
    held     text[];
    dropped  bigint;
    before   timestamp;
begin
    perform lock.check_drop(drop_unused_mutexes.unused_for, drop_unused_mutexes.max);
    before := lock.unused_before(drop_unused_mutexes.unused_for);
    loop
        select
            array_agg(oldest.task_id) filter (where not oldest.acquired),
            array_agg(oldest.task_id) filter (where oldest.acquired)
        into idle, held
        from (
            select mutex.task_id, mutex.acquired
            from lock.mutex
            where mutex.unused_since <= before
              and not mutex.set_aside
              and (mutex.acquired or lock.utc(mutex.released_at) < before)
            order by mutex.unused_since
            limit drop_unused_mutexes.max
            for update skip locked
        ) as oldest;
        delete from lock.mutex
        where mutex.task_id = any(idle);
        get diagnostics dropped = row_count;
        update lock.mutex
        set set_aside = true
        where mutex.task_id = any(held);
        if dropped > 0 or held is null then
            return dropped;
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_mutexes(interval, integer) is
    'Operators: deletes at most max mutexes that were made or last released at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'Never one that is acquired, never waits. The next acquire makes a dropped one again. Times are kept to the hour, so a mutex can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.drop_unused_mutexes(interval, integer) from public;

-- file: sql/functions/mutex/force_release_mutex.sql
-- +goose StatementBegin
-- force_release_mutex takes a mutex away from whoever acquired it, and records who did so and why.
create or replace function lock.force_release_mutex(
    task_id  text,
    reason   text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  jsonb;
begin
    perform lock.check_id(force_release_mutex.task_id, 'task_id');
    perform lock.check_text(force_release_mutex.reason, 'reason');
    select to_jsonb(mutex) into previous
    from lock.mutex
    where mutex.task_id = force_release_mutex.task_id
      and mutex.acquired
    for no key update;
    if not found then
        return false;
    end if;
    update lock.mutex
    set
        acquired = false,
        owner = null,
        acquired_at = null,
        released_at = clock_timestamp(),
        set_aside = false,
        unused_since = lock.full_hour(lock.utc(clock_timestamp()))
    where mutex.task_id = force_release_mutex.task_id;
    perform lock.record_forced_release('mutex', force_release_mutex.task_id, force_release_mutex.reason, previous);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_mutex(text, text) is
    'Operators: releases a mutex whoever acquired it and returns true; false when it is not acquired. lock.forced_release records the operator, the reason (1 to 1024 bytes), '
    'and the owner and time of the acquisition. The holder is not told: make sure that it is gone. Waits for a transaction that is releasing it. '
    'Errors: 22004, 22023 bad task_id or reason, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.force_release_mutex(text, text) from public;

-- file: sql/functions/mutex/release_mutex.sql
-- +goose StatementBegin
-- release_mutex clears the flag and returns true; false when it is not set, or set for another owner.
--
-- It tries, looks, grabs and waits as acquire_mutex does, so a loser has written nothing. The insert can only succeed when the mutex was released and
-- dropped meanwhile, and then makes an idle one.
create or replace function lock.release_mutex(
    task_id  text,
    owner    text  default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    grabbed  boolean not null := false;
    attempt  integer not null := 0;
begin
    if release_mutex.task_id is null
        or octet_length(release_mutex.task_id) not between 1 and 1024
        or octet_length(release_mutex.owner) not between 1 and 1024
        or pg_is_in_recovery()
    then
        perform lock.check_primary();
        perform lock.check_id(release_mutex.task_id, 'task_id');
        perform lock.check_id(release_mutex.owner, 'owner') where release_mutex.owner is not null;
    end if;
    loop
        update lock.mutex
        set
            acquired = false,
            owner = null,
            acquired_at = null,
            released_at = clock_timestamp(),
            set_aside = false,
            unused_since = lock.full_hour(lock.utc(clock_timestamp()))
        where mutex.task_id = release_mutex.task_id
          and case
                when mutex.acquired and mutex.owner is not distinct from release_mutex.owner
                then lock.uncontended(mutex.task_id) or grabbed
              end;
        if found then
            return true;
        end if;
        perform
        from lock.mutex
        where mutex.task_id = release_mutex.task_id
          and mutex.acquired
          and mutex.owner is not distinct from release_mutex.owner;
        if not found then
            return false;
        end if;
        if attempt > 0 then
            perform
            from lock.mutex
            where mutex.task_id = release_mutex.task_id
              and mutex.acquired
              and mutex.owner is not distinct from release_mutex.owner
            for no key update skip locked;
            grabbed := found;
            continue when grabbed;
        end if;
        insert into lock.mutex (task_id)
        values (release_mutex.task_id)
        on conflict do nothing;
        attempt := attempt + 1;
        if attempt > 1 then
            perform lock.await_row('lock.mutex', 'task_id', release_mutex.task_id);
        end if;
        if attempt = 100 then
            perform lock.give_up('mutex', release_mutex.task_id);
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.release_mutex(text, text) is
    'Releases a mutex that was acquired with the same owner (null: without one) and returns true; false when it is not acquired, not by this owner, or unknown. '
    'Others can acquire it when the transaction commits; rolled back, it was never released. A denial writes nothing. Waits for another transaction that is releasing it. '
    'Errors: 22004, 22023 bad task_id or owner, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01, 55P03 lock_timeout. '
    'After the SQL mutex (update ... and acquired != false) and the Redis one (zadd xx ch).';

revoke all on function lock.release_mutex(text, text) from public;

-- file: sql/functions/throttle/create_throttled_resource.sql
-- +goose StatementBegin
-- create_throttled_resource makes a resource that can be locked at once; false when it exists, which then has the new interval.
create or replace function lock.create_throttled_resource(
    resource_id        text,
    throttle_interval  interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock.check_primary();
    perform lock.check_id(create_throttled_resource.resource_id, 'resource_id');
    perform lock.check_length(create_throttled_resource.throttle_interval, 'throttle_interval', false);
    -- As text, because 1 month and 30 days are equal as intervals.
    perform
    from lock.throttled_resource
    where throttled_resource.resource_id = create_throttled_resource.resource_id
      and throttled_resource.throttle_interval::text = create_throttled_resource.throttle_interval::text;
    if found then
        return false;
    end if;
    insert into lock.throttled_resource (resource_id, throttle_interval)
    values (create_throttled_resource.resource_id, create_throttled_resource.throttle_interval)
    on conflict do nothing;
    if found then
        return true;
    end if;
    update lock.throttled_resource
    set
        throttle_interval = create_throttled_resource.throttle_interval,
        unused_since = greatest(
            throttled_resource.unused_since,
            lock.full_hour(lock.utc(throttled_resource.last_locked) + create_throttled_resource.throttle_interval)
        )
    where throttled_resource.resource_id = create_throttled_resource.resource_id;
    if not found then
        perform lock.give_up('throttled resource', create_throttled_resource.resource_id);
    end if;
    return false;
end;
$$;
-- +goose StatementEnd

comment on function lock.create_throttled_resource(text, interval) is
    'Makes a throttled resource (resource_id: 1 to 1024 bytes; throttle_interval: over 0, up to 100 years) that can be locked at once and returns true. When it exists, returns false, and it has the new interval, which counts from the last grant. '
    'A day is 24 hours, whatever the session''s time zone; months and years are calendar arithmetic in UTC. Writes nothing when it exists with this interval. Waits for a transaction that is making, changing or locking it. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, or when it is being dropped.';

revoke all on function lock.create_throttled_resource(text, interval) from public;

-- file: sql/functions/throttle/drop_unused_throttled_resources.sql
-- +goose StatementBegin
-- drop_unused_throttled_resources deletes throttled resources whose interval passed long ago.
create or replace function lock.drop_unused_throttled_resources(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    select lock.drop_unused(
        'lock.throttled_resource', 'resource_id',
        'last_locked at time zone ''UTC'' + throttle_interval',
        drop_unused_throttled_resources.unused_for, drop_unused_throttled_resources.max
    );
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_throttled_resources(interval, integer) is
    'Operators: deletes at most max throttled resources whose last interval, or making when they were never locked, ended at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'Never one that is denied now, never waits. A dropped one must be made again: until then locking it is an error (P0002). Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.drop_unused_throttled_resources(interval, integer) from public;

-- file: sql/functions/throttle/force_release_throttled_resource.sql
-- +goose StatementBegin
-- force_release_throttled_resource lets a resource be locked at once, and records who did so and why.
create or replace function lock.force_release_throttled_resource(
    resource_id  text,
    reason       text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  lock.throttled_resource;
begin
    perform lock.check_primary();
    perform lock.check_id(force_release_throttled_resource.resource_id, 'resource_id');
    perform lock.check_text(force_release_throttled_resource.reason, 'reason');
    -- One that is free is not even locked.
    perform
    from lock.throttled_resource
    where throttled_resource.resource_id = force_release_throttled_resource.resource_id
      and lock.utc(throttled_resource.last_locked) + throttled_resource.throttle_interval < lock.utc(clock_timestamp());
    if found then
        return false;
    end if;
    select * into previous
    from lock.throttled_resource
    where throttled_resource.resource_id = force_release_throttled_resource.resource_id
    for no key update;
    if not found then
        raise exception 'throttled resource "%" was never created', force_release_throttled_resource.resource_id
            using errcode = 'no_data_found',
                  hint = 'select resource_id from lock.throttled_resource lists what there is.';
    elsif lock.utc(previous.last_locked) + previous.throttle_interval < lock.utc(clock_timestamp()) then
        return false;
    end if;
    update lock.throttled_resource
    set last_locked = '-infinity', last_locker_details = ''
    where throttled_resource.resource_id = force_release_throttled_resource.resource_id;
    perform lock.record_forced_release('throttle', force_release_throttled_resource.resource_id, force_release_throttled_resource.reason, to_jsonb(previous));
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_throttled_resource(text, text) is
    'Operators: lets a resource be locked at once and returns true; false when its interval has passed anyway. lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'Waits for a transaction that has just locked it. Errors: 22004, 22023 bad arguments, P0002 never created, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.force_release_throttled_resource(text, text) from public;

-- file: sql/functions/throttle/lock_throttled_resource.sql
-- +goose StatementBegin
-- lock_throttled_resource returns true when the resource was not granted within its interval, and never waits to say so.
--
-- The update takes the row only when its interval has passed and nobody else has it (skip locked): one that another open
-- transaction has granted, or is granting, is a denial as well, whether that transaction commits or not. The look that follows
-- only tells a denial from a resource that is unknown. The sum is made in UTC, so that days and months do not depend on the
-- session's time zone.
create or replace function lock.lock_throttled_resource(
    resource_id  text,
    details      text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
    ahead      boolean;
begin
    if lock_throttled_resource.resource_id is null
        or octet_length(lock_throttled_resource.resource_id) not between 1 and 1024
        or lock_throttled_resource.details is null
        or octet_length(lock_throttled_resource.details) > 1024
        or ltrim(lock_throttled_resource.details, E' \t\n\x0b\f\r') = ''
        or pg_is_in_recovery()
    then
        perform lock.check_primary();
        perform lock.check_id(lock_throttled_resource.resource_id, 'resource_id');
        perform lock.check_text(lock_throttled_resource.details, 'details');
    end if;
    update lock.throttled_resource
    set
        last_locked = right_now,
        last_locker_details = lock_throttled_resource.details,
        unused_since = lock.full_hour(lock.utc(right_now) + throttled_resource.throttle_interval)
    where throttled_resource.resource_id = (
        select ready.resource_id
        from lock.throttled_resource as ready
        where ready.resource_id = lock_throttled_resource.resource_id
          and lock.utc(ready.last_locked) + ready.throttle_interval < lock.utc(right_now)
        for no key update skip locked
    );
    if found then
        return true;
    end if;
    select throttled_resource.last_locked > right_now into ahead
    from lock.throttled_resource
    where throttled_resource.resource_id = lock_throttled_resource.resource_id;
    if not found then
        raise exception 'throttled resource "%" was never created', lock_throttled_resource.resource_id
            using errcode = 'no_data_found',
                  hint = 'Create it once with lock.create_throttled_resource(resource_id, throttle_interval).';
    elsif ahead then
        perform lock.pull_back_throttled_resource(lock_throttled_resource.resource_id);
    end if;
    return false;
end;
$$;
-- +goose StatementEnd

comment on function lock.lock_throttled_resource(text, text) is
    'Grants a resource made by lock.create_throttled_resource (resource_id: 1 to 1024 bytes) at most once per its interval: true when last_locked + throttle_interval < now by the database''s clock, strictly and to the microsecond, and then stores now and details '
    '(who and why, 1 to 1024 bytes, not blank); else false. Never waits: a resource that an open transaction has just locked is denied at once, whether that transaction commits or not. '
    'The grant is part of the transaction: rolled back, it never was, so commit at once and work afterwards. A denial writes nothing. '
    'A stored time far in the future (more than the interval and a minute: the clock was set back) is denied and pulled back to now, the one denial that writes; so it is free again after one interval. '
    'Errors: 22004, 22023 bad arguments, P0002 never created, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE. '
    'After the time-locked resources in PostgreSQL (for update skip locked).';

revoke all on function lock.lock_throttled_resource(text, text) from public;

-- file: sql/functions/throttle/pull_back_throttled_resource.sql
-- +goose StatementBegin
-- pull_back_throttled_resource brings a time that lies far in the future back to now, because the clock was set back since it was stored.
--
-- Nothing is granted early: the grant was made before now, so a full interval from now is at least one from the grant. The
-- margin keeps it from steps of milliseconds and from servers whose clocks differ. A row that somebody holds is left alone.
create or replace function lock.pull_back_throttled_resource(
    resource_id  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
begin
    update lock.throttled_resource
    set
        last_locked = right_now,
        unused_since = lock.full_hour(lock.utc(right_now) + throttled_resource.throttle_interval)
    where throttled_resource.resource_id = (
        select ahead.resource_id
        from lock.throttled_resource as ahead
        where ahead.resource_id = pull_back_throttled_resource.resource_id
          and lock.utc(ahead.last_locked) > lock.utc(right_now) + ahead.throttle_interval + interval '1 minute'
        for no key update skip locked
    );
    if found then
        raise log 'throttled resource "%" was locked in the future: the clock was set back; it is denied for one interval from now', pull_back_throttled_resource.resource_id;
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.pull_back_throttled_resource(text) is
    'Internal: sets last_locked to now when it lies more than the interval and a minute in the future.';

revoke all on function lock.pull_back_throttled_resource(text) from public;

-- file: sql/functions/time_slot/acquire_time_slot.sql
-- +goose StatementBegin
-- acquire_time_slot returns true for the first call of a slot that is newer than every slot granted before.
--
-- It tries, looks, grabs and waits as acquire_mutex does: in the insert, without a transaction id. date_bin cuts time at the epoch, and
-- takes a day for 24 hours; some versions put an exact multiple before 1970 one slot too early, which is put right below.
create or replace function lock.acquire_time_slot(
    task_id     text,
    resolution  interval,
    at          timestamptz  default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  timestamptz;
    slot       timestamptz;
    grabbed    boolean not null := false;
    granted    boolean not null := false;
    attempt    integer not null := 0;
begin
    if acquire_time_slot.task_id is null
        or octet_length(acquire_time_slot.task_id) not between 1 and 1024
        or acquire_time_slot.resolution is null
        or acquire_time_slot.resolution not between interval '1 microsecond' and interval '1000 days'
        or date_part('month', acquire_time_slot.resolution) <> 0
        or date_part('year', acquire_time_slot.resolution) <> 0
        or not isfinite(acquire_time_slot.at)
        or pg_is_in_recovery()
    then
        perform lock.check_primary();
        perform lock.check_id(acquire_time_slot.task_id, 'task_id');
        perform lock.check_length(acquire_time_slot.resolution, 'resolution', true);
        if not isfinite(acquire_time_slot.at) then
            raise exception 'at must be finite, not %', acquire_time_slot.at
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass the time of a data point, or leave it out for now.';
        end if;
    end if;
    loop
        right_now := clock_timestamp();
        slot := date_bin(acquire_time_slot.resolution, coalesce(acquire_time_slot.at, right_now), timestamptz 'epoch');
        if acquire_time_slot.at < timestamptz 'epoch'
            and lock.utc(slot) + acquire_time_slot.resolution <= lock.utc(acquire_time_slot.at)
        then
            slot := acquire_time_slot.at;
        end if;
        update lock.time_slot
        set
            slot_start = slot,
            resolution = acquire_time_slot.resolution,
            granted_at = right_now,
            unused_since = lock.full_hour(greatest(lock.utc(slot) + acquire_time_slot.resolution, lock.utc(right_now)))
        where time_slot.task_id = acquire_time_slot.task_id
          and case when time_slot.slot_start < slot then lock.uncontended(time_slot.task_id) or grabbed end;
        if found or granted then
            -- The update itself may have waited, for a row that somebody had only locked. Once: it can take longer than a slot.
            grabbed := not granted
                and acquire_time_slot.at is null
                and clock_timestamp() - right_now > interval '10 milliseconds'
                and date_bin(acquire_time_slot.resolution, clock_timestamp(), timestamptz 'epoch') > slot;
            granted := true;
            continue when grabbed;
            return true;
        end if;
        perform
        from lock.time_slot
        where time_slot.task_id = acquire_time_slot.task_id
          and time_slot.slot_start >= slot;
        if found then
            return false;
        end if;
        if attempt > 0 then
            perform
            from lock.time_slot
            where time_slot.task_id = acquire_time_slot.task_id
              and time_slot.slot_start < slot
            for no key update skip locked;
            grabbed := found;
            continue when grabbed;
        end if;
        -- The next round takes what this makes, with the slot of a time that is read after the wait.
        insert into lock.time_slot (task_id, slot_start)
        values (acquire_time_slot.task_id, '-infinity')
        on conflict do nothing;
        attempt := attempt + 1;
        if attempt > 1 then
            perform lock.await_row('lock.time_slot', 'task_id', acquire_time_slot.task_id);
        end if;
        if attempt = 100 then
            perform lock.give_up('time slot', acquire_time_slot.task_id);
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.acquire_time_slot(text, interval, timestamptz) is
    'Acquires the slot of time that holds at (default: now by the database''s clock) and returns true when it is newer than every slot granted before to this task_id (1 to 1024 bytes; made when it is new), else false: the first write wins. '
    'Slots are resolution long (over 0, up to 100 years, no months; a day is 24 hours) and aligned to the epoch, start included and end not. Another resolution than before is fine. '
    'Exactly one of any number of concurrent callers gets true. The grant is part of the transaction: rolled back, it never was. A denial is immediate and writes nothing; while another transaction has acquired a slot and not ended, the call waits for that end. '
    'Errors: 22004, 22023 bad arguments, 22008 at the ends of time, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01 deadlock, 55P03 lock_timeout. '
    'After the Redis timeout lock (zadd gt ch with the score floor(ts / timeout)).';

revoke all on function lock.acquire_time_slot(text, interval, timestamptz) from public;

-- file: sql/functions/time_slot/drop_unused_time_slots.sql
-- +goose StatementBegin
-- drop_unused_time_slots forgets tasks whose newest slot ended, and was granted, long ago.
create or replace function lock.drop_unused_time_slots(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    select lock.drop_unused(
        'lock.time_slot', 'task_id',
        'greatest(slot_start at time zone ''UTC'' + resolution, granted_at at time zone ''UTC'')',
        drop_unused_time_slots.unused_for, drop_unused_time_slots.max
    );
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_time_slots(interval, integer) is
    'Operators: forgets at most max tasks whose newest slot ended, and was granted, at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'A dropped task remembers no slot: an at that is older than unused_for is granted again. So unused_for must exceed the age of the latest data point that a producer may still send. '
    'With at left out no slot is ever granted twice. Never waits. Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.drop_unused_time_slots(interval, integer) from public;

-- file: sql/functions/time_slot/force_release_time_slot.sql
-- +goose StatementBegin
-- force_release_time_slot forgets which slot was the newest, and records who did so and why.
create or replace function lock.force_release_time_slot(
    task_id  text,
    reason   text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  jsonb;
begin
    perform lock.check_id(force_release_time_slot.task_id, 'task_id');
    perform lock.check_text(force_release_time_slot.reason, 'reason');
    select to_jsonb(time_slot) into previous
    from lock.time_slot
    where time_slot.task_id = force_release_time_slot.task_id
      and time_slot.slot_start > '-infinity'
    for no key update;
    if not found then
        return false;
    end if;
    update lock.time_slot
    set slot_start = '-infinity', resolution = '0'
    where time_slot.task_id = force_release_time_slot.task_id;
    perform lock.record_forced_release('time_slot', force_release_time_slot.task_id, force_release_time_slot.reason, previous);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_time_slot(text, text) is
    'Operators: forgets the newest slot of a task, so that any slot can be acquired next, even one that was granted before, and returns true; false when there is nothing to forget. '
    'For a slot that a producer took far in the future, or a clock that was set back. lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'Waits for a transaction that has just acquired a slot. Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.force_release_time_slot(text, text) from public;

-- file: sql/functions/timeout/acquire_timeout.sql
-- +goose StatementBegin
-- acquire_timeout returns true, and starts the interval, when the interval of the last grant has passed: ts + timeout < now.
--
-- The sum is made in UTC, so that days and months do not depend on the session's time zone. It tries, looks, grabs and
-- waits as acquire_mutex does: in the insert, without a transaction id. The insert succeeds only when the row was dropped meanwhile,
-- and the error takes it back. Where the update itself has waited, for a row that somebody had only locked, the time is read and stored
-- once more.
create or replace function lock.acquire_timeout(
    task_id  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  timestamptz;
    length     interval;
    passed     boolean;
    ahead      boolean;
    grabbed    boolean not null := false;
    attempt    integer not null := 0;
begin
    if acquire_timeout.task_id is null
        or octet_length(acquire_timeout.task_id) not between 1 and 1024
        or pg_is_in_recovery()
    then
        perform lock.check_primary();
        perform lock.check_id(acquire_timeout.task_id, 'task_id');
    end if;
    loop
        right_now := clock_timestamp();
        update lock.timeout
        set ts = right_now, unused_since = lock.full_hour(lock.utc(right_now) + timeout.timeout)
        where timeout.task_id = acquire_timeout.task_id
          and case
                when lock.utc(timeout.ts) + timeout.timeout < lock.utc(right_now)
                then lock.uncontended(timeout.task_id) or grabbed
              end;
        if found then
            if clock_timestamp() - right_now > interval '10 milliseconds' then
                right_now := clock_timestamp();
                update lock.timeout
                set ts = right_now, unused_since = lock.full_hour(lock.utc(right_now) + timeout.timeout)
                where timeout.task_id = acquire_timeout.task_id;
            end if;
            return true;
        end if;
        select
            timeout.timeout,
            lock.utc(timeout.ts) + timeout.timeout < lock.utc(right_now),
            timeout.ts > right_now
        into length, passed, ahead
        from lock.timeout
        where timeout.task_id = acquire_timeout.task_id;
        exit when not found;
        if not passed then
            if ahead then
                perform lock.pull_back_timeout(acquire_timeout.task_id);
            end if;
            return false;
        end if;
        if attempt > 0 then
            perform
            from lock.timeout
            where timeout.task_id = acquire_timeout.task_id
              and lock.utc(timeout.ts) + timeout.timeout < lock.utc(right_now)
            for no key update skip locked;
            grabbed := found;
            continue when grabbed;
        end if;
        insert into lock.timeout (task_id, timeout)
        values (acquire_timeout.task_id, length)
        on conflict do nothing;
        exit when found;
        attempt := attempt + 1;
        if attempt > 1 then
            perform lock.await_row('lock.timeout', 'task_id', acquire_timeout.task_id);
        end if;
        if attempt = 100 then
            perform lock.give_up('timeout', acquire_timeout.task_id);
        end if;
    end loop;
    raise exception 'timeout "%" was never created, or dropped', acquire_timeout.task_id
        using errcode = 'no_data_found',
              hint = 'Create it once with lock.create_timeout(task_id, timeout).';
end;
$$;
-- +goose StatementEnd

comment on function lock.acquire_timeout(text) is
    'Acquires a timeout made by lock.create_timeout (task_id: 1 to 1024 bytes): true when ts + timeout < now by the database''s clock, strictly and to the microsecond, and then ts = now; else false. '
    'Exactly one of any number of concurrent callers gets true. Nobody releases it: it can be acquired again when its interval has passed. '
    'The grant is part of the transaction: rolled back, it never was. A denial is immediate and writes nothing; while another transaction has acquired it and not ended, the call waits for that end. '
    'A stored time far in the future (more than the interval and a minute: the clock was set back) is denied and pulled back to now, the one denial that writes; so it is free again after one interval. '
    'Errors: 22004, 22023 bad task_id, P0002 never created, or dropped, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01 deadlock, 55P03 lock_timeout. '
    'After the SQL timeout lock (update ... and ts + timeout < now).';

revoke all on function lock.acquire_timeout(text) from public;

-- file: sql/functions/timeout/create_timeout.sql
-- +goose StatementBegin
-- create_timeout makes a timeout that can be acquired at once; false when it exists, which then has the new interval.
create or replace function lock.create_timeout(
    task_id  text,
    timeout  interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock.check_primary();
    perform lock.check_id(create_timeout.task_id, 'task_id');
    perform lock.check_length(create_timeout.timeout, 'timeout', false);
    -- As text, because 1 month and 30 days are equal as intervals.
    perform
    from lock.timeout
    where timeout.task_id = create_timeout.task_id
      and timeout.timeout::text = create_timeout.timeout::text;
    if found then
        return false;
    end if;
    insert into lock.timeout (task_id, timeout)
    values (create_timeout.task_id, create_timeout.timeout)
    on conflict do nothing;
    if found then
        return true;
    end if;
    update lock.timeout
    set
        timeout = create_timeout.timeout,
        unused_since = greatest(timeout.unused_since, lock.full_hour(lock.utc(timeout.ts) + create_timeout.timeout))
    where timeout.task_id = create_timeout.task_id;
    if not found then
        perform lock.give_up('timeout', create_timeout.task_id);
    end if;
    return false;
end;
$$;
-- +goose StatementEnd

comment on function lock.create_timeout(text, interval) is
    'Makes a timeout (task_id: 1 to 1024 bytes; timeout: over 0, up to 100 years) that can be acquired at once and returns true. When it exists, returns false, and it has the new interval, which counts from the last grant. '
    'A day is 24 hours, whatever the session''s time zone; months and years are calendar arithmetic in UTC. Writes nothing when it exists with this interval. Waits for a transaction that is making, changing or acquiring it. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, or when it is being dropped.';

revoke all on function lock.create_timeout(text, interval) from public;

-- file: sql/functions/timeout/drop_unused_timeouts.sql
-- +goose StatementBegin
-- drop_unused_timeouts deletes timeouts whose interval passed long ago.
create or replace function lock.drop_unused_timeouts(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    select lock.drop_unused(
        'lock.timeout', 'task_id',
        'ts at time zone ''UTC'' + timeout',
        drop_unused_timeouts.unused_for, drop_unused_timeouts.max
    );
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_timeouts(interval, integer) is
    'Operators: deletes at most max timeouts whose last interval, or making when they were never acquired, ended at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'Never one that is denied now, never waits. A dropped one must be made again: until then acquiring it is an error (P0002). Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.drop_unused_timeouts(interval, integer) from public;

-- file: sql/functions/timeout/force_release_timeout.sql
-- +goose StatementBegin
-- force_release_timeout lets a timeout be acquired at once, and records who did so and why.
create or replace function lock.force_release_timeout(
    task_id  text,
    reason   text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  lock.timeout;
begin
    perform lock.check_primary();
    perform lock.check_id(force_release_timeout.task_id, 'task_id');
    perform lock.check_text(force_release_timeout.reason, 'reason');
    -- One that is free is not even locked.
    perform
    from lock.timeout
    where timeout.task_id = force_release_timeout.task_id
      and lock.utc(timeout.ts) + timeout.timeout < lock.utc(clock_timestamp());
    if found then
        return false;
    end if;
    select * into previous
    from lock.timeout
    where timeout.task_id = force_release_timeout.task_id
    for no key update;
    if not found then
        raise exception 'timeout "%" was never created', force_release_timeout.task_id
            using errcode = 'no_data_found',
                  hint = 'select task_id from lock.timeout lists what there is.';
    elsif lock.utc(previous.ts) + previous.timeout < lock.utc(clock_timestamp()) then
        return false;
    end if;
    update lock.timeout
    set ts = '-infinity'
    where timeout.task_id = force_release_timeout.task_id;
    perform lock.record_forced_release('timeout', force_release_timeout.task_id, force_release_timeout.reason, to_jsonb(previous));
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_timeout(text, text) is
    'Operators: lets a timeout be acquired at once and returns true; false when its interval has passed anyway. lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'Waits for a transaction that has just acquired it. Errors: 22004, 22023 bad arguments, P0002 never created, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.force_release_timeout(text, text) from public;

-- file: sql/functions/timeout/pull_back_timeout.sql
-- +goose StatementBegin
-- pull_back_timeout brings a time that lies far in the future back to now, because the clock was set back since it was stored.
--
-- Nothing is granted early: the grant was made before now, so a full interval from now is at least one from the grant. The
-- margin keeps it from steps of milliseconds and from servers whose clocks differ. A row that somebody holds is left alone.
create or replace function lock.pull_back_timeout(
    task_id  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
begin
    update lock.timeout
    set ts = right_now, unused_since = lock.full_hour(lock.utc(right_now) + timeout.timeout)
    where timeout.task_id = (
        select ahead.task_id
        from lock.timeout as ahead
        where ahead.task_id = pull_back_timeout.task_id
          and lock.utc(ahead.ts) > lock.utc(right_now) + ahead.timeout + interval '1 minute'
        for no key update skip locked
    );
    if found then
        raise log 'timeout "%" was acquired in the future: the clock was set back; it is denied for one interval from now', pull_back_timeout.task_id;
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.pull_back_timeout(text) is
    'Internal: sets ts to now when it lies more than the interval and a minute in the future.';

revoke all on function lock.pull_back_timeout(text) from public;

-- end of functions

select lock.end_migration(4, 'up');

-- +goose Down
select lock.start_migration(4, 'down');

-- functions: written by make migration, not by hand

-- gone: sql/functions/timeout/pull_back_timeout.sql
drop function if exists lock.pull_back_timeout(text);

-- gone: sql/functions/timeout/force_release_timeout.sql
drop function if exists lock.force_release_timeout(text, text);

-- gone: sql/functions/timeout/drop_unused_timeouts.sql
drop function if exists lock.drop_unused_timeouts(interval, integer);

-- gone: sql/functions/timeout/create_timeout.sql
drop function if exists lock.create_timeout(text, interval);

-- gone: sql/functions/timeout/acquire_timeout.sql
drop function if exists lock.acquire_timeout(text);

-- gone: sql/functions/time_slot/force_release_time_slot.sql
drop function if exists lock.force_release_time_slot(text, text);

-- gone: sql/functions/time_slot/drop_unused_time_slots.sql
drop function if exists lock.drop_unused_time_slots(interval, integer);

-- gone: sql/functions/time_slot/acquire_time_slot.sql
drop function if exists lock.acquire_time_slot(text, interval, timestamptz);

-- gone: sql/functions/throttle/pull_back_throttled_resource.sql
drop function if exists lock.pull_back_throttled_resource(text);

-- gone: sql/functions/throttle/lock_throttled_resource.sql
drop function if exists lock.lock_throttled_resource(text, text);

-- gone: sql/functions/throttle/force_release_throttled_resource.sql
drop function if exists lock.force_release_throttled_resource(text, text);

-- gone: sql/functions/throttle/drop_unused_throttled_resources.sql
drop function if exists lock.drop_unused_throttled_resources(interval, integer);

-- gone: sql/functions/throttle/create_throttled_resource.sql
drop function if exists lock.create_throttled_resource(text, interval);

-- gone: sql/functions/mutex/release_mutex.sql
drop function if exists lock.release_mutex(text, text);

-- gone: sql/functions/mutex/force_release_mutex.sql
drop function if exists lock.force_release_mutex(text, text);

-- gone: sql/functions/mutex/drop_unused_mutexes.sql
drop function if exists lock.drop_unused_mutexes(interval, integer);

-- gone: sql/functions/mutex/create_mutex.sql
drop function if exists lock.create_mutex(text);

-- gone: sql/functions/mutex/acquire_mutex.sql
drop function if exists lock.acquire_mutex(text, text);

-- gone: sql/functions/rule/utc.sql
drop function if exists lock.utc(timestamptz);

-- gone: sql/functions/rule/full_hour.sql
drop function if exists lock.full_hour(timestamp);

-- gone: sql/functions/rule/uncontended.sql
drop function if exists lock.uncontended(text);

-- gone: sql/functions/rule/unused_before.sql
drop function if exists lock.unused_before(interval);

-- gone: sql/functions/rule/record_forced_release.sql
drop function if exists lock.record_forced_release(text, text, text, jsonb);

-- gone: sql/functions/rule/give_up.sql
drop function if exists lock.give_up(text, text);

-- gone: sql/functions/rule/drop_unused.sql
drop function if exists lock.drop_unused(regclass, name, text, interval, integer);

-- gone: sql/functions/rule/check_length.sql
drop function if exists lock.check_length(interval, text, boolean);

-- gone: sql/functions/rule/check_drop.sql
drop function if exists lock.check_drop(interval, integer);

-- gone: sql/functions/rule/await_row.sql
drop function if exists lock.await_row(regclass, name, text);

-- end of functions

drop view if exists lock.throttled_resource_status;
drop view if exists lock.time_slot_status;
drop view if exists lock.timeout_status;
drop view if exists lock.mutex_status;
drop table if exists lock.forced_release;
drop table if exists lock.throttled_resource;
drop table if exists lock.time_slot;
drop table if exists lock.timeout;
drop table if exists lock.mutex;

select lock.end_migration(4, 'down');
