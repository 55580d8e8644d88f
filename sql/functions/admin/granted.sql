-- granted does nothing: the roles that may execute it are those that were named to lock.grant_to.
create or replace function lock_internal.granted()
returns void
language sql
immutable
as $$
$$;

comment on function lock_internal.granted() is
    'Does nothing. The roles that may execute it are those that lock.grant_to was called for: migrations extend what they have.';

revoke all on function lock_internal.granted() from public;
