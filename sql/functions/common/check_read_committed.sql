-- check_read_committed refuses a transaction whose statements do not see what was committed before
-- they began.
--
-- What is taken under a lock must be read on a snapshot that is newer than the lock.
create or replace function lock_internal.check_read_committed(
    what  text
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    isolation  text := current_setting('transaction_isolation');
begin
    if lock_internal.is_yugabyte() and to_regproc('yb_get_effective_transaction_isolation_level') is not null then
        execute format('select %s()', to_regproc('yb_get_effective_transaction_isolation_level')) into isolation;
    end if;
    if isolation not in ('read committed', 'read uncommitted') then
        raise exception '% are captured under READ COMMITTED, and this transaction is %', what, upper(isolation)
            using errcode = 'invalid_transaction_state',
                  hint = 'Begin it with: begin isolation level read committed. On YugabyteDB enable yb_enable_read_committed_isolation.';
    end if;
end;
$$;
