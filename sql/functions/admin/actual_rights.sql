-- actual_rights lists every right on both schemas that somebody else than the owner has, as
-- lock_internal.wanted_rights does.
--
-- A right that may be passed on, and one to a single column, is never wanted. PUBLIC has what a
-- missing ACL says.
create or replace function lock_internal.actual_rights()
returns table (
    grantee    text,
    object     text,
    privilege  text
)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select
        case when given.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(given.grantee)) end,
        owned.object,
        given.privilege_type || owned.of || case when given.is_grantable then ' WITH GRANT OPTION' else '' end
    from (
        select 'schema ' || pg_namespace.nspname as object, '' as of, pg_namespace.nspacl as acl, pg_namespace.nspowner as owner
        from pg_namespace
        where pg_namespace.nspname in ('lock', 'lock_internal')
        union all
        select case pg_class.relkind when 'S' then 'sequence ' else 'table ' end || pg_class.oid::regclass, '', pg_class.relacl, pg_class.relowner
        from pg_class
        where pg_class.relnamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
        union all
        select 'table ' || pg_class.oid::regclass, format(' (%s)', pg_attribute.attname), pg_attribute.attacl, pg_class.relowner
        from pg_class
        join pg_attribute on pg_attribute.attrelid = pg_class.oid
        where pg_class.relnamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
        union all
        select 'function ' || pg_proc.oid::regprocedure, '', coalesce(pg_proc.proacl, acldefault('f', pg_proc.proowner)), pg_proc.proowner
        from pg_proc
        where pg_proc.pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
    ) as owned
    cross join aclexplode(owned.acl) as given
    where given.grantee <> owned.owner;
$$;
