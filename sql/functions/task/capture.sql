-- capture gives the caller at most max tasks of a queue, and each attempt of a task to one caller only.
--
-- Who can interleave. A row is chosen and locked in one statement (for update skip locked), so a row that another capture
-- is taking is skipped, and one that it has just taken fails the recheck of that statement, because its status has changed.
-- What is locked here stays ours until the update. Under READ COMMITTED the recheck may leave a stray lock on a row that
-- belongs to somebody else by now, to the end of the transaction: it makes that one's settling wait, and is why settling
-- comes before capturing and nothing that waits comes after. Under REPEATABLE READ and SERIALIZABLE such a row is 40001.
--
-- First come the tasks whose worker ran out of time. Those without another retry become failed instead: dead letters. They
-- do not count, but are no more than max in one call. Then come the statuses as listed, each along an index that holds
-- nothing else, oldest first from the beginning.
--
-- While an old snapshot is open, the entries of tasks long gone cannot be removed, and reading from the beginning wades
-- through them all. When that has cost more than 2 ms, the session notes how far it came, in a setting, and starts there for
-- the next second, or for 20 times as long as the wading took. The note is a hint: a rollback puts it back, and losing it costs
-- time. It never passes 100 ms ago, when transactions may have been open that have still to commit. What appears behind it
-- all the same (another's rollback, a longer transaction, an earlier available_at) is found by the next look from the
-- beginning. The first capture of a session is not judged: it includes the planning.
--
-- Plans are kept for a session, and must not be right only for the size that the table has when they are made. Hence the
-- settings, and the condition that is always true: the planner takes a list so restricted for short, and goes through the
-- primary key row by row, as it should for lists of any length.
create or replace function lock.capture(
    max       integer,
    queue_id  text    default 'default',
    statuses  text[]  default '{new,failed}',
    owner     text    default null
)
returns setof lock.task
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    began      constant timestamptz := clock_timestamp();
    moment     constant bigint := (extract(epoch from began) * 1000000)::bigint;  -- as all bigint here: microseconds since 1970
    setting    constant text := 'lock.task_' || (hashtext(capture.queue_id) & 63);
    note       constant text[] := nullif(current_setting(setting, true), '')::text[];
    marks      bigint[] := array_fill(null::bigint, array[4]);  -- where to start: in_progress, new, done, failed
    wanted     text;
    slot       integer;
    left_over  integer := capture.max;
    chosen     text[];
    newest     timestamptz;
    moved      bigint;
    looking    timestamptz := began;
    looked     interval := interval '0';
begin
    if capture.max is null or capture.max < 1 then
        perform lock_internal.check_max(capture.max);
    end if;
    if capture.queue_id is null or capture.queue_id = '' or octet_length(capture.queue_id) > 1024 then
        perform lock_internal.check_id(capture.queue_id, 'queue_id');
    end if;
    if capture.statuses is null or cardinality(capture.statuses) = 0 or not capture.statuses <@ '{new,done,failed}' then
        perform lock_internal.check_statuses(capture.statuses);
    end if;
    if capture.owner = '' or octet_length(capture.owner) > 1024 then
        perform lock_internal.check_id(capture.owner, 'owner');
    end if;

    if note[1] = capture.queue_id and moment < note[2]::bigint then
        marks := note[3:6]::bigint[];
    end if;

    select array_agg(held.id) into chosen
    from (
        select task.id
        from lock.task
        where task.queue_id = capture.queue_id
          and task.status = 'in_progress'
          and task.deadline >= coalesce(timestamptz 'epoch' + marks[1] * interval '1 microsecond', '-infinity')
          and task.deadline <= began
        order by task.deadline
        limit left_over
        for update skip locked
    ) as held;
    looked := clock_timestamp() - began;
    if chosen is null then
        marks[1] := moment - 100000;
    else
        update lock.task
        set status = 'failed',
            available_at = began,
            deadline = null,
            changed_at = began
        where task.queue_id = capture.queue_id
          and task.id = any (chosen)
          and task.retries_left = 0;
        return query
            update lock.task
            set attempt = task.attempt + 1,
                retries_left = task.retries_left - 1,
                deadline = (lock_internal.utc(began) + task.timeout) at time zone interval '0',
                owner = capture.owner,
                changed_at = began
            from unnest(chosen) as held(id)
            where octet_length(held.id) & 0 = 0
              and task.queue_id = capture.queue_id
              and task.id = held.id
              and task.status = 'in_progress'
            returning task.*;
        get diagnostics moved = row_count;
        left_over := left_over - moved;
    end if;

    foreach wanted in array capture.statuses loop
        exit when left_over = 0;
        slot := array_position(array['in_progress', 'new', 'done', 'failed'], wanted);
        looking := clock_timestamp();
        select array_agg(held.id), max(held.available_at) into chosen, newest
        from (
            select task.id, task.available_at
            from lock.task
            where task.queue_id = capture.queue_id
              and task.status = wanted::lock.task_status
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.available_at >= coalesce(timestamptz 'epoch' + marks[slot] * interval '1 microsecond', '-infinity')
              and task.available_at <= began
            order by task.available_at
            limit left_over
            for update skip locked
        ) as held;
        looked := looked + (clock_timestamp() - looking);
        if chosen is not null then
            return query
                update lock.task
                set status = 'in_progress',
                    attempt = task.attempt + 1,
                    retries_left = task.retries_left - 1,
                    deadline = (lock_internal.utc(began) + task.timeout) at time zone interval '0',
                    owner = capture.owner,
                    changed_at = began
                from unnest(chosen) as held(id)
                where octet_length(held.id) & 0 = 0
                  and task.queue_id = capture.queue_id
                  and task.id = held.id
                returning task.*;
            left_over := left_over - cardinality(chosen);
        end if;
        marks[slot] := least(moment - 100000, case when left_over = 0 then (extract(epoch from newest) * 1000000)::bigint end);
    end loop;

    if note[1] is distinct from capture.queue_id then
        perform set_config(setting, array[capture.queue_id, '0']::text, false);
    elsif moment < note[2]::bigint then
        perform set_config(setting, (note[1:2] || marks::text[])::text, false);
    elsif looked > interval '2 milliseconds' + (capture.max - left_over) * interval '30 microseconds' then
        perform set_config(
            setting,
            (array[capture.queue_id, (moment + greatest(1000000, 20000000 * extract(epoch from looked))::bigint)::text] || marks::text[])::text,
            false
        );
    end if;
end;
$$;

comment on function lock.capture(integer, text, text[], text) is
    'Takes at most max tasks of a queue for the caller: in_progress, attempt + 1, retries_left - 1, oldest available_at first within one status, '
    'statuses in their order of preference, before them all tasks that have been in_progress for longer than their timeout. Returns them as they '
    'are now; give their attempt back to lock.set_status. Never waits and never gives one attempt to two callers; no row: nothing can be '
    'had now. owner is only kept for people to read. In a transaction: a rollback puts the tasks back, others skip them until then; settle '
    'before you capture, and do nothing that can wait afterwards. A timed-out task without a retry becomes failed instead. '
    'Errors: 22004 null max, queue_id or statuses; 22023 max below 1, bad names; 40001 under REPEATABLE READ and SERIALIZABLE. '
    'From the state transition of the SQL locks article, whose query gives one task to two callers.';

revoke all on function lock.capture(integer, text, text[], text) from public;
