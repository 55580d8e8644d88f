-- wanted_rights lists every right on both schemas that a call of lock.grant_to and its like gave:
-- one row for each role of lock.granted_role, object and privilege.
--
-- This is the one list of who may do what. A function of schema lock that is not named here is for
-- applications. The internal ones are those that functions and views call with the caller's rights.
create or replace function lock_internal.wanted_rights()
returns table (
    grantee    text,
    object     text,
    privilege  text
)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    with relation as (
        select pg_class.oid, pg_class.relkind = 'v' as is_view
        from pg_class
        where pg_class.relnamespace = 'lock'::regnamespace
          and pg_class.relkind in ('r', 'v')
    ),
    function as (
        select
            pg_proc.oid,
            pg_proc.proname as name,
            pg_proc.pronamespace = 'lock_internal'::regnamespace as internal,
            pg_proc.prorettype = 'trigger'::regtype as tracks,
            pg_proc.proname = any (array['grant_to', 'grant_monitor_to', 'grant_operator_to', 'grant_tracking_to', 'revoke_from']) as owns,
            pg_proc.proname ~ '^(force_release_|drop_unused_|purge_)'
                or pg_proc.proname = any (array['cancel_request', 'clean', 'pause_queue', 'record_action', 'resume_queue']) as operates,
            pg_proc.proname = any (array['delete_task', 'retry_request', 'retry_task', 'retry_tasks', 'set_status', 'set_statuses', 'vacuum']) as repairs,
            pg_proc.proname = any (array[
                'advisory_key', 'check', 'engine', 'get_task', 'help', 'key', 'list_tasks', 'queue_sizes', 'request_history', 'who'
            ]) as looks
        from pg_proc
        where pg_proc.pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
    )
    select quote_ident(granted_role.role), may.object, may.privilege
    from lock.granted_role
    join pg_roles on pg_roles.rolname = granted_role.role
    join pg_namespace on pg_namespace.nspname = 'lock' and pg_namespace.nspowner <> pg_roles.oid
    cross join lateral (
        select 'schema ' || schema, 'USAGE'
        from unnest(array['lock', 'lock_internal']) as schema
        where granted_role.level <> 'tracking'
        union all
        select 'table ' || relation.oid::regclass, 'SELECT'
        from relation
        where granted_role.level in ('monitor', 'operator')
           or granted_role.level = 'application' and relation.is_view
        union all
        select 'function ' || function.oid::regprocedure, 'EXECUTE'
        from function
        where case granted_role.level
            when 'tracking' then function.tracks and not function.internal
            when 'application' then not function.internal and not function.tracks and not function.owns and not function.operates
                or function.internal and function.name = any (array['hold_key', 'is_advisory', 'row_at', 'try_key', 'waiters'])
            else not function.internal and (function.looks or granted_role.level = 'operator' and (function.operates or function.repairs))
                or function.internal and function.name = any (array['entity_number', 'is_advisory', 'row_at', 'waiters'])
        end
    ) as may (object, privilege);
$$;
