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
