-- settle ends the attempts that are still theirs: every id in its own status, with its own delay; returns how many.
--
-- The attempt is compared in the statement that writes, so a worker that was taken over changes nothing. Two that settle
-- the same tasks go through them in the same order.
create or replace function lock_internal.settle(
    ids       text[],
    attempts  bigint[],
    results   text[],
    queue_id  text,
    delays    interval[]
)
returns bigint
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
declare
    given    constant integer := cardinality(settle.ids);
    settled  bigint;
begin
    perform lock_internal.check_ids(settle.ids);
    if settle.queue_id is null or settle.queue_id = '' or octet_length(settle.queue_id) > 1024 then
        perform lock_internal.check_id(settle.queue_id, 'queue_id');
    end if;
    if greatest(array_ndims(settle.attempts), array_ndims(settle.results), array_ndims(settle.delays)) > 1 then
        raise exception 'attempts, statuses and delays must have one dimension'
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass arrays of the same length.';
    elsif settle.attempts is null or array_position(settle.attempts, null) is not null
        or settle.results is null or array_position(settle.results, null) is not null
    then
        raise exception 'attempts, statuses and their elements must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the attempt that lock.capture returned for each id, and new, done or failed.';
    elsif cardinality(settle.attempts) <> given or cardinality(settle.results) <> given or cardinality(settle.delays) <> given then
        raise exception '% ids, % attempts, % statuses and % delays', given, cardinality(settle.attempts), cardinality(settle.results),
                coalesce(cardinality(settle.delays), given)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass arrays of the same length.';
    elsif not settle.results <@ '{new,done,failed}' then
        raise exception 'a task is settled as new, done or failed, not as %', left(settle.results::text, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'Use lock.extend_task to hold a task for longer.';
    end if;
    if settle.delays is not null then
        perform lock_internal.check_interval(delay, 'delay', true)
        from unnest(settle.delays) as delay
        where delay <> interval '0';
    end if;

    update lock.task
    set status = result.status::lock.task_status,
        available_at = (lock_internal.utc(clock_timestamp()) + coalesce(result.delay, '0')) at time zone interval '0',
        deadline = null,
        changed_at = clock_timestamp()
    from (
        select listed.id, listed.attempt, listed.status, listed.delay
        from unnest(settle.ids, settle.attempts, settle.results, settle.delays) as listed(id, attempt, status, delay)
        where octet_length(listed.id) & 0 = 0  -- always, so that the list is taken for short, and each id is looked up by the primary key
        order by listed.id
    ) as result
    where task.queue_id = settle.queue_id
      and task.id = result.id
      and task.attempt = result.attempt
      and task.status = 'in_progress';
    get diagnostics settled = row_count;
    if settled > 0 and settle.results && '{new,failed}' then
        perform lock_internal.wake('lock_task', settle.queue_id);
    end if;
    return settled;
end;
$$;
