-- is_paused gives a row when a queue is paused. It costs one descent of an index that holds only
-- what is paused.
--
-- A query that has it in its from clause takes it in as a part of its own plan, like must_notify.
create or replace function lock_internal.is_paused(
    kind      text,
    queue_id  text
)
returns setof boolean
language sql
stable
as $$
    select true
    from lock.queue_pause
    where queue_pause.kind = is_paused.kind
      and queue_pause.queue_id = is_paused.queue_id
      and queue_pause.resumed_at is null;
$$;
