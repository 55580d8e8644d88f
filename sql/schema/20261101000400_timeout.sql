-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000400 needs 20261101000300, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000400, 20261101000300, 'up');
end;
$$;
-- +goose StatementEnd

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

create or replace view lock.timeout_status with (security_barrier) as
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
    'Until when each timeout is locked: it can be acquired after free_at, in free_in. '
    'clock_was_set_back: its time lies in the future.';

-- functions of timeout: written by make migration, not by hand

-- file: sql/functions/timeout/create_timeout.sql
-- +goose StatementBegin
-- create_timeout makes a timeout that can be acquired at once. When it exists, the call returns
-- false and gives it the new interval.
create or replace function lock.create_timeout(
    task_id  text,
    timeout  interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_id(create_timeout.task_id, 'task_id');
    perform lock_internal.check_interval(create_timeout.timeout, 'timeout', false);
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
        unused_since = greatest(timeout.unused_since, lock_internal.full_hour(lock_internal.utc(timeout.ts) + create_timeout.timeout))
    where timeout.task_id = create_timeout.task_id;
    if not found then
        perform lock_internal.give_up('timeout', create_timeout.task_id);
    end if;
    return false;
end;
$$;
-- +goose StatementEnd

comment on function lock.create_timeout(text, interval) is
    'Makes a timeout that can be acquired at once and returns true (task_id: 1 to 1024 bytes; '
    'timeout: over 0, up to 100 years). When the timeout exists, the call returns false and gives '
    'it the new interval, which counts from the last grant. A day is 24 hours, whatever the '
    'session''s time zone; months and years are calendar arithmetic in UTC. The call writes '
    'nothing when the timeout exists with this interval. It waits for a transaction that is '
    'making, changing or acquiring the timeout. Errors: 22004, 22023 bad arguments, 25006 '
    'read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, or when it is being '
    'dropped.';

-- file: sql/functions/timeout/acquire_timeout.sql
-- +goose StatementBegin
-- acquire_timeout returns true, and starts the interval, when the interval of the last grant has
-- passed: ts + timeout < now.
--
-- It looks, takes the row and waits as acquire_mutex does. The update reads the clock when it runs,
-- after a wait for the table's lock (an index is being made), and stores what it reads after the
-- test. So the interval never starts before the grant.
--
-- The sum is made in UTC, so that days and months do not depend on the session's time zone. The
-- insert makes a row only when somebody dropped it meanwhile, and the error takes it back.
--
-- A time that lies far in the future is brought back to now, by a clock that is read behind the
-- row. A grant that is seen was made before that, so nothing is granted early. The margin keeps it
-- from steps of milliseconds and from servers whose clocks differ.
create or replace function lock.acquire_timeout(
    task_id  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    length  interval;
    passed  boolean;
    ahead   boolean;
begin
    if (octet_length(acquire_timeout.task_id) between 1 and 1024 and not current_setting('transaction_read_only')::boolean) is not true then
        perform lock_internal.check_writable();
        perform lock_internal.check_id(acquire_timeout.task_id, 'task_id');
    end if;
    for round in 1 .. 100 loop
        select
            timeout.timeout,
            lock_internal.utc(timeout.ts) + timeout.timeout < lock_internal.utc(clock_timestamp()),
            timeout.ts > clock_timestamp()
        into length, passed, ahead
        from lock.timeout
        where timeout.task_id = acquire_timeout.task_id;
        exit when not found;
        if ahead then
            update lock.timeout
            set ts = clock_timestamp(), unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()) + timeout.timeout)
            where timeout.task_id = (
                select far.task_id
                from lock.timeout as far
                where far.task_id = acquire_timeout.task_id
                  and lock_internal.utc(far.ts) > lock_internal.utc(clock_timestamp()) + far.timeout + interval '1 minute'
                for no key update skip locked
            );
            if found then
                raise log 'timeout "%" was acquired in the future: the clock was set back; it is denied for one interval from now', acquire_timeout.task_id;
            end if;
        end if;
        if not passed then
            return false;
        end if;
        update lock.timeout
        set ts = clock_timestamp(), unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()) + timeout.timeout)
        where timeout.task_id = (
            select free.task_id
            from lock.timeout as free
            where free.task_id = acquire_timeout.task_id
              and lock_internal.utc(free.ts) + free.timeout < lock_internal.utc(clock_timestamp())
            for no key update skip locked
        );
        if found then
            return true;
        end if;
        insert into lock.timeout (task_id, timeout) values (acquire_timeout.task_id, length) on conflict do nothing;
        exit when found;
        perform lock_internal.await_row('lock.timeout', 'task_id', acquire_timeout.task_id, round);
    end loop;
    raise exception 'timeout "%" was never created, or dropped', acquire_timeout.task_id
        using errcode = 'no_data_found',
              hint = 'Create it once with lock.create_timeout(task_id, timeout).';
end;
$$;
-- +goose StatementEnd

