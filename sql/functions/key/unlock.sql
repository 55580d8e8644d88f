-- unlock forgets what is kept of a key, when the transaction commits. The lock itself ends with the
-- transaction.
--
-- It never waits. On both engines it needs what an exclusive holder has, so a row that others have
-- locked stays. A waiter may find the row gone. It inserts the row again and goes on waiting for
-- that one: see hold_row. The advisory engine keeps nothing.
create or replace function lock.unlock(
    key  bigint
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted  constant bigint := lock_internal.key_of(unlock.key, null);
begin
    if lock_internal.is_advisory() then
        perform lock_internal.check_primary();
        return pg_try_advisory_xact_lock(lock.advisory_key(wanted));
    end if;
    delete from lock.locked_keys
    where locked_keys.key in (
        select forgotten.key
        from lock.locked_keys as forgotten
        where forgotten.key = wanted
        for update skip locked
    );
    if not found then
        return false;
    end if;
    if current_setting('yb_disable_transactional_writes', true) is not null then
        perform set_config('lock.forgotten', concat_ws(' ', current_setting('lock.forgotten', true), wanted), true);
    end if;
    return true;
end;
$$;

comment on function lock.unlock(bigint) is
    'Forgets a key; the exclusive holder calls it. Returns true when nothing of the key is kept '
    'after this transaction''s commit. That is its row of lock.locked_keys on the row engine; the '
    'advisory engine keeps nothing of any key. Returns false when another transaction holds the '
    'key, and on the row engine when the key is not known. Before PostgreSQL 17 a sharer gets '
    'false, too, while another transaction waits for the key. The lock itself ends with the '
    'transaction, not here; calling unlock takes it exclusively until then. It never waits. '
    'Errors: 22004 null, 22023 bad name, 25006 on a standby (row engine: read-only).';

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
