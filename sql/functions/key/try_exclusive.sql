-- try_exclusive takes a key as exclusive does, or answers false when that would take longer than wait.
--
-- A denial on the advisory engine touches no table.
create or replace function lock.try_exclusive(
    key   bigint,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if try_exclusive.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock(lock.advisory_key(try_exclusive.key)) then
            return false;
        end if;
    elsif try_exclusive.wait is null then
        perform lock_internal.check_interval(try_exclusive.wait, 'wait', true);
    end if;
    return lock_internal.hold_key(try_exclusive.key, null, false, try_exclusive.wait);
end;
$$;

comment on function lock.try_exclusive(bigint, interval) is
    'Takes a key as lock.exclusive does and returns true, or returns false when somebody else still has it after wait (default 0: at once; '
    'milliseconds, at most 24.8 days). While it waits, wait stands in for lock_timeout; statement_timeout goes on counting. '
    'On the row engine a wait asks again every 10 ms instead of queueing. '
    'Errors: 22004 null, 22023 bad name, or a wait that is negative, infinite or has months, 25006 on a standby, 40P01 deadlock, '
    '40001 (row engine under snapshot isolation), 57014 statement_timeout.';

revoke all on function lock.try_exclusive(bigint, interval) from public;

create or replace function lock.try_exclusive(
    name  text,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name_key  constant bigint := lock_internal.hash(try_exclusive.name);
begin
    if try_exclusive.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock(lock.advisory_key(name_key)) then
            return false;
        end if;
    elsif try_exclusive.wait is null then
        perform lock_internal.check_interval(try_exclusive.wait, 'wait', true);
    end if;
    return lock_internal.hold_key(name_key, try_exclusive.name, false, try_exclusive.wait);
end;
$$;

comment on function lock.try_exclusive(text, interval) is
    'As lock.try_exclusive(bigint, interval), for lock.key(name); the name is kept in lock.locked_keys.';

revoke all on function lock.try_exclusive(text, interval) from public;
