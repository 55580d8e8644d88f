-- check_writable refuses what has to store a grant and cannot. A denial alone would need no write:
-- so a caller would learn by chance that it can never be granted anything.
create or replace function lock_internal.check_writable()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_primary();
    if current_setting('transaction_read_only')::boolean then
        raise exception 'a lock cannot be stored in a read-only transaction'
            using errcode = 'read_only_sql_transaction',
                  hint = 'Begin the transaction with read write, and look at default_transaction_read_only.';
    end if;
end;
$$;
