-- exclusive takes a key for this transaction alone; waits until every other holder has ended.
--
-- The first statement is the whole cost for a known key on the advisory engine: the lock is taken in the target list of the
-- directory's row, so it is held exactly when a row was found. Everything else, new keys included, goes through hold_key.
create or replace function lock.exclusive(
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
        perform pg_advisory_xact_lock(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = exclusive.key;
        if found then
            return;
        end if;
    end if;
    perform lock_internal.hold_key(exclusive.key, null, false, null);
end;
$$;

comment on function lock.exclusive(bigint) is
    'Takes an exclusive lock on a key until the transaction ends or rolls back to an earlier savepoint. Waits for every other holder, shared or exclusive. '
    'Re-entrant. See what holders before did with a statement that follows, under READ COMMITTED: this one''s snapshot is from before the wait. Does not age: nobody can take it away. Errors: 22004 null, 22023 bad name, 25006 on a standby, 40P01 deadlock, 40001 (row engine under snapshot isolation: retry the transaction), 55P03 lock_timeout, 57014 statement_timeout; none leaves anything held. '
    'After F. Pachot, application locks in YugabyteDB; what its recipe gets wrong is in docs/key.md.';

revoke all on function lock.exclusive(bigint) from public;

create or replace function lock.exclusive(
    name  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name_key  constant bigint := lock_internal.hash(exclusive.name);
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = name_key;
        if found then
            return;
        end if;
    end if;
    perform lock_internal.hold_key(name_key, exclusive.name, false, null);
end;
$$;

comment on function lock.exclusive(text) is
    'As lock.exclusive(bigint), for lock.key(name); the name is kept in lock.locked_keys.';

revoke all on function lock.exclusive(text) from public;
