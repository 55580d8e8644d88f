-- granted does nothing: the roles that may execute it are those that were named to lock.grant_to.
create or replace function lock_internal.granted()
returns void
language sql
immutable
as $$
$$;
