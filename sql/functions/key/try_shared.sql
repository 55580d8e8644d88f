-- try_shared takes a key as shared does, or answers false when that would take longer than wait.
--
-- Built as lock.exclusive is: a try that does not wait touches no table, granted or denied. The case is null, and try_key has
-- the word, on the row engine, on a standby, with a wait, and with an argument that is not good.
create or replace function lock.try_shared(
    key   bigint,
    wait  interval default '0'
)
returns boolean
language sql
volatile
return coalesce(
    case
        when lock_internal.is_advisory() and try_shared.wait = '0' and not pg_is_in_recovery()
        then pg_try_advisory_xact_lock_shared(try_shared.key # 7813573190502540665)
    end,
    lock_internal.try_key(try_shared.key, null, true, try_shared.wait)
);

comment on function lock.try_shared(bigint, interval) is
    'Takes a key as lock.shared does and returns true, or returns false when somebody else still has it after wait (default 0: at once; '
    'milliseconds, at most 24.8 days). While it waits, wait stands in for lock_timeout; statement_timeout goes on counting. '
    'On the row engine a wait asks again every 10 ms instead of queueing. '
    'Errors: 22004 null, 22023 bad name, or a wait that is negative, infinite or has months, 25006 on a standby, 40P01 deadlock, '
    '40001 (row engine under snapshot isolation), 57014 statement_timeout.';

revoke all on function lock.try_shared(bigint, interval) from public;

create or replace function lock.try_shared(
    name  text,
    wait  interval default '0'
)
returns boolean
language sql
volatile
return coalesce(
    case
        when lock_internal.is_advisory() and try_shared.wait = '0' and not pg_is_in_recovery()
            and octet_length(try_shared.name) between 1 and 1024
        then pg_try_advisory_xact_lock_shared(hashtextextended(try_shared.name collate "C", 7813573190502540665))
    end,
    lock_internal.try_key(null, try_shared.name, true, try_shared.wait)
);

comment on function lock.try_shared(text, interval) is
    'As lock.try_shared(bigint, interval), for lock.key(name); the name is shown by lock.locked_keys once somebody has waited for it.';

revoke all on function lock.try_shared(text, interval) from public;
