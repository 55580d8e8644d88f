-- try_key takes a key as hold_key does, and answers false when that would take longer than wait.
--
-- Every role that was granted may call it, with any arguments.
create or replace function lock_internal.try_key(
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
    wanted    constant bigint := lock_internal.key_of(try_key.key, try_key.name);
    previous  constant text := current_setting('lock_timeout');
begin
    if try_key.wait is distinct from interval '0' then
        perform lock_internal.check_interval(try_key.wait, 'wait', true);
    end if;
    if not lock_internal.is_advisory() then
        return lock_internal.hold_row(wanted, try_key.name, try_key.shared, try_key.wait);
    end if;
    perform lock_internal.check_primary();
    if try_key.shared and pg_try_advisory_xact_lock_shared(lock.advisory_key(wanted))
        or not try_key.shared and pg_try_advisory_xact_lock(lock.advisory_key(wanted))
    then
        return true;
    elsif try_key.wait = interval '0' then
        return false;
    end if;

    -- The block is a subtransaction: when the wait ends without the lock, its rollback also puts
    -- lock_timeout back.
    begin
        perform set_config('lock_timeout', least(ceil(extract(epoch from try_key.wait) * 1000), 2147483647)::text, true);
        perform lock_internal.hold_key(try_key.key, try_key.name, try_key.shared);
        perform set_config('lock_timeout', previous, true);
        return true;
    exception
        when lock_not_available then
            return false;
    end;
end;
$$;
