-- move_due lets tasks wait for their key that were not due when they were written, and are now: the
-- oldest of the first thousand of a status. It skips what others are moving.
create or replace function lock_internal.move_due(
    queue_id  text,
    status    lock.task_status
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    due  text[];
begin
    due := array(
        select early.id
        from (
            select task.id, task.key
            from lock.task
            where task.queue_id = move_due.queue_id
              and task.status = move_due.status
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
              and task.available_at <= clock_timestamp()
            order by task.available_at
            limit 1000
        ) as early
        where early.key is not null
    );
    update lock.task
    set key_number = lock_internal.key_number(task.queue_id, task.key)
    where task.queue_id = move_due.queue_id
      and task.id = any (array(
        select held.id
        from lock.task as held
        where held.queue_id = move_due.queue_id
          and held.id = any (due)
          and held.status = move_due.status
          and held.key_number is null
        for update skip locked
      ));
end;
$$;
