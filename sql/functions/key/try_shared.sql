-- try_shared takes a key as shared does, or answers false when that would take longer than wait.
--
-- It is built as lock.try_exclusive is.
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
    'Takes a key as lock.shared does and returns true, or returns false when another transaction '
    'still has it after wait. lock.try_exclusive(bigint, interval) describes wait and the errors.';

create or replace function lock.try_shared(
    name  text,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
as $$
begin
    if lock_internal.is_advisory() and not pg_catalog.pg_is_in_recovery()
        and try_shared.wait operator(pg_catalog.=) '0'::pg_catalog.interval
        and pg_catalog.octet_length(try_shared.name) operator(pg_catalog.>=) 1
        and pg_catalog.octet_length(try_shared.name) operator(pg_catalog.<=) 1024
    then
        return pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended(try_shared.name collate pg_catalog."C", 7813573190502540665));
    end if;
    return lock_internal.try_key(null, try_shared.name, true, try_shared.wait);
end;
$$;

comment on function lock.try_shared(text, interval) is
    'As lock.try_shared(bigint, interval), for lock.key(name). lock.exclusive(text) says '
    'who sees the name.';
