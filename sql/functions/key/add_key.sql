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
-- PostgreSQL has no such writes. There the insert waits for the other's transaction, or with nowait
-- for 1 ms.
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
    elsif not add_key.nowait then
        insert into lock.locked_keys (key, name, ts)
        values (add_key.key, add_key.name, clock_timestamp())
        on conflict do nothing;
        return true;
    end if;

    begin
        previous := current_setting('lock_timeout');
        perform set_config('lock_timeout', '1ms', true);
        insert into lock.locked_keys (key, name, ts)
        values (add_key.key, add_key.name, clock_timestamp())
        on conflict do nothing;
        perform set_config('lock_timeout', previous, true);
        return true;
    exception
        when lock_not_available then
            return false;
    end;
end;
$$;
