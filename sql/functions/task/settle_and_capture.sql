-- settle_and_capture is a worker's steady state in one call: it settles the last batch, then
-- captures the next. It gives each attempt of a task to one caller only.
--
-- One statement chooses a row and locks it (for update skip locked). The row stays locked until the
-- update. So a capture skips a row that another capture is taking. A row that another capture has
-- just taken fails the statement's recheck: its status has changed. Under READ COMMITTED the
-- recheck may leave a stray lock on such a row until the transaction ends. The row's new owner,
-- when it settles, then waits for us. Hence settling comes before capturing, and nothing that waits
-- comes after it. So no circle can close. Under REPEATABLE READ and SERIALIZABLE such a row is
-- 40001.
--
-- While an old snapshot is open, the index entries of tasks long gone cannot be removed. A look
-- from the beginning reads through them all. since is for callers that know how far they have come.
-- A task can still turn up behind it: after a rollback, a long transaction, or with an earlier
-- available_at. A look without since finds it. That look also finds what timed out: a deadline says
-- nothing about available_at.
--
-- A task with a key is not among those that the looks by status find: it waits in an index of its
-- own, by key, from when it is due. lock_internal.choose_by_key takes from there. One that was not
-- due when it was written stands among the others until a look meets it.
--
-- Whoever leaves a place in a key notifies idle workers, unless it fills the place itself. It looks
-- at nothing that others do meanwhile. So it is a producer as lock_internal.wake means it: a task
-- that is created at the same time is announced by its creator, and the place by us.
--
-- Plans are kept for a session and must be right for every size of the table: hence the settings.
-- lock_internal.settle runs under them, too.
create or replace function lock.settle_and_capture(
    ids        text[],
    attempts   bigint[],
    results    text[],
    max        integer,
    queue_id   text         default 'default',
    statuses   text[]       default '{new,failed}',
    owner      text         default null,
    delays     interval[]   default null,
    messages   text[]       default null,
    since      timestamptz  default null,
    shortest   interval     default '1 second',
    longest    interval     default '1 hour',
    max_tries  integer      default 25,
    reports    boolean      default false
)
returns setof lock.task
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
    began      timestamptz;
    mark       timestamptz := coalesce(settle_and_capture.since, '-infinity');
    steps      lock.task_status[];
    more       lock.task_status[] := array[]::lock.task_status[];
    rounds     integer := 0;
    wanted     lock.task_status;
    left_over  integer := settle_and_capture.max;
    aside      integer := 0;
    chosen     text[];
    moved      bigint;
    paused     boolean;
    keyed      boolean;
    freed      bigint[];
    filled     bigint[];
