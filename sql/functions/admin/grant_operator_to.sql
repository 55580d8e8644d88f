-- grant_operator_to lets a role see everything of the schema, and do what operators do.
create or replace function lock.grant_operator_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_operator_to.role, 'operator');
end;
$$;

comment on function lock.grant_operator_to(name) is
    'For the schema''s owner. Lets a role do what people do in an incident, or to keep house. It '
    'may do what lock.grant_monitor_to allows. Besides it may release by force, cancel, pause, '
    'resume, retry, put tasks back, purge, and drop what is unused. It takes no lock, captures '
    'nothing, and writes to no table itself. To end sessions it needs pg_signal_backend, which a '
    'superuser gives. Everybody loses every right on the schema that no such call gave. '
    'lock.revoke_from takes it back. Later migrations extend it by themselves. A role that has '
    'another grant keeps it. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';
