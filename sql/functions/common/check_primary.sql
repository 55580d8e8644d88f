-- check_primary refuses to work on a standby, where a lock would exclude nobody.
create or replace function lock_internal.check_primary()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_is_in_recovery() then
        raise exception 'a lock on a standby would exclude nobody'
            using errcode = 'read_only_sql_transaction',
                  hint = 'Connect to the primary, for example with target_session_attrs=read-write.';
    end if;
end;
$$;
