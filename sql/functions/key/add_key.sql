-- add_key makes sure that a key has a row to lock on the row engine; false when another
-- transaction's uncommitted row is in the way.
--
-- YugabyteDB inserts outside the transaction, so that nobody ever waits for an uncommitted row
-- there. That goes for a second sharer of a new key, and for a try. A conflict that restarts the
-- statement may repeat the insert, which is idempotent.
--
-- Such a write waits for every transaction that is in its way, this one included. So two kinds of
-- keys are inserted inside the transaction: one that this transaction has forgotten, and any key
-- under SERIALIZABLE. There the look for the row has locked its absence.
--
-- PostgreSQL has no such writes. There whoever inserts a key has its advisory lock until the
-- transaction ends, so the insert itself never waits. It looks for the row behind that lock: a row
-- that is there may be one that somebody is about to delete. A try takes no lock_timeout: one that
-- fires when a second wait follows is reported as a cancel (57014).
create or replace function lock_internal.add_key(
    key     bigint,
    name    text,
    nowait  boolean
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  text;
begin
    if current_setting('yb_disable_transactional_writes', true) is not null
        and current_setting('transaction_isolation') <> 'serializable'
        and add_key.key::text <> all (string_to_array(coalesce(current_setting('lock.forgotten', true), ''), ' '))
    then
        previous := current_setting('yb_disable_transactional_writes');
        perform set_config('yb_disable_transactional_writes', 'on', true);
        insert into lock.locked_keys (key, name, ts)
        values (add_key.key, add_key.name, clock_timestamp())
        on conflict do nothing;
        perform set_config('yb_disable_transactional_writes', previous, true);
        return true;
    elsif current_setting('yb_disable_transactional_writes', true) is null then
        if not add_key.nowait then
            perform pg_advisory_xact_lock(lock.advisory_key(add_key.key));
        elsif not pg_try_advisory_xact_lock(lock.advisory_key(add_key.key)) then
            return false;
        end if;
        perform from lock.locked_keys where locked_keys.key = add_key.key;
        if found then
            return true;
        end if;
    end if;
    insert into lock.locked_keys (key, name, ts)
    values (add_key.key, add_key.name, clock_timestamp())
    on conflict do nothing;
    return true;
end;
$$;
