-- retry_task makes a task new once more, with so many captures ahead of it; false: a worker has it
-- in progress.
create or replace function lock.retry_task(
    id            text,
    retries_left  integer,
    queue_id      text  default 'default'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(retry_task.id, 'id');
    perform lock_internal.check_id(retry_task.queue_id, 'queue_id');
    perform lock_internal.check_count(coalesce(retry_task.retries_left, 1), 'retries_left');
    update lock.task
    set status = 'new',
        tries = 0,
        retries_left = retry_task.retries_left,
        key_number = lock_internal.key_number(task.queue_id, task.key),
        available_at = clock_timestamp(),
        deadline = null,
        changed_at = clock_timestamp()
    where task.queue_id = retry_task.queue_id
      and task.id = retry_task.id
      and task.status <> 'in_progress';
    if not found then
        perform lock_internal.check_known(retry_task.id, retry_task.queue_id);
        return false;
    end if;
    perform lock_internal.wake('lock_task', retry_task.queue_id);
    return true;
end;
$$;

comment on function lock.retry_task(text, integer, text) is
    'Revives a task, such as a dead letter of lock.dead_letter. The task is new, available now, '
    'with retries_left captures ahead (null: any number). Back-off starts afresh: tries is 0. '
    'False: it is in_progress; settle it first. Its attempt goes on counting. Waits while another '
    'transaction is changing the task. Wakes idle workers at commit. Errors: P0002 unknown task; '
    '22004 null id or queue_id; 22023 bad id, retries_left below 1.';
