-- try_shared takes a key as shared does, or answers false when that would take longer than wait.
--
-- Built as lock.try_exclusive is.
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
    'Takes a key as lock.shared does and returns true, or returns false when somebody else still has it after wait: see lock.try_exclusive(bigint, interval), '
    'also for the errors.';

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
