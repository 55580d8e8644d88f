-- hold_advisory takes a key's advisory lock until the transaction ends; wait null waits for ever, zero never.
--
-- Who can interleave: nobody inside the lock. PostgreSQL's lock manager grants, queues first come first served, finds
-- deadlocks (40P01) and releases at the end of the transaction or at a rollback to an earlier savepoint, under every
-- isolation level. The directory row is written only after the lock is held.
create or replace function lock_internal.hold_advisory(
    key     bigint,
    name    text,
    shared  boolean,
    wait    interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    slot      constant bigint := lock.advisory_key(hold_advisory.key);
    held      boolean := false;
    previous  text;
begin
    perform lock_internal.check_primary();

    if hold_advisory.wait is null and hold_advisory.shared then
        perform pg_advisory_xact_lock_shared(slot);
        held := true;
    elsif hold_advisory.wait is null then
        perform pg_advisory_xact_lock(slot);
        held := true;
    elsif hold_advisory.shared then
        held := pg_try_advisory_xact_lock_shared(slot);
    else
        held := pg_try_advisory_xact_lock(slot);
    end if;

    if not held and hold_advisory.wait > interval '0' then
        -- The block is a subtransaction: when the wait ends without the lock, its rollback also puts lock_timeout back.
        begin
            previous := current_setting('lock_timeout');
            perform set_config('lock_timeout', lock_internal.milliseconds(hold_advisory.wait)::text, true);
            if hold_advisory.shared then
                perform pg_advisory_xact_lock_shared(slot);
            else
                perform pg_advisory_xact_lock(slot);
            end if;
            perform set_config('lock_timeout', previous, true);
            held := true;
        exception
            when lock_not_available then
                held := false;
        end;
    end if;

    if held and not exists (select from lock.locked_keys where locked_keys.key = hold_advisory.key) then
        perform lock_internal.record_key(hold_advisory.key, hold_advisory.name, hold_advisory.shared);
    end if;
    return held;
end;
$$;

comment on function lock_internal.hold_advisory(bigint, text, boolean, interval) is
    'Takes a key on the advisory engine; wait null waits for ever, zero never.';

revoke all on function lock_internal.hold_advisory(bigint, text, boolean, interval) from public;
