-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000500 needs 20261101000400, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000500, 20261101000400, 'up');
end;
$$;
-- +goose StatementEnd

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

create or replace view lock.time_slot_status with (security_barrier) as
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
    'The newest slot that each task was granted, and when. free_in: how long (100 years at most) '
    'until the slot of now is a newer one, at the same resolution.';

-- functions of time_slot: written by make migration, not by hand

-- file: sql/functions/time_slot/acquire_time_slot.sql
-- +goose StatementBegin
-- acquire_time_slot returns true for the first call of a slot that is newer than every slot
-- granted before.
--
-- It looks, takes the row and waits as acquire_mutex does. Without at, the statement that grants
-- reads the clock once, when it runs: behind a wait for the table's lock, so the slot is never a
-- past one. date_bin cuts time at the epoch, and takes a day for 24 hours. Some versions put an
-- exact multiple before 1970 one slot too early; that is put right below.
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
set enable_seqscan = off
as $$
declare
    given  timestamptz;
    taken  boolean;
begin
    if acquire_time_slot.task_id is null
        or octet_length(acquire_time_slot.task_id) not between 1 and 1024
        or acquire_time_slot.resolution is null
        or acquire_time_slot.resolution not between interval '1 microsecond' and interval '1000 days'
        or date_part('month', acquire_time_slot.resolution) <> 0
        or date_part('year', acquire_time_slot.resolution) <> 0
        or not isfinite(acquire_time_slot.at)
        or current_setting('transaction_read_only')::boolean
    then
        perform lock_internal.check_writable();
        perform lock_internal.check_id(acquire_time_slot.task_id, 'task_id');
        perform lock_internal.check_interval(acquire_time_slot.resolution, 'resolution', true);
        if not isfinite(acquire_time_slot.at) then
            raise exception 'at must be finite, not %', acquire_time_slot.at
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass the time of a data point, or leave it out for now.';
        end if;
    end if;
    if acquire_time_slot.at is not null then
        given := date_bin(acquire_time_slot.resolution, acquire_time_slot.at, timestamptz 'epoch');
        if acquire_time_slot.at < timestamptz 'epoch'
            and lock_internal.utc(given) + acquire_time_slot.resolution <= lock_internal.utc(acquire_time_slot.at)
        then
            given := acquire_time_slot.at;
        end if;
    end if;
    for round in 1 .. 100 loop
        select time_slot.slot_start >= coalesce(given, date_bin(acquire_time_slot.resolution, clock_timestamp(), timestamptz 'epoch'))
        into taken
        from lock.time_slot
        where time_slot.task_id = acquire_time_slot.task_id;
        if taken then
            return false;
        end if;
        with moment as materialized (
            select coalesce(given, date_bin(acquire_time_slot.resolution, clock_timestamp(), timestamptz 'epoch')) as slot
        )
        update lock.time_slot
        set
            slot_start = (select moment.slot from moment),
            resolution = acquire_time_slot.resolution,
            granted_at = clock_timestamp(),
            unused_since = lock_internal.full_hour(greatest(
                lock_internal.utc((select moment.slot from moment)) + acquire_time_slot.resolution,
                lock_internal.utc(clock_timestamp())
            ))
        where time_slot.task_id = (
            select older.task_id
            from lock.time_slot as older
            where older.task_id = acquire_time_slot.task_id
              and older.slot_start < (select moment.slot from moment)
            for no key update skip locked
        );
        if found then
            return true;
        end if;
        insert into lock.time_slot (task_id, slot_start) values (acquire_time_slot.task_id, '-infinity') on conflict do nothing;
        perform lock_internal.await_row('lock.time_slot', 'task_id', acquire_time_slot.task_id, round);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.acquire_time_slot(text, interval, timestamptz) is
    'Acquires the slot of time that holds at (default: now by the database''s clock). Returns true '
    'when the slot is newer than every slot granted before to this task_id, else false: the first '
    'write wins. task_id has 1 to 1024 bytes; a new one is made. Slots are resolution long (over '
    '0, up to 100 years, no months; a day is 24 hours) and aligned to the epoch, start included '
    'and end not. Another resolution than before is fine. Exactly one of any number of concurrent '
    'callers gets true. The grant is part of the transaction: rolled back, it never was. A denial '
    'is immediate and writes nothing. While another transaction has acquired a slot and not '
    'ended, the call waits for that end. Errors: 22004, 22023 bad arguments, 22008 at the ends of '
    'time, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01 '
    'deadlock, 55P03 lock_timeout, 57014 statement_timeout. After the Redis timeout lock (zadd gt '
    'ch with the score floor(ts / timeout)).';

