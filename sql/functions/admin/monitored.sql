-- monitored does nothing: the roles that may execute it are those that were named to
-- lock.grant_monitor_to.
create or replace function lock_internal.monitored()
returns void
language sql
immutable
as $$
$$;
