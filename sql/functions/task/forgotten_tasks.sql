-- forgotten_tasks describes tasks that have been in_progress for over an hour and cannot time out;
-- null: there are none.
create or replace function lock_internal.forgotten_tasks()
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select format('tasks in progress for over an hour without a timeout: %s, such as %s', count(*), min(task.queue_id || ': ' || task.id))
    from lock.task
    where task.status = 'in_progress'
      and task.deadline is null
      and task.changed_at < clock_timestamp() - interval '1 hour'
    having count(*) > 0;
$$;
