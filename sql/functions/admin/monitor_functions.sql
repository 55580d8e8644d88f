-- monitor_functions lists the functions that grant_monitor_to gives.
--
-- They are the functions that look and change nothing, and what these and the views call.
create or replace function lock_internal.monitor_functions()
returns setof regprocedure
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_proc.oid::regprocedure
    from pg_proc
    where pg_proc.pronamespace = 'lock'::regnamespace
      and pg_proc.proname = any (array['advisory_key', 'check', 'engine', 'get_task', 'help', 'key', 'list_tasks', 'queue_sizes', 'request_history', 'who'])
       or pg_proc.pronamespace = 'lock_internal'::regnamespace
      and pg_proc.proname = any (array['entity_number', 'is_advisory', 'monitored', 'row_at', 'waiters'])
    order by 1;
$$;