begin
    if settle_and_capture.shortest is distinct from '1 second' or settle_and_capture.longest is distinct from '1 hour' then
        perform lock_internal.check_interval(settle_and_capture.shortest, 'shortest', true);
        perform lock_internal.check_interval(settle_and_capture.longest, 'longest', true);
        if settle_and_capture.longest < settle_and_capture.shortest then
            raise exception 'longest is %, and shorter than shortest, which is %', settle_and_capture.longest, settle_and_capture.shortest
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass the bounds of the pause between two tries.';
        end if;
    end if;
    if settle_and_capture.max_tries < 1 then
        perform lock_internal.check_count(settle_and_capture.max_tries, 'max_tries');
    end if;
    -- One look for all that most queues do not have.
    select
        exists (select from lock_internal.is_paused('task', settle_and_capture.queue_id)),
        exists (select from lock.task where task.queue_id = settle_and_capture.queue_id and task.key_number is not null)
    into paused, keyed;
    if settle_and_capture.ids is distinct from '{}' then
        if keyed then
            freed := lock_internal.held_keys(settle_and_capture.queue_id, settle_and_capture.ids, settle_and_capture.attempts);
        end if;
        moved := lock_internal.settle(
            settle_and_capture.ids, settle_and_capture.attempts, settle_and_capture.results, settle_and_capture.queue_id,
            settle_and_capture.delays, settle_and_capture.messages, settle_and_capture.shortest, settle_and_capture.longest,
            settle_and_capture.max_tries, settle_and_capture.statuses
        );
        -- What an earlier call has settled in the same way, whose answer was lost, is not stale.
        if settle_and_capture.reports
            and (moved < cardinality(settle_and_capture.ids) or settle_and_capture.results && '{new,failed,dead,retry}')
        then
            return query
                select reported.*
                from unnest(settle_and_capture.ids, settle_and_capture.attempts, settle_and_capture.results) as given(id, attempt, result)
                join lock.task
                    on task.queue_id = settle_and_capture.queue_id
                    and task.id = given.id
                cross join lateral (
                    select task.attempt <> given.attempt or given.result <> 'new' and (given.result = 'done') <> (task.status = 'done')
                ) as late(is_so)
                cross join jsonb_populate_record(task, case
                    when late.is_so then jsonb_build_object('attempt', given.attempt, 'status', 'in_progress')
                    else '{}'
                end) as reported
                where (late.is_so or given.result <> 'done')
                  and octet_length(given.id) & 0 = 0;
        end if;
    end if;
    if settle_and_capture.max = 0 then
        perform lock_internal.check_id(settle_and_capture.queue_id, 'queue_id');
        if freed is not null then
            perform lock_internal.wake('lock_task', settle_and_capture.queue_id);
        end if;
        return;
    end if;
    began := clock_timestamp();
    if (
        settle_and_capture.max > 0 and octet_length(settle_and_capture.queue_id) between 1 and 1024
        and cardinality(settle_and_capture.statuses) > 0 and settle_and_capture.statuses <@ '{new,done,failed}'
        and coalesce(octet_length(settle_and_capture.owner), 1) between 1 and 1024
    ) is not true then
        perform lock_internal.check_count(settle_and_capture.max, 'max');
        perform lock_internal.check_id(settle_and_capture.queue_id, 'queue_id');
        perform lock_internal.check_statuses(settle_and_capture.statuses);
        perform lock_internal.check_id(settle_and_capture.owner, 'owner');
    end if;

    if paused then
        if freed is not null then
            perform lock_internal.wake('lock_task', settle_and_capture.queue_id);
        end if;
        return;
    end if;

    -- What timed out comes first, longest overdue first. A timed-out task without another retry
    -- becomes a dead letter, and does not count.
    if settle_and_capture.since is null then
        select array_agg(held.id) into chosen
        from (
            select task.id
            from lock.task
            where task.queue_id = settle_and_capture.queue_id
              and task.status = 'in_progress'
              and task.deadline <= began
            order by task.deadline
            limit left_over
            for update skip locked
        ) as held;
        if chosen is not null then
            if keyed then
                select freed || array_agg(task.key_number)
                into freed
                from lock.task
                where task.id = any (chosen)
                  and task.queue_id = settle_and_capture.queue_id
                  and task.key is not null;
            end if;
            return query
                with buried as (
                    update lock.task
                    set status = 'failed',
                        retries_left = 0,
                        key_number = null,
                        available_at = began,
                        deadline = null,
                        message = 'not settled within its timeout',
                        changed_at = began
                    where task.id = any (chosen)
                      and task.queue_id = settle_and_capture.queue_id
                      and (task.retries_left = 0 or task.retries_left is null and task.tries >= settle_and_capture.max_tries)
                    returning task.*
                )
                select buried.*
                from buried
                where settle_and_capture.reports;
        end if;
    end if;

    steps := ('{in_progress}' || settle_and_capture.statuses)::lock.task_status[];
    -- Half of the room is for tasks that wait for their key, when there are any. What they leave is
    -- for the others. Conditions stand apart: each costs its start, even where it is not asked.
    if keyed and mark <= began then
        if exists (
            select
            from lock.task
            where task.queue_id = settle_and_capture.queue_id
              and task.key_number is not null
              and case task.status when 'in_progress' then 1 else 0 end = 0
        ) then
            perform lock_internal.check_read_committed('tasks with a key');
            aside := floor(settle_and_capture.max / 2.0 + random());
            mark := '-infinity';
            steps := steps || array[null]::lock.task_status[] || settle_and_capture.statuses::lock.task_status[];
        end if;
    end if;

    loop
        foreach wanted in array steps loop
            if wanted is null then
                -- Those that wait for their key. Why never too many are taken stands there.
                aside := 0;
                select by_key.ids, filled || by_key.numbers
                into chosen, filled
                from lock_internal.choose_by_key(settle_and_capture.queue_id, settle_and_capture.statuses, left_over) as by_key;
            elsif wanted <> 'in_progress' then
                -- The oldest of this status, along an index that holds nothing else.
                select array_agg(held.id) into chosen
                from (
                    select task.id
                    from lock.task
                    where task.queue_id = settle_and_capture.queue_id
                      and task.status = wanted
                      and task.status <> 'in_progress'
                      and task.retries_left is distinct from 0
                      and task.key_number is null
                      and task.available_at between mark and began
                    order by task.available_at
                    limit greatest(left_over - aside, 0)
                    for update skip locked
                ) as held;
            end if;
            continue when chosen is null;

            -- They are the caller's.
            return query
                with taken as (
                    update lock.task
                    set status = 'in_progress',
                        attempt = task.attempt + 1,
                        tries = task.tries + 1,
                        retries_left = task.retries_left - 1,
                        deadline = (lock_internal.utc(began) + task.timeout) at time zone interval '0',
                        owner = settle_and_capture.owner,
                        changed_at = began
                    where task.id = any (chosen)
                      and task.queue_id = settle_and_capture.queue_id
                      and task.status = coalesce(wanted, task.status)
                      and (task.key is null or task.key_number is not null)
                    returning task.*
                )
                select taken.*
                from taken
                order by taken.available_at;
            get diagnostics moved = row_count;
            left_over := left_over - moved;
            exit when left_over = 0;

            -- The rest have keys, and were not due when they were written. Now they wait for
            -- them.
            if wanted <> 'in_progress' and moved < cardinality(chosen) then
                perform lock_internal.check_read_committed('tasks with a key');
                perform lock_internal.move_due(settle_and_capture.queue_id, wanted);
                more := more || array[wanted, null];
            end if;
        end loop;
        exit when left_over = 0 or cardinality(more) = 0;
        -- What met its time in ten rounds is enough for one call.
        rounds := rounds + 1;
        steps := case when rounds < 10 then more else array[null]::lock.task_status[] end;
        more := array[]::lock.task_status[];
    end loop;

    -- Whoever leaves a place in a key, and does not fill it himself, says so.
    if freed is not null then
        perform lock_internal.wake('lock_task', settle_and_capture.queue_id)
        where exists (
            select
            from unnest(freed) as place (number)
            group by place.number
            having count(*) > (select count(*) from unnest(filled) as taken (number) where taken.number = place.number)
        );
    end if;
