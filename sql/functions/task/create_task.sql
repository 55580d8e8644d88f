-- create_task adds a task to a queue; false: the queue has a task of this id already, and it stays
-- as it is.
--
-- When two calls create the same id at once, the second waits for the first's transaction. It
-- creates the task when that one rolls back.
create or replace function lock.create_task(
    id            text,
    queue_id      text              default 'default',
    status        lock.task_status  default 'new',
    retries_left  integer           default null,
    timeout       interval          default '5 minutes',
    payload       jsonb             default null,
    available_at  timestamptz       default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    if (
        octet_length(create_task.id) between 1 and 1024 and octet_length(create_task.queue_id) between 1 and 1024
        and create_task.status <> 'in_progress' and coalesce(create_task.retries_left, 1) >= 1
        and coalesce(isfinite(create_task.available_at), true)
        and coalesce(
            create_task.timeout > interval '0' and create_task.timeout < interval '30 days'
            and extract(year from create_task.timeout) = 0 and extract(month from create_task.timeout) = 0,
            create_task.timeout is null
        )
    ) is not true then
        perform lock_internal.check_id(create_task.id, 'id');
        perform lock_internal.check_task(create_task.queue_id, create_task.status, create_task.retries_left, create_task.timeout, create_task.available_at);
    end if;
    insert into lock.task (queue_id, id, status, retries_left, timeout, payload, available_at)
    values (
        create_task.queue_id, create_task.id, create_task.status, create_task.retries_left, create_task.timeout, create_task.payload,
        coalesce(create_task.available_at, clock_timestamp())
    )
    on conflict on constraint task_pkey do nothing;
    if not found then
        return false;
    end if;
    -- lock_internal.wake without its note, which costs a single task more than it saves. The insert
    -- has given the transaction its id.
    perform pg_notify('lock_task', create_task.queue_id)
    from lock_internal.must_notify('lock_task', create_task.queue_id);
    return true;
end;
$$;

comment on function lock.create_task(
    text, text, lock.task_status, integer, interval, jsonb, timestamptz
) is
    'Adds a task; false: the queue has one of this id already, which stays as it is. '
    'retries_left: how many captures it may have (null: any number, 1: one try). timeout: how '
    'long a capture may hold it before the next capture takes it over. Null means for ever: then '
    'a worker that dies keeps its task. available_at: no capture before that time (null: now). '
    'Waits only for an open transaction that creates the same id. Wakes the queue''s idle workers '
    'at commit. Errors: 22004 null id, queue_id or status; 22023 empty or longer than 1024 bytes, '
    'in_progress, retries_left below 1, timeout not positive or with months, infinite '
    'available_at. From the state transition, retries and queues of the SQL locks article.';
