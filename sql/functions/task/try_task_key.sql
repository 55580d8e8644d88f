-- try_task_key takes the lock of a key of tasks until the transaction ends, if nobody else has it;
-- never waits.
--
-- The number is in the space of two integers, so no key lock has it.
create or replace function lock_internal.try_task_key(
    number  bigint
)
returns boolean
language sql
volatile
as $$
    select case
        when lock_internal.is_advisory() then pg_catalog.pg_try_advisory_xact_lock(
            (try_task_key.number >> 32)::integer, try_task_key.number::bit(32)::integer
        )
        else lock_internal.hold_row(try_task_key.number, 'task key ' || try_task_key.number, shared => false, wait => interval '0')
    end;
$$;
