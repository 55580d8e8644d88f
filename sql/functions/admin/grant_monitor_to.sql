-- grant_monitor_to lets a role see everything of the schema and change nothing; PUBLIC loses what
-- it has.
create or replace function lock.grant_monitor_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    monitor_function  regprocedure;
begin
    perform lock_internal.check_role(grant_monitor_to.role);
    perform lock_internal.revoke_from_public();
    execute format('grant usage on schema lock, lock_internal to %I', grant_monitor_to.role);
    execute format('grant select on all tables in schema lock to %I', grant_monitor_to.role);
    for monitor_function in
        select monitor_functions from lock_internal.monitor_functions()
    loop
        execute format('grant execute on function %s to %I', monitor_function, grant_monitor_to.role);
    end loop;
end;
$$;

comment on function lock.grant_monitor_to(name) is
    'For the schema''s owner. Lets a role look and nothing else. It is for the console, dashboards '
    'and people on call. The role may read every table and view of the schema, payloads included. '
    'It may call the functions that only look, such as lock.who, lock.check and lock.help. It can '
    'change nothing, and take no lock that others wait for. The queries of other roles'' sessions '
    'show to members of pg_monitor only. A superuser gives that: grant pg_monitor to role. '
    'lock.revoke_from takes it back. Later migrations extend it by themselves. A role of '
    'lock.grant_to keeps what it has. Errors: 22004 null, 42704 unknown role, 42501 not the '
    'owner.';
