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
