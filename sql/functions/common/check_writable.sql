-- check_writable refuses a call that could never be granted, as nothing can be stored. A denial
-- stores nothing: so without this check such a call would be denied.
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
