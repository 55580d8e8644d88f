-- grant_monitor_to lets a role see everything of the schema and change nothing.
create or replace function lock.grant_monitor_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_monitor_to.role, 'monitor');
end;
$$;

comment on function lock.grant_monitor_to(name) is
    'For the schema''s owner. Lets a role look and nothing else. It is for the console, '
    'dashboards and people on call. The role may read every table and view of the schema, '
    'payloads included. It may call the functions that only look, such as lock.who, lock.check '
    'and lock.help. It can change nothing, and take no lock that others wait for. The queries of '
    'other roles'' sessions show to members of pg_monitor only. A superuser gives that: grant '
    'pg_monitor to role. Everybody loses every right on the schema that no such call gave. '
    'lock.revoke_from takes it back. Later migrations extend it by themselves. A role that has '
    'another grant keeps it. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';
