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
