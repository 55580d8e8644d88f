-- await_task is a worker's whole loop in one call. It settles the last batch, then captures the
-- next or says how long to sleep.
--
-- A worker that finds nothing is listed as idle by one call and looks again by the next. Its line
-- counts only once it is committed, so the first answer is to call again at once. lock.idle_worker
-- keeps the line and what may have missed it, so the caller has nothing to remember. A worker that
-- has just settled something sleeps for a moment before it is listed.
create or replace function lock.await_task(
    ids        text[]      default '{}',
    attempts   bigint[]    default '{}',
    results    text[]      default '{}',
    max        integer     default 1,
    queue_id   text        default 'default',
    statuses   text[]      default '{new,failed}',
    owner      text        default null,
    delays     interval[]  default null,
    messages   text[]      default null,
    shortest   interval    default '1 second',
    longest    interval    default '1 hour',
    max_tries  integer     default 25,
    worker     text        default null,
    poll       interval    default '30 seconds'
)
returns table (
    id            text,
    attempt       bigint,
    tries         integer,
    retries_left  integer,
    deadline      timestamptz,
    message       text,
    payload       jsonb,
    sleep         double precision
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    myself  constant text := coalesce(await_task.worker, 'pid ' || pg_backend_pid());
    listed  boolean;
    due     interval;
begin
    perform lock_internal.check_id(await_task.queue_id, 'queue_id');
    perform lock_internal.check_id(myself, 'worker');
    perform lock_internal.check_interval(await_task.poll, 'poll', true);
    perform lock.settle_and_capture(
        await_task.ids, await_task.attempts, await_task.results, 0, await_task.queue_id, await_task.statuses,
        delays => await_task.delays, messages => await_task.messages,
        shortest => await_task.shortest, longest => await_task.longest, max_tries => await_task.max_tries
    );
    if await_task.max = 0 then
        perform lock.stop_idling('lock_task', await_task.queue_id, myself);
        return;
    end if;

    listed := lock_internal.begin_look('lock_task', await_task.queue_id, myself);
    return query
        select task.id, task.attempt, task.tries, task.retries_left, task.deadline, task.message, task.payload, 0::double precision
        from lock.capture(
            await_task.max, await_task.queue_id, await_task.statuses, await_task.owner, max_tries => await_task.max_tries
        ) as task;
    if found then
        if listed is not null then
            perform lock.stop_idling('lock_task', await_task.queue_id, myself);
        end if;
        return;
    end if;

    if listed is null and cardinality(await_task.ids) > 0 then
        sleep := 0.005;
    else
        select next_task_in into due from lock.next_task_in(await_task.queue_id, await_task.statuses);
        sleep := lock_internal.end_look(
            'lock_task', await_task.queue_id, myself, listed,
            -- No producer announces a task that is done.
            case when 'done' = any (await_task.statuses) then least(await_task.poll, interval '1 second') else await_task.poll end,
            due
        );
    end if;
    return next;
end;
$$;

comment on function lock.await_task(
    text[], bigint[], text[], integer, text, text[], text, interval[], text[], interval, interval,
    integer, text, interval
) is
    'A worker in one call: settles its last batch and captures the next as '
    'lock.settle_and_capture does, with the same arguments, or says how long to sleep. Returns '
    'the tasks captured. When there is none, it returns one row whose id is null; sleep is then '
    'how many seconds to sleep. Wake up sooner when a notification on channel lock_task, with the '
    'queue''s id as payload, has come since this call began. Then call again: nothing is lost. '
    'Without a notification a worker looks again only after every poll. While a transaction is '
    'open that may have missed it, it looks in pauses that grow to a second. listen before the '
    'first call and after each reconnection. worker: a name that no other worker has (null: this '
    'session; pass a name when the calls go through a pool). max 0 is for the worker''s end: '
    'settles, captures nothing, forgets that the worker idles, and returns no row. Call it '
    'outside a transaction block: each call must be committed before the next. Where '
    'notifications do not arrive, pass a shorter poll. Errors: those of lock.settle_and_capture; '
    '22023 bad worker or poll; 25001 called again in the transaction that found nothing.';
