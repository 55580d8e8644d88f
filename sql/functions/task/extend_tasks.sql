-- extend_tasks is extend_task for many tasks at once. It returns the ids that are still the
-- caller's.
--
-- The tasks are locked in the order in which lock_internal.settle goes through them, so the two
-- close no circle. The new deadlines count from the end of each wait.
create or replace function lock.extend_tasks(
    ids       text[],
    attempts  bigint[],
    timeout   interval,
    queue_id  text  default 'default'
)
returns setof text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    perform lock_internal.check_ids(extend_tasks.ids);
    perform lock_internal.check_id(extend_tasks.queue_id, 'queue_id');
    perform lock_internal.check_interval(extend_tasks.timeout, 'timeout', true);
    if extend_tasks.attempts is null or coalesce(array_ndims(extend_tasks.attempts), 1) = 1 and array_position(extend_tasks.attempts, null) is not null then
        raise exception 'attempts and their elements must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the attempt that lock.capture returned for each id.';
    elsif array_ndims(extend_tasks.attempts) > 1 or cardinality(extend_tasks.attempts) <> cardinality(extend_tasks.ids) then
        raise exception '% ids and % attempts', cardinality(extend_tasks.ids), cardinality(extend_tasks.attempts)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass arrays of the same length.';
    end if;
    return query
        with held as materialized (
            select task.id
            from unnest(extend_tasks.ids, extend_tasks.attempts) as given(id, attempt)
            join lock.task
                on task.queue_id = extend_tasks.queue_id
                and task.id = given.id
                and task.attempt = given.attempt
                and task.status = 'in_progress'
            -- Always true: so the planner takes the list for short, and uses the primary key.
            where octet_length(given.id) & 0 = 0
            order by given.id
            for no key update of task
        )
        update lock.task
        set deadline = (lock_internal.utc(clock_timestamp()) + extend_tasks.timeout) at time zone interval '0'
        from held
        where task.queue_id = extend_tasks.queue_id
          and task.id = held.id
        returning task.id;
end;
$$;

comment on function lock.extend_tasks(text[], bigint[], interval, text) is
    'Gives the holder of many attempts timeout from now on, as lock.extend_task does for one, and '
    'returns the ids that are still the caller''s. The work on the others should stop: their '
    'attempts are stale, or there are no such tasks. attempts: one for each id. Waits while '
    'another transaction is changing one of the tasks. Errors: 22004 a null; 22023 arrays of '
    'different lengths, an id twice, bad id, timeout not positive, infinite or with months.';
