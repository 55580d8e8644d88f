-- hold_key takes a key until the transaction ends, and waits for it as long as it takes.
--
-- Every role that was granted may call it, with any arguments. It does what lock.exclusive and
-- lock.shared do. A name that it records is the name of the key that was taken.
--
-- On the advisory engine PostgreSQL's lock manager decides everything: which callers wait, in which
-- order, and which one is the victim of a deadlock. The name is written after the wait, and the
-- write itself never waits. Sharers that come out of the wait together may all write it, so nothing
-- about lock.key_name is unique. Nobody deletes it meanwhile: lock.unlock needs the key for itself.
-- A serializable transaction writes no name, because its look for one would conflict with others.
create or replace function lock_internal.hold_key(
    key     bigint,
    name    text,
    shared  boolean
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted  bigint := hold_key.key;
begin
    if hold_key.name is not null or hold_key.key is null then
        wanted := lock_internal.key_of(hold_key.key, hold_key.name);
    end if;
    if not lock_internal.is_advisory() then
        perform lock_internal.hold_row(wanted, hold_key.name, hold_key.shared, null);
        return;
    end if;
    if pg_is_in_recovery() then
        perform lock_internal.check_primary();
    end if;
    if hold_key.shared then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(wanted));
    else
        perform pg_advisory_xact_lock(lock.advisory_key(wanted));
    end if;
    if hold_key.name is not null
        and not current_setting('transaction_read_only')::boolean
        and current_setting('transaction_isolation') <> 'serializable'
    then
        insert into lock.key_name (key, name)
        select wanted, hold_key.name
        where not exists (select from lock.key_name where key_name.key = wanted);
    end if;
end;
$$;
