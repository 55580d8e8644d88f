-- settle ends the attempts that are not stale, every id with its own result, delay and message. It
-- returns how many.
--
-- The statement that writes compares the attempt, so a worker that was taken over changes nothing.
-- Two calls that settle the same tasks go through them in the same order. The callers' settings
-- make its plan.
--
-- new gives a task back to callers that capture from statuses. It gets the first of these when new
-- is not among them. dead is failed with no capture left. retry is failed with a pause that grows
-- with the tries. It is dead at max_tries when the task has no limit of its own.
create or replace function lock_internal.settle(
    ids        text[],
    attempts   bigint[],
    results    text[],
    queue_id   text,
    delays     interval[],
    messages   text[],
    shortest   interval  default '1 second',
    longest    interval  default '1 hour',
    max_tries  integer   default 25,
    statuses   text[]    default '{new,failed}'
)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    given    constant integer := cardinality(settle.ids);
    back     text := 'new';
    settled  bigint;
begin
    -- Most calls are right at one look.
    if (
        array_ndims(settle.ids) = 1 and octet_length(settle.queue_id) between 1 and 1024
        and greatest(array_ndims(settle.attempts), array_ndims(settle.results)) = 1
        and cardinality(settle.attempts) = given and array_position(settle.attempts, null) is null
        and cardinality(settle.results) = given and settle.results <@ '{new,done,failed,dead,retry}'
        and settle.delays is null and settle.messages is null and settle.statuses = '{new,failed}'
    ) is not true then
        if array_ndims(settle.ids) is distinct from 1 then
            perform lock_internal.check_ids(settle.ids);
        end if;
        if (octet_length(settle.queue_id) between 1 and 1024) is not true then
            perform lock_internal.check_id(settle.queue_id, 'queue_id');
        end if;
        if greatest(array_ndims(settle.attempts), array_ndims(settle.results), array_ndims(settle.delays), array_ndims(settle.messages)) > 1 then
            raise exception 'attempts, results, delays and messages must have one dimension'
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass arrays of the same length.';
        elsif settle.attempts is null or array_position(settle.attempts, null) is not null
            or settle.results is null or array_position(settle.results, null) is not null
        then
            raise exception 'attempts, results and their elements must not be null'
                using errcode = 'null_value_not_allowed',
                      hint = 'Pass the attempt that lock.capture returned for each id, and new, done, failed, dead or retry.';
        elsif cardinality(settle.attempts) <> given or cardinality(settle.results) <> given
            or cardinality(settle.delays) <> given or cardinality(settle.messages) <> given
        then
            raise exception '% ids, % attempts, % results, % delays and % messages', given, cardinality(settle.attempts), cardinality(settle.results),
                    coalesce(cardinality(settle.delays), given), coalesce(cardinality(settle.messages), given)
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass arrays of the same length.';
        elsif not settle.results <@ '{new,done,failed,dead,retry}' then
            raise exception 'a task is settled as new, done, failed, dead or retry, not as %', left(settle.results::text, 60)
                using errcode = 'invalid_parameter_value',
                      hint = 'Use lock.extend_task to hold a task for longer.';
        end if;
        if settle.delays is not null then
            perform lock_internal.check_interval(delay, 'delay', true)
            from unnest(settle.delays) as delay
            where delay <> interval '0';
        end if;

        if settle.statuses is distinct from '{new,failed}' then
            perform lock_internal.check_statuses(settle.statuses);
            if 'new' <> all (settle.statuses) then
                back := settle.statuses[array_lower(settle.statuses, 1)];
            end if;
        end if;
    end if;

    update lock.task
    set status = case result.status when 'done' then lock.task_status 'done' when 'new' then back::lock.task_status else 'failed' end,
        tries = case result.status when 'done' then 0 when 'new' then task.tries - 1 else task.tries end,
        retries_left = case result.status
            when 'done' then task.retries_left
            when 'new' then task.retries_left + 1
            when 'dead' then 0
            when 'retry' then case when task.retries_left is not null or coalesce(task.tries < settle.max_tries, true) then task.retries_left else 0 end
            else task.retries_left
        end,
        available_at = (lock_internal.utc(clock_timestamp()) + case
            when result.delay > interval '0' then result.delay
            when result.status = 'retry' then lock_internal.backoff(task.tries, settle.shortest, settle.longest)
            else interval '0'
        end) at time zone interval '0',
        key_number = case
            when (result.status = 'new' or result.status = 'failed' and task.retries_left is distinct from 0) and (result.delay > interval '0') is not true
            then task.key_number
        end,
        deadline = null,
        message = case when result.status <> 'done' then coalesce(nullif(left(result.message, 4000), ''), task.message) end,
        changed_at = clock_timestamp()
    from (
        select listed.id, listed.attempt, listed.status, listed.delay, listed.message
        from unnest(settle.ids, settle.attempts, settle.results, settle.delays, settle.messages) as listed(id, attempt, status, delay, message)
        -- Always true: so the planner takes the list for short, and looks up ids by primary key.
        where octet_length(listed.id) & 0 = 0
        order by listed.id
    ) as result
    where task.queue_id = settle.queue_id
      and task.id = result.id
      and task.attempt = result.attempt
      and task.status = 'in_progress';
    get diagnostics settled = row_count;
    -- An id that is bad settles nothing, and one that is given twice settles one row.
    if settled < given then
        perform lock_internal.check_ids(settle.ids);
    end if;
    if settled > 0 and settle.results && '{new,failed,retry}' then
        perform lock_internal.wake('lock_task', settle.queue_id);
    end if;
    return settled;
end;
$$;