comment on function lock.acquire_timeout(text) is
    'Acquires a timeout made by lock.create_timeout (task_id: 1 to 1024 bytes). Returns true when '
    'ts + timeout < now by the database''s clock, strictly and to the microsecond, and then ts = '
    'now; else false. Exactly one of any number of concurrent callers gets true. Nobody releases '
    'it: it can be acquired again when its interval has passed. The grant is part of the '
    'transaction: rolled back, it never was. A denial is immediate and writes nothing. While '
    'another transaction has acquired the timeout and not ended, the call waits for that end. A '
    'stored time far in the future (more than the interval and a minute) means that the clock was '
    'set back. Such a call is denied and brings the time back to now, the one denial that writes; '
    'so the timeout is free again after one interval. Errors: 22004, 22023 bad task_id, P0002 '
    'never created, or dropped, 25006 read-only or standby, 40001 under REPEATABLE READ and '
    'SERIALIZABLE, 40P01 deadlock, 55P03 lock_timeout, 57014 statement_timeout. After the SQL '
    'timeout lock (update ... and ts + timeout < now).';

-- file: sql/functions/timeout/drop_unused_timeouts.sql
-- +goose StatementBegin
-- drop_unused_timeouts deletes timeouts whose interval passed long ago.
--
-- It walks the index on unused_since, which holds whole hours and only finds candidates. The plans
-- that scan or sort are switched off. A row is tested under its lock. A row that a transaction
-- holds is passed over, so what is being acquired stays.
create or replace function lock.drop_unused_timeouts(
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
    before   constant timestamp := lock_internal.unused_before(drop_unused_timeouts.unused_for, drop_unused_timeouts.max);
    dropped  bigint;
begin
    delete from lock.timeout
    where timeout.task_id = any(array(
        select oldest.task_id
        from lock.timeout as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.ts) + oldest.timeout < before
        order by oldest.unused_since
        limit drop_unused_timeouts.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_timeouts(interval, integer) is
    'For operators. Deletes at most max timeouts whose last interval ended at least unused_for '
    'ago. For one that was never acquired, its making counts. It deletes the longest unused first '
    'and returns how many; call it again until it returns 0. It never deletes one that is denied '
    'now, and never waits. A dropped one must be made again: until then acquiring it is an error '
    '(P0002). Times are kept to the hour, so one can stay up to an hour longer. Errors: 22004, '
    '22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/timeout/force_release_timeout.sql
-- +goose StatementBegin
-- force_release_timeout lets a timeout be acquired at once, and records the operator and the
-- reason.
create or replace function lock.force_release_timeout(
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
    perform lock_internal.check_id(force_release_timeout.task_id, 'task_id');
    perform lock_internal.check_text(force_release_timeout.reason, 'reason');
    select to_jsonb(held) into previous
    from lock.timeout as held
    where held.task_id = force_release_timeout.task_id
      and lock_internal.utc(held.ts) + held.timeout >= lock_internal.utc(clock_timestamp())
    for no key update;
    if not found then
        perform from lock.timeout where timeout.task_id = force_release_timeout.task_id;
        if found then
            return false;
        end if;
        raise exception 'timeout "%" was never created', force_release_timeout.task_id
            using errcode = 'no_data_found',
                  hint = 'Pass a task_id that exists: select task_id from lock.timeout lists them.';
    end if;
    update lock.timeout
    set ts = '-infinity'
    where timeout.task_id = force_release_timeout.task_id;
    perform lock_internal.record_forced_release('timeout', force_release_timeout.task_id, force_release_timeout.reason, previous);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_timeout(text, text) is
    'For operators. Lets a timeout be acquired at once and returns true; false when its interval '
    'has passed anyway. lock.forced_release records the operator, the reason (1 to 1024 bytes) '
    'and what was stored. The call waits for a transaction that has just acquired the timeout. '
    'Errors: 22004, 22023 bad arguments, P0002 never created, 25006 read-only, 40001 under '
    'REPEATABLE READ and SERIALIZABLE.';

-- end of functions

select lock_internal.end_migration(20261101000400, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000400 needs 20261101000300, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000400, 20261101000300, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.timeout_status, lock.timeout}');
select lock_internal.refuse_loss('lock.timeout_status', 'locked', 'timeouts that have not passed');

-- functions of timeout: written by make migration, not by hand

-- gone: sql/functions/timeout/force_release_timeout.sql
drop function if exists lock.force_release_timeout(text, text);

-- gone: sql/functions/timeout/drop_unused_timeouts.sql
drop function if exists lock.drop_unused_timeouts(interval, integer);

-- gone: sql/functions/timeout/acquire_timeout.sql
drop function if exists lock.acquire_timeout(text);

-- gone: sql/functions/timeout/create_timeout.sql
drop function if exists lock.create_timeout(text, interval);

-- end of functions

drop view if exists lock.timeout_status;
drop table if exists lock.timeout;

select lock_internal.end_migration(20261101000400, 'down');
