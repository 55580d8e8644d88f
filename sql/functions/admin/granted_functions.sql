-- granted_functions lists the functions that grant_to gives.
--
-- They are all of schema lock except the owner's, and internal ones that functions and views call
-- with the caller's rights.
create or replace function lock_internal.granted_functions()
returns setof regprocedure
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_proc.oid::regprocedure
    from pg_proc
    where pg_proc.pronamespace = 'lock'::regnamespace
      and pg_proc.prorettype <> 'trigger'::regtype
      and pg_proc.proname <> all (array[
          'grant_to', 'grant_monitor_to', 'revoke_from',
          'force_release_mutex', 'force_release_timeout', 'force_release_time_slot', 'force_release_throttled_resource', 'force_release_lease', 'cancel_request',
          'drop_unused_mutexes', 'drop_unused_timeouts', 'drop_unused_time_slots', 'drop_unused_throttled_resources', 'drop_unused_leases'
      ])
       or pg_proc.pronamespace = 'lock_internal'::regnamespace
      and pg_proc.proname = any (array['granted', 'is_advisory', 'hold_key', 'try_key', 'row_at', 'waiters'])
    order by 1;
$$;
