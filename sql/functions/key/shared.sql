-- shared takes a key together with other sharers, until the transaction ends; waits for an exclusive holder.
--
-- The first statement is the whole cost for a known key on the advisory engine: the lock is taken in the target list of the
-- directory's row, so it is held exactly when a row was found. Everything else, new keys included, goes through hold_key.
create or replace function lock.shared(
    key  bigint
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = shared.key;
        if found then
            return;
        end if;
    end if;
    perform lock_internal.hold_key(shared.key, null, true, null);
end;
$$;

comment on function lock.shared(bigint) is
    'Takes a shared lock on a key until the transaction ends or rolls back to an earlier savepoint. Sharers do not wait for each other; they wait for an exclusive holder, and it for them. '
    'Re-entrant. Does not age: nobody can take it away. Errors: 22004 null, 22023 bad name, 25006 on a standby, 40P01 deadlock, 40001 (row engine under snapshot isolation: retry the transaction), 55P03 lock_timeout, 57014 statement_timeout; none leaves anything held. '
    'After F. Pachot, application locks in YugabyteDB; what its recipe gets wrong is in docs/key.md.';

revoke all on function lock.shared(bigint) from public;

create or replace function lock.shared(
    name  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name_key  constant bigint := lock_internal.hash(shared.name);
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = name_key;
        if found then
            return;
        end if;
    end if;
    perform lock_internal.hold_key(name_key, shared.name, true, null);
end;
$$;

comment on function lock.shared(text) is
    'As lock.shared(bigint), for lock.key(name); the name is kept in lock.locked_keys.';

revoke all on function lock.shared(text) from public;
