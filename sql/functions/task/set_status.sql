-- set_status ends an attempt; false: the attempt is stale. Without attempt it gives a task another
-- status, whichever worker has it.
--
-- The statement that writes compares the attempt, so a worker that was taken over cannot overwrite
-- its successor. Without an attempt nothing is compared. The worker that has the task becomes stale
-- instead: its attempt is no longer in_progress.
create or replace function lock.set_status(
    id        text,
    status    lock.task_status,
    attempt   bigint    default null,
    queue_id  text      default 'default',
    delay     interval  default '0',
    message   text      default null,
    dead      boolean   default false
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    keyed  boolean;
begin
    if (
        octet_length(set_status.id) between 1 and 1024 and octet_length(set_status.queue_id) between 1 and 1024
        and set_status.status <> 'in_progress' and not set_status.dead
    ) is not true then
        perform lock_internal.check_id(set_status.id, 'id');
        perform lock_internal.check_task(set_status.queue_id, set_status.status, null, null, null);
        perform lock_internal.check_dead(set_status.dead, set_status.status);
    end if;
    if set_status.delay is distinct from interval '0' then
        perform lock_internal.check_interval(set_status.delay, 'delay', true);
    end if;
    update lock.task
    set status = set_status.status,
        tries = case
            when set_status.status = 'done' then 0
            when set_status.status = 'new' and set_status.attempt is not null then task.tries - 1
            else task.tries
        end,
        retries_left = case
            when set_status.dead then 0
            when set_status.status = 'new' and set_status.attempt is not null then task.retries_left + 1
            else task.retries_left
        end,
        available_at = (lock_internal.utc(clock_timestamp()) + set_status.delay) at time zone interval '0',
        key_number = case
            when set_status.status <> 'done' and not set_status.dead and set_status.delay = interval '0'
                and (task.retries_left is distinct from 0 or set_status.status = 'new' and set_status.attempt is not null)
            then lock_internal.key_number(task.queue_id, task.key)
        end,
        deadline = null,
        message = case when set_status.status <> 'done' then coalesce(nullif(left(set_status.message, 4000), ''), task.message) end,
        changed_at = clock_timestamp()
    where task.queue_id = set_status.queue_id
      and task.id = set_status.id
      and (set_status.attempt is null or task.attempt = set_status.attempt and task.status = 'in_progress')
    returning task.key is not null into keyed;
    if not found then
        perform lock_internal.check_known(set_status.id, set_status.queue_id);
        return false;
    end if;
    if set_status.status <> 'done' and not set_status.dead or keyed then
        perform lock_internal.wake('lock_task', set_status.queue_id);
    end if;
    return true;
end;
$$;

comment on function lock.set_status(
    text, lock.task_status, bigint, text, interval, text, boolean
) is
    'Settles a captured task as done, failed or (to give it back) new. Pass the attempt that '
    'lock.capture returned. False, and nothing changes: the task was taken over, settled or set '
    'by another caller since. new makes that capture as if it had not been: tries - 1, '
    'retries_left + 1. Without attempt: sets any task, and makes the attempt of the worker that '
    'has it stale. That is for operators, and for the article''s plain state machine. It does '
    'what it is told and backs off from nothing by itself. delay: no capture of the task before '
    'that has passed. message: the last error. Its first 4000 characters are kept until the '
    'task is done (null: the one before). dead, only with failed: no capture is left, and the '
    'task is a dead letter. Waits while another transaction is changing the task. Wakes idle '
    'workers, except for done and dead without a key. Errors: P0002 unknown task; 22004 null; '
    '22023 in_progress, bad id, delay negative, infinite or with months, dead without failed.';
