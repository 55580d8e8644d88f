-- try_exclusive takes a key as exclusive does, or answers false when that would take longer than
-- wait.
--
-- It is built as lock.exclusive is: a try that does not wait touches no table, granted or denied.
-- try_key answers where the case is null: on the row engine, on a standby, with a wait, and with a
-- bad argument.
create or replace function lock.try_exclusive(
    key   bigint,
    wait  interval default '0'
)
returns boolean
language sql
volatile
return coalesce(
    case
        when lock_internal.is_advisory() and try_exclusive.wait = '0' and not pg_is_in_recovery()
        then pg_try_advisory_xact_lock(try_exclusive.key # 7813573190502540665)
    end,
    lock_internal.try_key(try_exclusive.key, null, false, try_exclusive.wait)
);

comment on function lock.try_exclusive(bigint, interval) is
    'Takes a key as lock.exclusive does and returns true. Returns false when another transaction '
    'still has it after wait (default 0: at once; milliseconds, at most 24.8 days). While it '
    'waits, wait stands in for lock_timeout; statement_timeout goes on counting. On the row '
    'engine a wait asks again every 10 ms instead of queueing. Errors: 22004 null, 22023 bad '
    'name, or a wait that is negative, infinite or has months, 25006 on a standby, 40P01 '
    'deadlock, 40001 (row engine under snapshot isolation), 57014 statement_timeout.';

create or replace function lock.try_exclusive(
    name  text,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
as $$
begin
    if lock_internal.is_advisory() and not pg_catalog.pg_is_in_recovery()
        and try_exclusive.wait operator(pg_catalog.=) '0'::pg_catalog.interval
        and pg_catalog.octet_length(try_exclusive.name) operator(pg_catalog.>=) 1
        and pg_catalog.octet_length(try_exclusive.name) operator(pg_catalog.<=) 1024
    then
        return pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(try_exclusive.name collate pg_catalog."C", 7813573190502540665));
    end if;
    return lock_internal.try_key(null, try_exclusive.name, false, try_exclusive.wait);
end;
$$;

comment on function lock.try_exclusive(text, interval) is
    'As lock.try_exclusive(bigint, interval), for lock.key(name). lock.exclusive(text) says '
    'who sees the name.';
