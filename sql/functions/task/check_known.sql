-- check_known refuses a task that does not exist.
create or replace function lock_internal.check_known(
    id        text,
    queue_id  text
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from lock.task where task.queue_id = check_known.queue_id and task.id = check_known.id) then
        raise exception 'there is no task % in queue %', check_known.id, check_known.queue_id
            using errcode = 'no_data_found',
                  hint = 'Create it with lock.create_task, or pass the queue_id that it has.';
    end if;
end;
$$;
