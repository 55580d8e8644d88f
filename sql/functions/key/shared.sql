-- shared takes a key together with other sharers, until the transaction ends. It waits for an
-- exclusive holder.
--
-- It is built as lock.exclusive is.
create or replace function lock.shared(
    key  bigint
)
returns void
language sql
volatile
return case
    when lock_internal.is_advisory() and not pg_is_in_recovery()
        and pg_try_advisory_xact_lock_shared(shared.key # 7813573190502540665)
    then null
    else lock_internal.hold_key(shared.key, null, true)
end;

comment on function lock.shared(bigint) is
    'Takes a shared lock on a key until the transaction ends or rolls back to an earlier '
    'savepoint. Sharers do not wait for each other. They wait for an exclusive holder, and it '
    'waits for them. It is re-entrant and does not age: nobody can take it away. Errors: those of '
    'lock.exclusive(bigint). After F. Pachot, application locks in YugabyteDB; docs/key.md says '
    'what its recipe gets wrong.';

create or replace function lock.shared(
    name  text
)
returns void
language plpgsql
volatile
as $$
begin
    if lock_internal.is_advisory() and not pg_catalog.pg_is_in_recovery()
        and pg_catalog.octet_length(shared.name) operator(pg_catalog.>=) 1
        and pg_catalog.octet_length(shared.name) operator(pg_catalog.<=) 1024
        and pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended(shared.name collate pg_catalog."C", 7813573190502540665))
    then
        return;
    end if;
    perform lock_internal.hold_key(null, shared.name, true);
end;
$$;

comment on function lock.shared(text) is
    'As lock.shared(bigint), for lock.key(name). lock.exclusive(text) says who sees '
    'the name.';
