-- create_tasks adds many tasks to a queue in one statement, and returns how many were new.
--
-- They become available a microsecond apart, in the order of ids. So captures take them in that
-- order and can remember how far they have come. They are inserted in the order of their ids, so
-- that two calls with the same ids cannot deadlock.
create or replace function lock.create_tasks(
    ids           text[],
    queue_id      text              default 'default',
    status        lock.task_status  default 'new',
    retries_left  integer           default null,
    timeout       interval          default '5 minutes',
    payload       jsonb             default null,
    available_at  timestamptz       default null,
    payloads      jsonb[]           default null,
    keys          text[]            default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    began  constant timestamptz := coalesce(create_tasks.available_at, clock_timestamp());
    due    constant boolean := create_tasks.status <> 'done' and began <= clock_timestamp();
    added  bigint;
begin
    perform lock_internal.check_ids(create_tasks.ids);
    perform lock_internal.check_task(create_tasks.queue_id, create_tasks.status, create_tasks.retries_left, create_tasks.timeout, create_tasks.available_at);
    if cardinality(create_tasks.payloads) <> cardinality(create_tasks.ids) then
        raise exception '% payloads for % ids', cardinality(create_tasks.payloads), cardinality(create_tasks.ids)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass one payload for each id, one for all ids as payload, or none at all.';
    elsif cardinality(create_tasks.keys) <> cardinality(create_tasks.ids) then
        raise exception '% keys for % ids', cardinality(create_tasks.keys), cardinality(create_tasks.ids)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass one key for each id, or null.';
    end if;
    perform lock_internal.check_id(given.key, 'key')
    from unnest(create_tasks.keys) as given (key)
    where octet_length(given.key) not between 1 and 1024;
    insert into lock.task (queue_id, id, status, retries_left, timeout, payload, available_at, key, key_number)
    select
        create_tasks.queue_id, given.id, create_tasks.status, create_tasks.retries_left, create_tasks.timeout,
        coalesce(given.payload, create_tasks.payload), began + (given.place - 1) * interval '1 microsecond',
        given.key, case when due then lock_internal.key_number(create_tasks.queue_id, given.key) end
    from unnest(create_tasks.ids, create_tasks.payloads, create_tasks.keys) with ordinality as given(id, payload, key, place)
    order by given.id
    on conflict on constraint task_pkey do nothing;
    get diagnostics added = row_count;
    if added > 0 then
        perform lock_internal.wake('lock_task', create_tasks.queue_id);
    end if;
    return added;
end;
$$;

comment on function lock.create_tasks(
    text[], text, lock.task_status, integer, interval, jsonb, timestamptz, jsonb[],
    text[]
) is
    'Adds many tasks at once and returns how many were new. The arguments are those of '
    'lock.create_task. payloads: one for each id; where it is not null, it stands instead of '
    'payload. keys: one for each id, or null. Captures take the tasks in the order of ids. '
    'Waits only for open transactions that create the same ids. Errors: those of '
    'lock.create_task, 22004 a null id, 22023 an id twice or arrays of different lengths.';
