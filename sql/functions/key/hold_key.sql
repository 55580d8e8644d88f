-- hold_key takes a key until the transaction ends, on whichever engine this database has; wait null waits for ever.
--
-- A name that lock_internal.hash refuses comes here with a null key.
create or replace function lock_internal.hold_key(
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
begin
    if hold_key.key is null then
        if hold_key.name is not null then
            perform lock_internal.check_id(hold_key.name, 'name');
        end if;
        raise exception 'key must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a bigint, or a name of 1 to 1024 bytes.';
    end if;
    if hold_key.wait <> interval '0' then
        perform lock_internal.check_interval(hold_key.wait, 'wait', true);
    end if;

    if lock.engine() = 'row' then
        return lock_internal.hold_row(hold_key.key, hold_key.name, hold_key.shared, hold_key.wait);
    end if;
    return lock_internal.hold_advisory(hold_key.key, hold_key.name, hold_key.shared, hold_key.wait);
end;
$$;

comment on function lock_internal.hold_key(bigint, text, boolean, interval) is
    'Takes a key until the transaction ends; wait null waits for ever, zero never.';

revoke all on function lock_internal.hold_key(bigint, text, boolean, interval) from public;
