-- unlock forgets a key: its row goes when the transaction commits. The lock itself ends with the transaction.
--
-- It never waits. On both engines it needs what an exclusive holder has, so a row that others rely on stays. A waiter of the
-- row engine that finds the row gone inserts it again and goes on waiting for that one: see hold_row.
create or replace function lock.unlock(
    key  bigint
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if unlock.key is null then
        perform lock_internal.hold_key(null, null, false, null);
    end if;
    if lock.engine() = 'advisory' then
        perform lock_internal.check_primary();
        if not pg_try_advisory_xact_lock(lock.advisory_key(unlock.key)) then
            return false;
        end if;
    end if;
    delete from lock.locked_keys
    where locked_keys.key in (
        select forgotten.key
        from lock.locked_keys as forgotten
        where forgotten.key = unlock.key
        for update skip locked
    );
    if not found then
        return false;
    end if;
    if current_setting('yb_disable_transactional_writes', true) is not null then
        perform set_config('lock.forgotten', concat_ws(' ', current_setting('lock.forgotten', true), unlock.key), true);
    end if;
    return true;
end;
$$;

comment on function lock.unlock(bigint) is
    'Forgets a key; call it by the exclusive holder. Returns true when its row of lock.locked_keys goes with this transaction''s commit, '
    'false when it is not known or another transaction holds it (or, for a sharer before PostgreSQL 17, waits for it). The lock itself ends with the transaction, not here, and calling unlock '
    'takes it exclusively until then. Never waits. Errors: 22004 null, 22023 bad name, 25006 read-only.';

revoke all on function lock.unlock(bigint) from public;

create or replace function lock.unlock(
    name  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return lock.unlock(lock.key(unlock.name));
end;
$$;

comment on function lock.unlock(text) is
    'As lock.unlock(bigint), for lock.key(name).';

revoke all on function lock.unlock(text) from public;
