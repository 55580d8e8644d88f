-- get_task returns a task as it is stored; no row: there is none.
create or replace function lock.get_task(
    id        text,
    queue_id  text  default 'default'
)
returns setof lock.task
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(get_task.id, 'id');
    perform lock_internal.check_id(get_task.queue_id, 'queue_id');
    return query
        select task.*
        from lock.task
        where task.queue_id = get_task.queue_id
          and task.id = get_task.id;
end;
$$;

comment on function lock.get_task(text, text) is
    'A task as it is stored; no row: there is none. Never waits. Errors: 22004 null, 22023 empty '
    'or too long.';
