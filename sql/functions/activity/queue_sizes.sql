-- queue_sizes is lock.queue_depth for monitors: it counts to max and no further, by the indexes
-- alone.
--
-- The recursions hop from one queue to the next in the indexes, so a long queue costs no more than
-- a short one. With an equality on a queue's requests the planner would walk the primary key
-- instead, through the whole history.
create or replace function lock.queue_sizes(
    max  integer  default 1000
)
returns setof lock.queue_size
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
begin
    perform lock_internal.check_count(queue_sizes.max, 'max');
    return query
    with recursive request_queue (id) as (
        select ''::text collate "C"
        union all
        select least(
            (
                select request.queue_id
                from lock.request
                where request.queue_id > request_queue.id
                  and request.settled_at is null
                order by request.queue_id
                limit 1
            ),
            (
                select request.queue_id
                from lock.request
                where request.queue_id > request_queue.id
                  and request.failed
                order by request.queue_id
                limit 1
            )
        )
        from request_queue
        where request_queue.id is not null
    ),
    size as (
        select
            'task'::text as kind,
            queue.id,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status in ('new', 'failed')
                      and task.status <> 'in_progress'
                      and task.retries_left is distinct from 0
                      and task.key_number is null
                      and task.available_at <= right_now
                    limit queue_sizes.max
                ) as entry
            ) as ready,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status in ('new', 'failed')
                      and task.status <> 'in_progress'
                      and task.retries_left is distinct from 0
                      and task.key_number is null
                      and task.available_at > right_now
                    limit queue_sizes.max
                ) as entry
            ) as delayed,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = 'in_progress'
                      and task.deadline > right_now
                    limit queue_sizes.max
                ) as entry
            ) as timed,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = 'in_progress'
                      and task.deadline is null
                    limit queue_sizes.max
                ) as entry
            ) as endless,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = 'in_progress'
                      and task.deadline <= right_now
                    limit queue_sizes.max
                ) as entry
            ) as overdue,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status in ('new', 'failed')
                      and task.status <> 'in_progress'
                      and task.retries_left = 0
                    limit queue_sizes.max
                ) as entry
            ) as dead,
            (
                select min(oldest.available_at)
                from unnest('{new,failed}'::lock.task_status[]) as wanted
                cross join lateral (
                    select task.available_at
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = wanted
                      and task.status <> 'in_progress'
                      and task.retries_left is distinct from 0
                      and task.key_number is null
                      and task.available_at <= right_now
                    order by task.available_at
                    limit 1
                ) as oldest
            ) as oldest_ready,
            by_key.ready as ready_by_key,
            by_key.waiting,
            by_key.oldest_ready as oldest_by_key
        from lock_internal.task_queues(queue_sizes.max) as queue (id)
        cross join lateral (
            select
                coalesce(sum(least(entry.due, entry.free)), 0)::bigint as ready,
                coalesce(sum(entry.due - least(entry.due, entry.free)), 0)::bigint as waiting,
                min(entry.oldest) filter (where entry.free > 0) as oldest_ready
            from (
                select
                    count(*) as due,
                    min(piece.available_at) as oldest,
                    greatest(
                        0,
                        coalesce((select queue_limit.per_key from lock.queue_limit where queue_limit.queue_id = queue.id), 1) - (
                            select count(*)
                            from lock.task
                            where task.queue_id = queue.id
                              and task.key_number = piece.key_number
                              and case task.status when 'in_progress' then 1 else 0 end = 1
                        )
                    ) as free
                from (
                    select task.key_number, task.available_at
                    from lock.task
                    where task.queue_id = queue.id
                      and task.key_number is not null
                      and case task.status when 'in_progress' then 1 else 0 end = 0
                    order by task.key_number, task.available_at
                    limit queue_sizes.max
                ) as piece
                group by piece.key_number
            ) as entry
        ) as by_key
        union all
        select
            'request',
            queue.id,
            outstanding.ready,
            outstanding.delayed,
            null,
            null,
            null,
            (
                select count(*)
                from (
                    select
                    from lock.request
                    where request.queue_id = queue.id
                      and request.failed
                      and request.settled_at > right_now - interval '1 day'
                    limit queue_sizes.max
                ) as entry
            ),
            outstanding.oldest_ready,
            0,
            0,
            null
        from (select request_queue.id from request_queue where request_queue.id <> '' limit queue_sizes.max) as queue
        cross join lateral (
            select
                count(*) filter (where entry.ready) as ready,
                count(*) filter (where not entry.ready) as delayed,
                min(entry.created_at) filter (where entry.ready) as oldest_ready
            from (
                (
                    select true as ready, piece.created_at
                    from (
                        (
                            select request.created_at
                            from lock.request
                            where request.queue_id = queue.id
                              and request.settled_at is null
                              and request.available_at <= right_now
                            order by request.available_at, request.request_id
                            limit queue_sizes.max
                        )
                        union all
                        (
                            select request.created_at
                            from lock.request
                            where request.queue_id = queue.id
                              and request.settled_at is null
                              and request.available_at is null
                            order by request.request_id + 0
                            limit queue_sizes.max
                        )
                    ) as piece
                    limit queue_sizes.max
                )
                union all
                (
                    select false, request.created_at
                    from lock.request
                    where request.queue_id = queue.id
                      and request.settled_at is null
                      and request.available_at > right_now
                    order by request.available_at, request.request_id
                    limit queue_sizes.max
                )
            ) as entry
        ) as outstanding
    )
    select
        coalesce(size.kind, paused.kind)::text,
        coalesce(size.id, paused.queue_id)::text,
        least(coalesce(size.ready + size.ready_by_key, 0), queue_sizes.max),
        coalesce(size.delayed, 0),
        case when size.timed is not null then least(size.timed + size.endless, queue_sizes.max) end,
        size.overdue,
        coalesce(size.dead, 0),
        least(size.oldest_ready, size.oldest_by_key),
        paused.paused_at,
        paused.reason,
        size.endless,
        coalesce(size.waiting, 0)
    from size
    full join (
        select queue_pause.kind, queue_pause.queue_id, queue_pause.paused_at, queue_pause.reason
        from lock.queue_pause
        where queue_pause.resumed_at is null
    ) as paused on paused.kind = size.kind and paused.queue_id = size.id
    where paused.kind is not null
       or size.ready + size.ready_by_key + size.delayed + coalesce(size.timed + size.endless + size.overdue + size.waiting, 0) + size.dead > 0;
end;
$$;

comment on function lock.queue_sizes(integer) is
    'lock.queue_depth at a bounded cost, for monitors. It has the same columns, but each count '
    'ends at max (1000). Of each kind it looks at no more than max queues, by name. The '
    'oldest_ready of requests is the oldest of the first max that are ready. Waits for nobody, '
    'changes nothing, works on a standby. It costs some index entries for each queue, and at most '
    'max for each count. Errors: 22004 null, 22023 max below 1.';
