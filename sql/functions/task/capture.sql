-- capture gives the caller at most max tasks of a queue, and each attempt of a task to one caller
-- only.
--
-- One statement chooses a row and locks it (for update skip locked). The row stays locked until the
-- update. So a capture skips a row that another capture is taking. A row that another capture has
-- just taken fails the statement's recheck: its status has changed. Under READ COMMITTED the
-- recheck may leave a stray lock on such a row until the transaction ends. The row's new owner,
-- when it settles, then waits for us. Hence settling comes before capturing, and nothing that waits
-- comes after it. Under REPEATABLE READ and SERIALIZABLE such a row is 40001.
--
-- While an old snapshot is open, the index entries of tasks long gone cannot be removed. A look
-- from the beginning reads through them all. since is for callers that know how far they have come.
-- A task can still turn up behind it: after a rollback, a long transaction, or with an earlier
-- available_at. A look without since finds it. That look also finds what timed out: a deadline says
-- nothing about available_at.
--
-- Plans are kept for a session and must be right for every size of the table: hence the settings.
create or replace function lock.capture(
    max        integer,
    queue_id   text         default 'default',
    statuses   text[]       default '{new,failed}',
    owner      text         default null,
    since      timestamptz  default null,
    max_tries  integer      default null
)
returns setof lock.task
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    began      constant timestamptz := clock_timestamp();
    mark       constant timestamptz := coalesce(capture.since, '-infinity');
    wanted     lock.task_status;
    left_over  integer := capture.max;
    chosen     text[];
    moved      integer;
begin
    if (
        capture.max > 0 and octet_length(capture.queue_id) between 1 and 1024
        and cardinality(capture.statuses) > 0 and capture.statuses <@ '{new,done,failed}'
        and coalesce(octet_length(capture.owner), 1) between 1 and 1024
        and coalesce(capture.max_tries, 1) > 0
    ) is not true then
        perform lock_internal.check_count(capture.max, 'max');
        perform lock_internal.check_id(capture.queue_id, 'queue_id');
        perform lock_internal.check_statuses(capture.statuses);
        perform lock_internal.check_count(coalesce(capture.max_tries, 1), 'max_tries');
        perform lock_internal.check_id(capture.owner, 'owner');
    end if;

    -- One descent of an index that holds only what is paused.
    if exists (
        select
        from lock.queue_pause
        where queue_pause.kind = 'task'
          and queue_pause.queue_id = capture.queue_id
          and queue_pause.resumed_at is null
    ) then
        return;
    end if;

    -- What timed out comes first, longest overdue first. A timed-out task without another retry
    -- becomes a dead letter, and does not count.
    if capture.since is null then
        select array_agg(held.id) into chosen
        from (
            select task.id
            from lock.task
            where task.queue_id = capture.queue_id
              and task.status = 'in_progress'
              and task.deadline <= began
            order by task.deadline
            limit left_over
            for update skip locked
        ) as held;
        if chosen is not null then
            update lock.task
            set status = 'failed',
                retries_left = 0,
                available_at = began,
                deadline = null,
                message = 'not settled within its timeout',
                changed_at = began
            where task.id = any (chosen)
              and task.queue_id = capture.queue_id
              and (task.retries_left = 0 or task.retries_left is null and task.tries >= capture.max_tries);
        end if;
    end if;

    foreach wanted in array ('{in_progress}' || capture.statuses)::lock.task_status[] loop
        -- The oldest of this status, along an index that holds nothing else.
        if wanted <> 'in_progress' then
            select array_agg(held.id) into chosen
            from (
                select task.id
                from lock.task
                where task.queue_id = capture.queue_id
                  and task.status = wanted
                  and task.status <> 'in_progress'
                  and task.retries_left is distinct from 0
                  and task.available_at between mark and began
                order by task.available_at
                limit left_over
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
                    owner = capture.owner,
                    changed_at = began
                where task.id = any (chosen)
                  and task.queue_id = capture.queue_id
                  and task.status = wanted
                returning task.*
            )
            select taken.*
            from taken
            order by taken.available_at;
        get diagnostics moved = row_count;
        left_over := left_over - moved;
        exit when left_over = 0;
    end loop;
end;
$$;

comment on function lock.capture(integer, text, text[], text, timestamptz, integer) is
    'Takes at most max tasks of a queue for the caller: in_progress, attempt + 1, tries + 1, '
    'retries_left - 1. Tasks that have been in_progress for longer than their timeout come first. '
    'Then come statuses in their order of preference, and within one status the oldest '
    'available_at first. Returns the tasks as they are now; give their attempt back to '
    'lock.set_status. Never waits and never gives one attempt to two callers. No row: nothing can '
    'be had now, or the queue is paused (lock.pause_queue). owner is kept only for people to '
    'read. since: only tasks that became available then or later, and none that timed out (null: '
    'everything; infinity or a time to come: nothing). It is for workers that take one full batch '
    'after the other, so that an old snapshot does not slow them down. Pass the last available_at '
    'of a full batch. Pass null when a batch was not full, and once a second. In a transaction: a '
    'rollback puts the tasks back, and other captures skip them until then. Settle before you '
    'capture, and do nothing that can wait afterwards. A timed-out task without a retry becomes '
    'failed instead. So does one without a retries_left of its own after max_tries captures '
    '(null: never). Errors: 22004 null max, queue_id or statuses; 22023 max or max_tries below 1, '
    'bad names; 40001 under REPEATABLE READ and SERIALIZABLE. From the state transition of the '
    'SQL locks article, whose query gives one task to two callers.';