-- file: sql/functions/time_slot/drop_unused_time_slots.sql
-- +goose StatementBegin
-- drop_unused_time_slots forgets tasks whose newest slot ended, and was granted, long ago.
--
-- It finds them as drop_unused_timeouts does.
create or replace function lock.drop_unused_time_slots(
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
    before   constant timestamp := lock_internal.unused_before(drop_unused_time_slots.unused_for, drop_unused_time_slots.max);
    dropped  bigint;
begin
    delete from lock.time_slot
    where time_slot.task_id = any(array(
        select oldest.task_id
        from lock.time_slot as oldest
        where oldest.unused_since <= before
          and greatest(lock_internal.utc(oldest.slot_start) + oldest.resolution, lock_internal.utc(oldest.granted_at)) < before
        order by oldest.unused_since
        limit drop_unused_time_slots.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_time_slots(interval, integer) is
    'For operators. Forgets at most max tasks whose newest slot ended, and was granted, at least '
    'unused_for ago; returns how many. The longest unused go first. Call it again until it '
    'returns 0. A dropped task remembers no slot: an at that is older than unused_for is granted '
    'again. So unused_for must exceed the age of the latest data point that a producer may still '
    'send. With at left out no slot is ever granted twice. It never waits. Times are kept to the '
    'hour, so one can stay up to an hour longer. Errors: 22004, 22023 bad arguments, 25006 '
    'read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/time_slot/force_release_time_slot.sql
-- +goose StatementBegin
-- force_release_time_slot forgets which slot was the newest, and records the operator and the
-- reason.
create or replace function lock.force_release_time_slot(
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
    perform lock_internal.check_id(force_release_time_slot.task_id, 'task_id');
    perform lock_internal.check_text(force_release_time_slot.reason, 'reason');
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
    perform lock_internal.record_forced_release('time_slot', force_release_time_slot.task_id, force_release_time_slot.reason, previous);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_time_slot(text, text) is
    'For operators. Forgets the newest slot of a task and returns true; false when there is '
    'nothing to forget. After that any slot can be acquired next, even one that was granted '
    'before. Use it when a producer took a slot far in the future, or when a clock was set back. '
    'lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'The call waits for a transaction that has just acquired a slot. Errors: 22004, 22023 bad '
    'arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- end of functions

select lock_internal.end_migration(20261101000500, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000500 needs 20261101000400, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000500, 20261101000400, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.time_slot_status, lock.time_slot}');
select lock_internal.refuse_loss('lock.time_slot_status', 'slot_end > clock_timestamp()', 'time slots that are not over');

-- functions of time_slot: written by make migration, not by hand

-- gone: sql/functions/time_slot/force_release_time_slot.sql
drop function if exists lock.force_release_time_slot(text, text);

-- gone: sql/functions/time_slot/drop_unused_time_slots.sql
drop function if exists lock.drop_unused_time_slots(interval, integer);

-- gone: sql/functions/time_slot/acquire_time_slot.sql
drop function if exists lock.acquire_time_slot(text, interval, timestamptz);

-- end of functions

drop view if exists lock.time_slot_status;
drop table if exists lock.time_slot;

select lock_internal.end_migration(20261101000500, 'down');
