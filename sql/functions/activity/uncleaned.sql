-- uncleaned describes a history that nobody seems to clean: null when it is small. It counts to ten
-- thousand, and looks at no more than a hundred queues.
create or replace function lock_internal.uncleaned()
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    enough  constant integer := 10000;
    before  constant timestamptz := clock_timestamp() - interval '60 days';
    kept    bigint;
begin
    select count(*)
    into kept
    from (
        select
        from lock.request
        where request.settled_at < before
        order by request.settled_at
        limit enough
    ) as settled;
    if kept < enough then
        select kept + count(*)
        into kept
        from (
            select task_queues as id from lock_internal.task_queues(100)
        ) as queue
        cross join lateral (
            select
            from lock.task
            where task.queue_id = queue.id
              and task.status = 'done'
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
              and task.available_at < before
            order by task.available_at
            limit enough
        ) as done;
    end if;
    if kept >= enough then
        return format('%s tasks and requests or more were done over 60 days ago, and are still kept', enough);
    end if;
    return null;
end;
$$;
