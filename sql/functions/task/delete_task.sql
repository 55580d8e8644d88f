-- delete_task deletes a task that nobody has in progress; false: there is none.
create or replace function lock.delete_task(
    id        text,
    queue_id  text  default 'default'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(delete_task.id, 'id');
    perform lock_internal.check_id(delete_task.queue_id, 'queue_id');
    delete from lock.task
    where task.queue_id = delete_task.queue_id
      and task.id = delete_task.id
      and task.status <> 'in_progress';
    return found;
end;
$$;

comment on function lock.delete_task(text, text) is
    'Deletes a task, whatever its status, unless it is in_progress. False: it is in_progress, or '
    'there is no such task. To stop one that is in_progress, settle it first: lock.set_status(id, '
    '''failed'', dead => true). Its id can be created again; then its attempt begins at 0. Waits '
    'while another transaction is changing the task. Errors: 22004 null id or queue_id; 22023 '
    'empty or longer than 1024 bytes; 40001 under REPEATABLE READ and SERIALIZABLE.';
