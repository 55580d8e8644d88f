-- hold_key takes a key until the transaction ends, and waits for it as long as it takes.
--
-- Every role that was granted may call it, with any arguments. It does what lock.exclusive and
-- lock.shared do.
--
-- On the advisory engine PostgreSQL's lock manager decides everything: which callers wait, in which
-- order, and which one is the victim of a deadlock. While it waits, the session shows the name in
-- its application_name, where lock.locked_keys finds it. A wait that fails takes its transaction or
-- subtransaction with it, and so the setting. The client hears nothing of it: the server reports
-- settings between statements, and then this one is what it was.
--
-- application_name holds 63 printable ASCII characters. The name goes first, and what was there is
-- cut to the rest. What does not fit, or is not ASCII, is shown as its beginning and three dots.
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
    wanted    bigint := hold_key.key;
    previous  constant text := current_setting('application_name');
    shown     text := regexp_replace(hold_key.name collate "C", '[^ -~]', '?', 'g');
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
    if hold_key.name is not null then
        if shown <> hold_key.name collate "C" or length(shown) > 52 then
            shown := left(shown, 49) || '...';
        end if;
        perform set_config('application_name', concat(left(previous, 52 - length(shown)), ' waits for ', shown), true);
    end if;
    if hold_key.shared then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(wanted));
    else
        perform pg_advisory_xact_lock(lock.advisory_key(wanted));
    end if;
    if hold_key.name is not null then
        perform set_config('application_name', previous, true);
    end if;
end;
$$;
