-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000300 needs 20261101000200, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000300, 20261101000200, 'up');
end;
$$;
-- +goose StatementEnd

-- Ids are compared as bytes (collate "C"), as everywhere in this schema. That is faster. It also
-- keeps an upgrade of the operating system from changing the order that the unique indexes rely on,
-- which would let one id have two rows.
--
-- Every table keeps room in its pages (fillfactor), so that a grant changes the row in place and no
-- index. unused_since holds whole hours for the same reason. Its index, which the drop_unused
-- functions walk, changes once an hour. Every grant sets it. It is not generated, because a
-- generated column costs every update a tenth of its time. The drop_unused functions trust it only
-- to find candidates. lock.timeout has no check constraint, which would cost a grant a fifth of its
-- time: lock.create_timeout checks.

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

create or replace view lock.mutex_status with (security_barrier) as
select
    mutex.task_id,
    mutex.acquired,
    mutex.owner,
    mutex.acquired_at,
    (case when mutex.acquired then clock_timestamp() - mutex.acquired_at end)::interval as held_for,
    mutex.released_at
from lock.mutex;

comment on view lock.mutex_status is
    'The holder of each mutex, since when and for how long. released_at: when it was last '
    'released, or made.';

-- functions of mutex: written by make migration, not by hand

-- file: sql/functions/mutex/acquire_mutex.sql
-- +goose StatementBegin
-- acquire_mutex sets the flag and returns true, or returns false when it is set. Exactly one of any
-- number of callers wins.
--
-- A caller that sees the flag set is denied, and has written nothing. The look decides nothing
-- else. The update takes the row only when it is free and nobody has it (skip locked). It tests
-- that on the newest version, under the row's lock.
--
-- A caller that passes both meets an open transaction, or a new id. The insert waits for that
-- transaction, or makes the row. It needs no transaction id to wait, and locks nothing. The next
-- round looks again.
create or replace function lock.acquire_mutex(
    task_id  text,
    owner    text  default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    if acquire_mutex.task_id is null
        or octet_length(acquire_mutex.task_id) not between 1 and 1024
        or octet_length(acquire_mutex.owner) not between 1 and 1024
        or current_setting('transaction_read_only')::boolean
    then
        perform lock_internal.check_writable();
        perform lock_internal.check_id(acquire_mutex.task_id, 'task_id');
        perform lock_internal.check_id(acquire_mutex.owner, 'owner') where acquire_mutex.owner is not null;
    end if;
    for round in 1 .. 100 loop
        perform from lock.mutex where mutex.task_id = acquire_mutex.task_id and mutex.acquired;
        if found then
            return false;
        end if;
        update lock.mutex
        set acquired = true, owner = acquire_mutex.owner, acquired_at = clock_timestamp()
        where mutex.task_id = (
            select free.task_id
            from lock.mutex as free
            where free.task_id = acquire_mutex.task_id
              and not free.acquired
            for no key update skip locked
        );
        if found then
            return true;
        end if;
        insert into lock.mutex (task_id, acquired, owner, acquired_at)
        values (acquire_mutex.task_id, true, acquire_mutex.owner, clock_timestamp())
        on conflict do nothing;
        if found then
            return true;
        end if;
        perform lock_internal.await_row('lock.mutex', 'task_id', acquire_mutex.task_id, round);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.acquire_mutex(text, text) is
    'Acquires a mutex and returns true, or returns false when it is acquired. task_id has 1 to '
    '1024 bytes; a new one is made. Exactly one of any number of concurrent callers gets true. '
    'The mutex stays acquired, crash or not, until its owner calls lock.release_mutex, or an '
    'operator calls lock.force_release_mutex. owner is a text, or null for nobody in particular. '
    'It is not re-entrant. The grant is part of the transaction: rolled back, it never was. A '
    'denial is immediate and writes nothing. While another transaction has acquired the mutex and '
    'not ended, the call waits for that end: only then is the answer known. Errors: 22004, 22023 '
    'bad task_id or owner, 25006 read-only or standby, 40001 under REPEATABLE READ and '
    'SERIALIZABLE, 40P01 deadlock when transactions acquire several in different orders, 55P03 '
    'lock_timeout, 57014 statement_timeout. After the SQL mutex (update ... and acquired != true) '
    'and the Redis one (zadd xx ch).';

-- file: sql/functions/mutex/create_mutex.sql
-- +goose StatementBegin
-- create_mutex makes a mutex that nobody has acquired and returns true; false when it exists.
create or replace function lock.create_mutex(
    task_id  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(create_mutex.task_id, 'task_id');
    perform lock_internal.check_primary();
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
    'Makes a mutex that nobody has acquired and returns true; false when it exists, acquired or '
    'not. task_id has 1 to 1024 bytes. It is optional: lock.acquire_mutex makes what it needs. '
    'The call waits only for a transaction that is making the same mutex. Rolled back, the mutex '
    'never was. Errors: 22004, 22023 bad task_id, 25006 read-only or standby, 40001 under '
    'REPEATABLE READ and SERIALIZABLE. After the Redis mutex: zadd nx 0.';

-- file: sql/functions/mutex/drop_unused_mutexes.sql
-- +goose StatementBegin
-- drop_unused_mutexes deletes mutexes that were released long ago, and never one that is acquired.
--
-- Any number of the oldest rows can be acquired ones. A call that meets them sets them aside until
-- they are released, out of the index that it walks. So they are in the way of one call, and not of
-- every call. A call that met only such rows goes on. Therefore 0 means that nothing is left to
-- drop.
create or replace function lock.drop_unused_mutexes(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    before   constant timestamp := lock_internal.unused_before(drop_unused_mutexes.unused_for, drop_unused_mutexes.max);
    idle     text[];
    held     text[];
    dropped  bigint;
begin
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
              and (mutex.acquired or lock_internal.utc(mutex.released_at) < before)
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
    'For operators. Deletes at most max mutexes that were made or last released at least '
    'unused_for ago, and returns how many. The longest unused go first. Call it again until it '
    'returns 0. It never deletes one that is acquired, and never waits. The next acquire makes a '
    'dropped one again. Times are kept to the hour, so a mutex can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and '
    'SERIALIZABLE.';

-- file: sql/functions/mutex/force_release_mutex.sql
-- +goose StatementBegin
-- force_release_mutex takes a mutex away from its holder, and records the operator and the reason.
create or replace function lock.force_release_mutex(
    task_id  text,
    reason   text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    previous  jsonb;
begin
    perform lock_internal.check_id(force_release_mutex.task_id, 'task_id');
    perform lock_internal.check_text(force_release_mutex.reason, 'reason');
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
        unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()))
    where mutex.task_id = force_release_mutex.task_id;
    perform lock_internal.record_forced_release('mutex', force_release_mutex.task_id, force_release_mutex.reason, previous);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_mutex(text, text) is
    'For operators. Releases a mutex, whichever owner acquired it, and returns true; false when '
    'it is not acquired. lock.forced_release records the operator, the reason (1 to 1024 bytes), '
    'and the owner and time of the acquisition. The holder is not told: make sure that it is '
    'gone. The call waits for a transaction that is releasing the mutex. Errors: 22004, 22023 bad '
    'task_id or reason, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/mutex/release_mutex.sql
-- +goose StatementBegin
-- release_mutex clears the flag and returns true; false when it is not set, or set for another
-- owner.
--
-- The update takes the row only when nobody else has it (skip locked), and tests it under its lock.
-- A caller that loses looks and waits as acquire_mutex does. The insert only waits: a row that is
-- acquired exists, and is not dropped.
create or replace function lock.release_mutex(
    task_id  text,
    owner    text  default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    if release_mutex.task_id is null
        or octet_length(release_mutex.task_id) not between 1 and 1024
        or octet_length(release_mutex.owner) not between 1 and 1024
        or pg_is_in_recovery()
    then
        perform lock_internal.check_primary();
        perform lock_internal.check_id(release_mutex.task_id, 'task_id');
        perform lock_internal.check_id(release_mutex.owner, 'owner') where release_mutex.owner is not null;
    end if;
    for round in 1 .. 100 loop
        update lock.mutex
        set
            acquired = false,
            owner = null,
            acquired_at = null,
            released_at = clock_timestamp(),
            set_aside = false,
            unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()))
        where mutex.task_id = (
            select held.task_id
            from lock.mutex as held
            where held.task_id = release_mutex.task_id
              and held.acquired
              and held.owner is not distinct from release_mutex.owner
            for no key update skip locked
        );
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
        insert into lock.mutex (task_id) values (release_mutex.task_id) on conflict do nothing;
        perform lock_internal.await_row('lock.mutex', 'task_id', release_mutex.task_id, round);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.release_mutex(text, text) is
    'Releases a mutex that was acquired with the same owner (null: without one) and returns true. '
    'Returns false when it is not acquired, not by this owner, or unknown; that writes nothing. '
    'Others can acquire it when the transaction commits; rolled back, it was never released. The '
    'call waits for another transaction that is releasing the mutex. Errors: 22004, 22023 bad '
    'task_id or owner, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, '
    '40P01 deadlock, 55P03 lock_timeout, 57014 statement_timeout. After the SQL mutex (update ... '
    'and acquired != false) and the Redis one (zadd xx ch).';

-- end of functions

select lock_internal.end_migration(20261101000300, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000300 needs 20261101000200, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000300, 20261101000200, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.mutex_status, lock.mutex}');
select lock_internal.refuse_loss('lock.mutex', 'acquired', 'mutexes that are acquired');

-- functions of mutex: written by make migration, not by hand

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

-- end of functions

drop view if exists lock.mutex_status;
drop table if exists lock.mutex;

select lock_internal.end_migration(20261101000300, 'down');
