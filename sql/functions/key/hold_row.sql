-- hold_row takes a key by locking its row until the transaction ends. With wait null it waits for
-- ever, with zero never.
--
-- Between any two statements here another transaction may insert the row, lock it, or delete it
-- (unlock, vacuum). So a lock counts only when a statement really returned a locked row. A select
-- that waited for a row and then found it deleted returns none, and the loop starts again. The
-- primary key decides between two that insert the same key at once.
--
-- READ COMMITTED takes a new snapshot per statement, so the loop sees what it waited for. Under
-- REPEATABLE READ and SERIALIZABLE PostgreSQL raises 40001 by itself where the row changed.
-- YugabyteDB may instead go on not seeing it, hence the bound.
create or replace function lock_internal.hold_row(
    key     bigint,
    name    text,
    shared  boolean,
    wait    interval
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    deadline  constant timestamptz := clock_timestamp() + hold_row.wait;
    absent    integer := 0;
begin
    loop
        if hold_row.wait is null and hold_row.shared then
            perform from lock.locked_keys where locked_keys.key = hold_row.key for share;
        elsif hold_row.wait is null then
            perform from lock.locked_keys where locked_keys.key = hold_row.key for update;
        elsif hold_row.shared then
            perform from lock.locked_keys where locked_keys.key = hold_row.key for share skip locked;
        else
            perform from lock.locked_keys where locked_keys.key = hold_row.key for update skip locked;
        end if;
        if found then
            return true;
        end if;

        if hold_row.wait is not null and exists (select from lock.locked_keys where locked_keys.key = hold_row.key)
            or not lock_internal.add_key(hold_row.key, hold_row.name, hold_row.wait is not null)
        then
            -- Another transaction has it.
            exit when clock_timestamp() >= deadline;
            perform pg_sleep(least(0.01, extract(epoch from deadline - clock_timestamp())));
        else
            absent := absent + 1;
            if absent > 100 then
                perform lock_internal.give_up('key', hold_row.key::text);
            end if;
        end if;
    end loop;
    return false;
end;
$$;
