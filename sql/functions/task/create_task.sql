-- create_task adds a task to a queue; false: the queue has a task of this id already, and it stays
-- as it is. With again it makes a done one new.
--
-- When two calls create the same id at once, the second waits for the first's transaction. It
-- creates the task when that one rolls back. With again a task may be deleted between the
-- statements: so it is created, made new, or seen not to be done.
create or replace function lock.create_task(
    id            text,
    queue_id      text              default 'default',
    status        lock.task_status  default 'new',
    retries_left  integer           default null,
    timeout       interval          default '5 minutes',
    payload       jsonb             default null,
    available_at  timestamptz       default null,
    key           text              default null,
    again         boolean           default false
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    number  bigint;
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
        and coalesce(octet_length(create_task.key), 1) between 1 and 1024
        and create_task.again is not null
    ) is not true then
        perform lock_internal.check_id(create_task.id, 'id');
        perform lock_internal.check_task(create_task.queue_id, create_task.status, create_task.retries_left, create_task.timeout, create_task.available_at);
        if create_task.key is not null then
            perform lock_internal.check_id(create_task.key, 'key');
        end if;
        if create_task.again is null then
            raise exception 'again must not be null'
                using errcode = 'null_value_not_allowed',
                      hint = 'Pass true to make a done task new, or false.';
        end if;
    end if;
    if create_task.key is not null and create_task.status <> 'done' and coalesce(create_task.available_at <= clock_timestamp(), true) then
        number := lock_internal.key_number(create_task.queue_id, create_task.key);
    end if;
    for round in 1 .. 100 loop
        insert into lock.task (queue_id, id, status, retries_left, timeout, payload, available_at, key, key_number)
        values (
            create_task.queue_id, create_task.id, create_task.status, create_task.retries_left, create_task.timeout, create_task.payload,
            coalesce(create_task.available_at, clock_timestamp()), create_task.key, number
        )
        on conflict on constraint task_pkey do nothing;
        exit when found;
        if not create_task.again then
            return false;
        end if;
        update lock.task
        set status = create_task.status,
            tries = 0,
            retries_left = create_task.retries_left,
            timeout = create_task.timeout,
            payload = create_task.payload,
            key = create_task.key,
            key_number = number,
            created_at = clock_timestamp(),
            available_at = coalesce(create_task.available_at, clock_timestamp()),
            changed_at = clock_timestamp()
        where task.queue_id = create_task.queue_id
          and task.id = create_task.id
          and task.status = 'done';
        exit when found;
        perform from lock.task where task.queue_id = create_task.queue_id and task.id = create_task.id;
        if found then
            return false;
        elsif round = 100 then
            perform lock_internal.give_up('task', create_task.id);
        end if;
    end loop;
    -- lock_internal.wake without its note, which costs a single task more than it saves. The insert
    -- has given the transaction its id.
    perform pg_notify('lock_task', create_task.queue_id)
    from lock_internal.must_notify('lock_task', create_task.queue_id);
    return true;
end;
$$;

comment on function lock.create_task(
    text, text, lock.task_status, integer, interval, jsonb, timestamptz, text, boolean
) is
    'Adds a task; false: the queue has one of this id already, which stays as it is. '
    'retries_left: how many captures it may have (null: any number, 1: one try). timeout: how '
    'long a capture may hold it before the next capture takes it over. Null means for ever: '
    'then a worker that dies keeps its task. available_at: no capture before that time (null: '
    'now). The earliest is captured first: pass a time that is past to put a task in front. '
    'key: of the tasks of one key no more are in progress at once than lock.limit_queue allows, '
    '1 by default; see docs/task.md (null: no key). Tasks with a key are captured under READ '
    'COMMITTED only. again: a task of this id that is done is made new as well, with what is '
    'passed here. Its attempt goes on counting. One that is not done stays as it is. Waits '
    'while an open transaction creates the same id, and with again while one changes the done '
    'task. Wakes the queue''s idle workers at commit. Errors: 22004 null id, queue_id, status '
    'or again; 22023 an id or key that is empty or longer than 1024 bytes, in_progress, '
    'retries_left below 1, timeout not positive or with months, infinite available_at; 40001 '
    'under REPEATABLE READ and SERIALIZABLE. From the state transition, retries and queues of '
    'the SQL locks article.';
