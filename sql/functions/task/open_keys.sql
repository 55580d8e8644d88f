-- open_keys lists the keys of a queue that have a task waiting and fewer than per_key in progress,
-- in turn: from the one behind turn to turn itself.
--
-- It hops from key to key in the index, so a key's backlog costs no more than one task. It has no
-- settings, so that a query that has it in its from clause takes it in as a part of its own plan,
-- and reads no further than it needs. The case is how the index says it.
create or replace function lock_internal.open_keys(
    queue_id  text,
    statuses  text[],
    per_key   integer,
    turn      bigint
)
returns setof bigint
language sql
stable
as $$
    with recursive hop (number, lap) as (
        select open_keys.turn, 0
        union all
        select next.number, next.lap
        from hop
        cross join lateral (
            (
                select task.key_number as number, hop.lap
                from lock.task
                where task.queue_id = open_keys.queue_id
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.key_number > hop.number
                  and task.key_number <= case hop.lap when 0 then 9223372036854775807 else open_keys.turn end
                order by task.key_number
                limit 1
            )
            union all
            (
                select task.key_number, 1
                from lock.task
                where hop.lap = 0
                  and task.queue_id = open_keys.queue_id
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.key_number <= open_keys.turn
                order by task.key_number
                limit 1
            )
            limit 1
        ) as next
    )
    select hop.number
    from hop
    where (hop.lap = 1 or hop.number > open_keys.turn)
      and open_keys.per_key > (
        select count(*)
        from lock.task
        where task.queue_id = open_keys.queue_id
          and task.key_number = hop.number
          and case task.status when 'in_progress' then 1 else 0 end = 1
      )
      and exists (
        select
        from lock.task
        where task.queue_id = open_keys.queue_id
          and task.key_number = hop.number
          and case task.status when 'in_progress' then 1 else 0 end = 0
          and task.status = any (open_keys.statuses::lock.task_status[])
      );
$$;
