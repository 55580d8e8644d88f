-- task_queues lists the first max queues that have tasks, by name. It hops from one to the next in
-- the indexes, so a long queue costs no more than a short one.
create or replace function lock_internal.task_queues(
    max  integer
)
returns setof text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    queue  text collate "C" := '';
begin
    for count in 1 .. task_queues.max loop
        queue := least(
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status <> 'in_progress'
                  and task.retries_left is distinct from 0
                  and task.key_number is null
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.key_number is not null
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status <> 'in_progress'
                  and task.retries_left = 0
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status = 'in_progress'
                  and task.deadline is not null
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status = 'in_progress'
                  and task.deadline is null
                order by task.queue_id
                limit 1
            )
        );
        exit when queue is null;
        return next queue;
    end loop;
end;
$$;