end;
$$;

comment on function lock.settle_and_capture(
    text[], bigint[], text[], integer, text, text[], text, interval[], text[], timestamptz,
    interval, interval, integer, boolean
) is
    'Settles a worker''s last batch, leaving out what is stale. Then it captures the next as '
    'lock.capture does, and returns that; max 0: captures nothing. One round trip and one commit '
    'for both, and no deadlock between workers. ids, attempts: as captured. results: one for each '
    'id. delays and messages, as in lock.set_status: one for each id, or null. It does what the '
    'results say. new: as if the task had not been captured; when statuses leave out new, it gets '
    'the first of them. done: done. failed: to be captured again after its delay, and without one '
    'at once. dead: failed, and no capture is left. retry: failed, to be captured again after its '
    'delay. Without a delay it pauses between shortest and longest: the pause doubles with its '
    'tries, with jitter. A retried task without a retries_left of its own is dead after max_tries '
    '(null: never). So is one whose time runs out. reports: what became of tasks is returned, '
    'too, before what is captured. One in_progress is stale, and has the attempt that was passed: '
    'its result was left out, since another attempt began or it was settled otherwise. Others are '
    'as they are now: those of ids that are not done, and dead letters that had run out of time. '
    'Pass empty arrays when there is nothing to settle. Errors: those of lock.set_statuses and '
    'lock.capture, 22023 bad shortest, longest or max_tries; then it neither settles nor captures.';
