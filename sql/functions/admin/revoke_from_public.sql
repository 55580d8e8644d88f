-- revoke_from_public takes everything in both schemas from PUBLIC.
--
-- A restore without ACLs gives PUBLIC what every function has by default.
create or replace function lock_internal.revoke_from_public()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    revoke all on schema lock from public;
    revoke all on schema lock_internal from public;
    revoke all on all functions in schema lock from public;
    revoke all on all functions in schema lock_internal from public;
    revoke all on all tables in schema lock from public;
    revoke all on all sequences in schema lock from public;
end;
$$;
