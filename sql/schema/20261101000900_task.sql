-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000900 needs 20261101000800, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000900, 20261101000800, 'up');
end;
$$;
-- +goose StatementEnd

-- There is no create type if not exists, and sqlc reads no blocks. So a type that is there already
-- steps aside, and comes back.
-- +goose StatementBegin
do $$
begin
    if to_regtype('lock.task_status_kept') is not null then
        drop type if exists lock.task_status;
    elsif to_regtype('lock.task_status') is not null then
        alter type lock.task_status rename to task_status_kept;
    end if;
end;
$$;
-- +goose StatementEnd

create type lock.task_status as enum ('new', 'in_progress', 'done', 'failed');

-- +goose StatementBegin
do $$
begin
    if to_regtype('lock.task_status_kept') is not null then
        drop type lock.task_status;
        alter type lock.task_status_kept rename to task_status;
    end if;
end;
$$;
-- +goose StatementEnd

comment on type lock.task_status is
    'new: never captured, or given back. in_progress: a capture has it. done and failed: settled.';

-- The functions check what they write. A check constraint would be parsed anew by each statement
-- that writes: two of them took 6 of 100 instructions of a call that settles and captures one task.
--
-- What a transition leaves alone stands before what it changes, and pages keep room: an update that
-- stays on its page logs only what follows the first difference. With payloads of 320 bytes that is
-- 990 bytes of WAL to capture and settle a task instead of 1,380, without any 660 instead of 675.
create table if not exists lock.task (
    queue_id      text collate "C"  not null default 'default',
    id            text collate "C"  not null,
    timeout       interval,
    payload       jsonb,
    key           text collate "C",
    key_number    bigint,
    created_at    timestamptz       not null default clock_timestamp(),
    status        lock.task_status  not null default 'new',
    attempt       bigint            not null default 0,
    tries         integer           not null default 0,
    retries_left  integer,
    available_at  timestamptz       not null default clock_timestamp(),
    changed_at    timestamptz       not null default clock_timestamp(),
    deadline      timestamptz,
    owner         text,
    message       text,
    constraint task_pkey primary key (id, queue_id)
) with (fillfactor = 70);

comment on table lock.task is
    'Named tasks that lock.capture hands out. Ids are unique within their queue.';

comment on column lock.task.attempt is
    'The fencing number: it grows with every capture and never comes back. Only the worker with this attempt may settle or extend it.';

comment on column lock.task.tries is
    'How often it was captured, the capture at hand included, since it was created, revived by '
    'lock.retry_task or last done. Captures that were given back as new do not count.';

comment on column lock.task.message is
    'The last error that a worker reported, at most 4000 characters of it, until the task is done.';

comment on column lock.task.retries_left is
    'How often it may still be captured (null: any number of times). A failed task with 0 is a '
    'dead letter.';

comment on column lock.task.timeout is
    'How long a capture may hold it before the next capture takes it over; null: for ever. 5 minutes '
    'by default.';

comment on column lock.task.available_at is
    'No capture before this time; the oldest is captured first. While it is in_progress: since '
    'when it had been available.';

comment on column lock.task.deadline is
    'When its time in_progress runs out; null: never, or it is not in_progress.';

comment on column lock.task.owner is
    'The worker that captured it last, as that capture said.';

comment on column lock.task.changed_at is
    'When its status or attempt changed last.';

comment on column lock.task.key is
    'Of the tasks of one key no more are in_progress at once than lock.limit_queue allows; null: no '
    'key.';

comment on column lock.task.key_number is
    'The number of its key while it waits for the key or is in_progress. Null while it is not due '
    'yet, when it is done, and when no capture is left.';

create index if not exists task_queue_id_status_available_at_idx on lock.task (queue_id, status, available_at)
    where status <> 'in_progress' and retries_left is distinct from 0 and key_number is null;

-- Apart from the one before, so that tasks without keys pay for one condition of an index.
create index if not exists task_queue_id_key_number_idx on lock.task (queue_id, key_number, (case status when 'in_progress' then 1 else 0 end), available_at)
    where key_number is not null;

create index if not exists task_queue_id_deadline_idx on lock.task (queue_id, deadline)
    where status = 'in_progress' and deadline is not null;

-- Those that never time out, for people who look for them. Apart from the one before, which a
-- planner would otherwise take to look up ids.
create index if not exists task_queue_id_endless_idx on lock.task (queue_id, changed_at)
    where status = 'in_progress' and deadline is null;

create index if not exists task_queue_id_status_exhausted_idx on lock.task (queue_id, status, available_at)
    where status <> 'in_progress' and retries_left = 0;

create table if not exists lock.queue_limit (
    queue_id  text collate "C"  not null,
    per_key   integer           not null default 1,
    turn      bigint            not null default 0,
    constraint queue_limit_pkey primary key (queue_id)
);

comment on table lock.queue_limit is
    'How many tasks of one key may be in_progress in a queue (lock.limit_queue). A queue without a '
    'row has 1. turn is the number of the key that was captured last: the next is behind it.';

create or replace view lock.dead_letter with (security_barrier) as
select task.queue_id, task.id, task.status, task.attempt, task.tries, task.owner, task.message, task.payload, task.created_at, task.changed_at
from lock.task
where task.status <> 'in_progress'
  and task.status <> 'done'
  and task.retries_left = 0;

comment on view lock.dead_letter is
    'Tasks that are not done and have no capture left, with the last error as message. Most have '
    'failed; some are new, because they were given back so. lock.retry_task revives one.';

-- functions of task: written by make migration, not by hand

-- file: sql/functions/task/held_keys.sql
-- +goose StatementBegin
-- held_keys lists the keys in which some attempts have a place, a number for each of them; null:
-- none has a key.
create or replace function lock_internal.held_keys(
    queue_id  text,
    ids       text[],
    attempts  bigint[]
)
returns bigint[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from lock.task where task.queue_id = held_keys.queue_id and task.key_number is not null) then
        return null;
    end if;
    return (
        select array_agg(task.key_number)
        from unnest(held_keys.ids, held_keys.attempts) as given (id, attempt)
        join lock.task
            on task.queue_id = held_keys.queue_id
            and task.id = given.id
            and task.attempt = given.attempt
            and task.status = 'in_progress'
            and task.key is not null
        -- Always true: so the planner takes the list for short, and uses the primary key.
        where octet_length(given.id) & 0 = 0
    );
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/check_ids.sql
-- +goose StatementBegin
-- check_ids refuses a list of ids that is null, or has a null, an id twice, or an id that is empty
-- or too long.
create or replace function lock_internal.check_ids(
    ids  text[]
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    good  bigint;
    bad   text;
begin
    if array_ndims(check_ids.ids) > 1 then
        raise exception 'ids must have one dimension, not %', array_ndims(check_ids.ids)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass an array of texts of 1 to 1024 bytes.';
    elsif check_ids.ids is null or array_position(check_ids.ids, null) is not null then
        raise exception 'ids and their elements must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass an array of texts of 1 to 1024 bytes.';
    end if;
    select count(distinct given.id collate "C") into good
    from unnest(check_ids.ids) as given(id)
    where octet_length(given.id) between 1 and 1024;
    if good < cardinality(check_ids.ids) then
        select given.id into bad
        from unnest(check_ids.ids) as given(id)
        group by given.id
        having count(*) > 1 or given.id = '' or octet_length(given.id) > 1024
        limit 1;
        perform lock_internal.check_id(bad, 'id');
        raise exception 'id % is given twice', bad
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass every id once.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/check_statuses.sql
-- +goose StatementBegin
-- check_statuses refuses a list of statuses that capture cannot take tasks from.
create or replace function lock_internal.check_statuses(
    statuses  text[]
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_statuses.statuses is null then
        raise exception 'statuses must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass some of new, failed and done, in the order of preference, as in ''{new,failed}''.';
    elsif cardinality(check_statuses.statuses) = 0 or not check_statuses.statuses <@ '{new,done,failed}' then
        raise exception 'statuses must be some of new, failed and done, not %', left(check_statuses.statuses::text, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'A task that is in_progress is taken over by any capture once its timeout has passed, and not before.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/backoff.sql
-- +goose StatementBegin
-- backoff is the pause after so many tries: twice as long each time, with jitter, between shortest
-- and longest.
create or replace function lock_internal.backoff(
    tries     integer,
    shortest  interval,
    longest   interval
)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return greatest(
        backoff.shortest,
        make_interval(secs => (0.5 + random() / 2) * least(
            extract(epoch from backoff.longest)::double precision,
            extract(epoch from backoff.shortest)::double precision * 2 ^ least(backoff.tries, 50)
        ))
    );
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/settle.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- file: sql/functions/task/try_task_key.sql
-- +goose StatementBegin
-- try_task_key takes the lock of a key of tasks until the transaction ends, if nobody else has it;
-- never waits.
--
-- The number is in the space of two integers, so no key lock has it.
create or replace function lock_internal.try_task_key(
    number  bigint
)
returns boolean
language sql
volatile
as $$
    select case
        when lock_internal.is_advisory() then pg_catalog.pg_try_advisory_xact_lock(
            (try_task_key.number >> 32)::integer, try_task_key.number::bit(32)::integer
        )
        else lock_internal.hold_row(try_task_key.number, 'task key ' || try_task_key.number, shared => false, wait => interval '0')
    end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/key_number.sql
-- +goose StatementBegin
-- key_number is the number of a key's tasks and lock: a hash of 64 bits, null without a key. Its
-- seed, 'task key' in ASCII, is used nowhere else.
--
-- Two keys with one number share their places, which costs time and nothing else.
create or replace function lock_internal.key_number(
    queue_id  text,
    key       text
)
returns bigint
language sql
immutable
parallel safe
as $$
    select pg_catalog.hashtextextended(key_number.key, pg_catalog.hashtextextended(key_number.queue_id, 8386110885083178361));
$$;
-- +goose StatementEnd

-- file: sql/functions/task/open_keys.sql
-- +goose StatementBegin
-- open_keys lists the keys of a queue that have a task waiting and fewer than per_key in progress,
-- in turn: from the one behind turn to turn itself.
--
-- It hops from key to key in the index, so a key's backlog costs no more than one task. It has no
-- settings, so that a query that has it in its from clause takes it in as a part of its own plan,
-- and reads no further than it needs. The case is how the index says it.
create or replace function lock_internal.open_keys(
    queue_id  text,
    statuses  text[],
    per_key   integer,
    turn      bigint
)
returns setof bigint
language sql
stable
as $$
    with recursive hop (number, lap) as (
        select open_keys.turn, 0
        union all
        select next.number, next.lap
        from hop
        cross join lateral (
            (
                select task.key_number as number, hop.lap
                from lock.task
                where task.queue_id = open_keys.queue_id
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.key_number > hop.number
                  and task.key_number <= case hop.lap when 0 then 9223372036854775807 else open_keys.turn end
                order by task.key_number
                limit 1
            )
            union all
            (
                select task.key_number, 1
                from lock.task
                where hop.lap = 0
                  and task.queue_id = open_keys.queue_id
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.key_number <= open_keys.turn
                order by task.key_number
                limit 1
            )
            limit 1
        ) as next
    )
    select hop.number
    from hop
    where (hop.lap = 1 or hop.number > open_keys.turn)
      and open_keys.per_key > (
        select count(*)
        from lock.task
        where task.queue_id = open_keys.queue_id
          and task.key_number = hop.number
          and case task.status when 'in_progress' then 1 else 0 end = 1
      )
      and exists (
        select
        from lock.task
        where task.queue_id = open_keys.queue_id
          and task.key_number = hop.number
          and case task.status when 'in_progress' then 1 else 0 end = 0
          and task.status = any (open_keys.statuses::lock.task_status[])
      );
$$;
-- +goose StatementEnd

-- file: sql/functions/task/choose_by_key.sql
-- +goose StatementBegin
-- choose_by_key locks at most max tasks that wait for their key, for lock.settle_and_capture, and
-- says which, and of which keys.
--
-- Never more than per_key tasks of one key are in progress. A task of a key becomes in_progress
-- only in a transaction that holds the key's lock until it ends. So whoever gets the lock has all
-- captures of the key before him, and the statement behind the lock counts them: its snapshot is
-- newer. This needs READ COMMITTED. Nothing else makes the number grow: a takeover changes an
-- attempt, and no task in progress changes its key.
--
-- Keys take turns. The queue's row says which key was captured last, and the walk begins behind it.
-- One capture at a time has the row, and moves it on. Another does not wait for it, and begins
-- anywhere. So whoever holds the row in a long transaction keeps no key waiting.
--
-- The walk's snapshot is older than the locks. A key that turns out to be full, or empty, is let go
-- again by ending the inner block, which is a subtransaction: else others would pass it over while
-- nobody works on it. Then the walk begins anew without that key.
--
-- First each key gives one task. What room is left then is filled by the keys that may have more.
create or replace function lock_internal.choose_by_key(
    queue_id  text,
    statuses  text[],
    max       integer
)
returns table (
    ids      text[],
    numbers  bigint[]
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    per_key  integer;
    turn     bigint;
    mine     boolean;
    held     bigint[];
    useless  bigint[] := array[]::bigint[];
    more     record;
begin
    select queue_limit.per_key, queue_limit.turn
    into per_key, turn
    from lock.queue_limit
    where queue_limit.queue_id = choose_by_key.queue_id
    for no key update skip locked;
    mine := found;
    if not mine then
        turn := ((random() - 0.5) * 18446744073709551615)::bigint;
        select queue_limit.per_key
        into per_key
        from lock.queue_limit
        where queue_limit.queue_id = choose_by_key.queue_id;
        if not found then
            -- Only who has the queue's own lock makes its row: so nobody waits for another's row.
            per_key := 1;
            insert into lock.queue_limit (queue_id)
            select choose_by_key.queue_id
            where lock_internal.try_task_key(lock_internal.key_number(choose_by_key.queue_id, ''))
            on conflict do nothing;
        end if;
    end if;

    loop
        begin
            held := array(
                select walk.number
                from (
                    select waiting.number
                    from lock_internal.open_keys(choose_by_key.queue_id, choose_by_key.statuses, per_key, turn) as waiting (number)
                    where waiting.number <> all (useless)
                    offset 0
                ) as walk
                where lock_internal.try_task_key(walk.number)
                limit choose_by_key.max
            );
            exit when held = '{}';
            select array_agg(oldest.id), array_agg(given.number)
            into ids, numbers
            from unnest(held) as given (number)
            cross join lateral (
                select task.id
                from lock.task
                where task.queue_id = choose_by_key.queue_id
                  and task.key_number = given.number
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.status = any (choose_by_key.statuses::lock.task_status[])
                order by task.available_at
                limit case
                    when (
                        select count(*)
                        from lock.task as running
                        where running.queue_id = choose_by_key.queue_id
                          and running.key_number = given.number
                          and case running.status when 'in_progress' then 1 else 0 end = 1
                    ) < per_key
                    then 1 else 0
                end
                for update skip locked
            ) as oldest;
            exit when cardinality(numbers) = cardinality(held);
            useless := useless || array(select unnest(held) except select unnest(numbers));
            raise no_data_found;
        exception
            when no_data_found then
                ids := null;
                numbers := null;
        end;
    end loop;

    if ids is null then
        return;
    end if;
    if per_key > 1 and cardinality(ids) < choose_by_key.max then
        for more in
            select oldest.id, given.number
            from unnest(held) as given (number)
            cross join lateral (
                select task.id
                from lock.task
                where task.queue_id = choose_by_key.queue_id
                  and task.key_number = given.number
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.status = any (choose_by_key.statuses::lock.task_status[])
                  and task.id <> all (ids)
                order by task.available_at
                limit greatest(0, per_key - 1 - (
                    select count(*)
                    from lock.task as running
                    where running.queue_id = choose_by_key.queue_id
                      and running.key_number = given.number
                      and case running.status when 'in_progress' then 1 else 0 end = 1
                ))
                for update skip locked
            ) as oldest
            limit choose_by_key.max - cardinality(ids)
        loop
            ids := ids || more.id;
            numbers := numbers || more.number;
        end loop;
    end if;
    if mine then
        update lock.queue_limit
        set turn = held[cardinality(held)]
        where queue_limit.queue_id = choose_by_key.queue_id;
    end if;
    -- Others may have met the lock of a key that has a place and a task left.
    if per_key > 1 and cardinality(ids) = choose_by_key.max then
        perform lock_internal.wake('lock_task', choose_by_key.queue_id);
    end if;
    return next;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/move_due.sql
-- +goose StatementBegin
-- move_due lets tasks wait for their key that were not due when they were written, and are now: the
-- oldest of the first thousand of a status. It skips what others are moving.
create or replace function lock_internal.move_due(
    queue_id  text,
    status    lock.task_status
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    due  text[];
begin
    due := array(
        select early.id
        from (
            select task.id, task.key
            from lock.task
            where task.queue_id = move_due.queue_id
              and task.status = move_due.status
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
              and task.available_at <= clock_timestamp()
            order by task.available_at
            limit 1000
        ) as early
        where early.key is not null
    );
    update lock.task
    set key_number = lock_internal.key_number(task.queue_id, task.key)
    where task.queue_id = move_due.queue_id
      and task.id = any (array(
        select held.id
        from lock.task as held
        where held.queue_id = move_due.queue_id
          and held.id = any (due)
          and held.status = move_due.status
          and held.key_number is null
        for update skip locked
      ));
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/settle_and_capture.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

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

-- file: sql/functions/task/capture.sql
-- +goose StatementBegin
-- capture is lock.settle_and_capture with nothing to settle. How no task is given to two callers
-- stands there.
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
as $$
begin
    if (capture.max > 0) is not true then
        perform lock_internal.check_count(capture.max, 'max');
    end if;
    return query
        select *
        from lock.settle_and_capture(
            '{}', '{}', '{}', capture.max, capture.queue_id, capture.statuses, capture.owner, since => capture.since,
            max_tries => capture.max_tries
        );
end;
$$;
-- +goose StatementEnd

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

-- file: sql/functions/task/next_task_in.sql
-- +goose StatementBegin
-- next_task_in says after how long a capture may find something that it does not find now; no row:
-- not by itself.
--
-- It looks at what is stored. So it is zero or less while another transaction holds a task that is
-- due, and may yet roll back.
create or replace function lock.next_task_in(
    queue_id  text    default 'default',
    statuses  text[]  default '{new,failed}'
)
returns setof interval
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    wanted   lock.task_status;
    soonest  timestamptz;
    per_key  integer;
begin
    perform lock_internal.check_id(next_task_in.queue_id, 'queue_id');
    perform lock_internal.check_statuses(next_task_in.statuses);
    if exists (select from lock_internal.is_paused('task', next_task_in.queue_id)) then
        return;
    end if;
    -- Not by min(): where the statistics are late, that reads all of a queue.
    select task.deadline into soonest
    from lock.task
    where task.queue_id = next_task_in.queue_id
      and task.status = 'in_progress'
      and task.deadline is not null
    order by task.deadline
    limit 1;
    foreach wanted in array next_task_in.statuses::lock.task_status[] loop
        soonest := least(soonest, (
            select task.available_at
            from lock.task
            where task.queue_id = next_task_in.queue_id
              and task.status = wanted
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
            order by task.available_at
            limit 1
        ));
    end loop;
    if exists (
        select
        from lock.task
        where task.queue_id = next_task_in.queue_id
          and task.key_number is not null
          and case task.status when 'in_progress' then 1 else 0 end = 0
    ) then
        -- Somebody has the lock of a key that has a place: the look before did not get its task.
        per_key := coalesce((select queue_limit.per_key from lock.queue_limit where queue_limit.queue_id = next_task_in.queue_id), 1);
        if exists (select from lock_internal.open_keys(next_task_in.queue_id, next_task_in.statuses, per_key, 0)) then
            soonest := least(soonest, clock_timestamp());
        end if;
    end if;
    if soonest is not null then
        return next least(soonest - clock_timestamp(), interval '36525 days');
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.next_task_in(text, text[]) is
    'After how long (100 years at most) the next task of a queue becomes available or times '
    'out, by what is stored now. Zero or less: a transaction that is still open holds a task '
    'that is due. No row: there is none, or the queue is paused. Tasks whose key is full do not '
    'count. For a worker that found nothing and wants to know how long to sleep. Never waits. '
    'Errors: 22004 null, 22023 bad names.';

-- file: sql/functions/task/await_task.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

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

-- file: sql/functions/task/check_dead.sql
-- +goose StatementBegin
-- check_dead refuses a dead letter that has not failed.
create or replace function lock_internal.check_dead(
    dead    boolean,
    status  lock.task_status
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_dead.dead is null then
        raise exception 'dead must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass true with status failed for a dead letter, or false.';
    elsif check_dead.dead and check_dead.status <> 'failed' then
        raise exception 'only what is settled as failed can be a dead letter, not as %', check_dead.status
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass dead => true with status failed only.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/check_known.sql
-- +goose StatementBegin
-- check_known refuses a task that does not exist.
create or replace function lock_internal.check_known(
    id        text,
    queue_id  text
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from lock.task where task.queue_id = check_known.queue_id and task.id = check_known.id) then
        raise exception 'there is no task % in queue %', check_known.id, check_known.queue_id
            using errcode = 'no_data_found',
                  hint = 'Create it with lock.create_task, or pass the queue_id that it has.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/check_task.sql
-- +goose StatementBegin
-- check_task refuses what no task can have.
create or replace function lock_internal.check_task(
    queue_id      text,
    status        lock.task_status,
    retries_left  integer,
    timeout       interval,
    available_at  timestamptz
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_task.queue_id is null or check_task.queue_id = '' or octet_length(check_task.queue_id) > 1024 then
        perform lock_internal.check_id(check_task.queue_id, 'queue_id');
    end if;
    if check_task.status is null then
        raise exception 'status must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass new, done or failed.';
    elsif check_task.status = 'in_progress' then
        raise exception 'only lock.capture makes a task in_progress'
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass new, done or failed.';
    elsif check_task.retries_left < 1 then
        raise exception 'retries_left must be at least 1, not %: the task could never run', check_task.retries_left
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass how many captures the task may have: 1 is one try, null any number.';
    elsif not isfinite(check_task.available_at) then
        raise exception 'available_at must be finite, not %', check_task.available_at
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass a time, or null for now.';
    end if;
    if check_task.timeout is not null then
        perform lock_internal.check_interval(check_task.timeout, 'timeout', true);
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/create_task.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

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

-- file: sql/functions/task/create_tasks.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.create_tasks(
    text[], text, lock.task_status, integer, interval, jsonb, timestamptz, jsonb[],
    text[]
) is
    'Adds many tasks at once and returns how many were new. The arguments are those of '
    'lock.create_task. payloads: one for each id; where it is not null, it stands instead of '
    'payload. keys: one for each id, or null. Captures take the tasks in the order of ids. '
    'Waits only for open transactions that create the same ids. Errors: those of '
    'lock.create_task, 22004 a null id, 22023 an id twice or arrays of different lengths.';

-- file: sql/functions/task/set_status.sql
-- +goose StatementBegin
-- set_status ends an attempt; false: the attempt is stale. Without attempt it gives a task another
-- status, whichever worker has it.
--
-- The statement that writes compares the attempt, so a worker that was taken over cannot overwrite
-- its successor. Without an attempt nothing is compared. The worker that has the task becomes stale
-- instead: its attempt is no longer in_progress.
create or replace function lock.set_status(
    id        text,
    status    lock.task_status,
    attempt   bigint    default null,
    queue_id  text      default 'default',
    delay     interval  default '0',
    message   text      default null,
    dead      boolean   default false
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    keyed  boolean;
begin
    if (
        octet_length(set_status.id) between 1 and 1024 and octet_length(set_status.queue_id) between 1 and 1024
        and set_status.status <> 'in_progress' and not set_status.dead
    ) is not true then
        perform lock_internal.check_id(set_status.id, 'id');
        perform lock_internal.check_task(set_status.queue_id, set_status.status, null, null, null);
        perform lock_internal.check_dead(set_status.dead, set_status.status);
    end if;
    if set_status.delay is distinct from interval '0' then
        perform lock_internal.check_interval(set_status.delay, 'delay', true);
    end if;
    update lock.task
    set status = set_status.status,
        tries = case
            when set_status.status = 'done' then 0
            when set_status.status = 'new' and set_status.attempt is not null then task.tries - 1
            else task.tries
        end,
        retries_left = case
            when set_status.dead then 0
            when set_status.status = 'new' and set_status.attempt is not null then task.retries_left + 1
            else task.retries_left
        end,
        available_at = (lock_internal.utc(clock_timestamp()) + set_status.delay) at time zone interval '0',
        key_number = case
            when set_status.status <> 'done' and not set_status.dead and set_status.delay = interval '0'
                and (task.retries_left is distinct from 0 or set_status.status = 'new' and set_status.attempt is not null)
            then lock_internal.key_number(task.queue_id, task.key)
        end,
        deadline = null,
        message = case when set_status.status <> 'done' then coalesce(nullif(left(set_status.message, 4000), ''), task.message) end,
        changed_at = clock_timestamp()
    where task.queue_id = set_status.queue_id
      and task.id = set_status.id
      and (set_status.attempt is null or task.attempt = set_status.attempt and task.status = 'in_progress')
    returning task.key is not null into keyed;
    if not found then
        perform lock_internal.check_known(set_status.id, set_status.queue_id);
        return false;
    end if;
    if set_status.status <> 'done' and not set_status.dead or keyed then
        perform lock_internal.wake('lock_task', set_status.queue_id);
    end if;
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.set_status(
    text, lock.task_status, bigint, text, interval, text, boolean
) is
    'Settles a captured task as done, failed or (to give it back) new. Pass the attempt that '
    'lock.capture returned. False, and nothing changes: the task was taken over, settled or set '
    'by another caller since. new makes that capture as if it had not been: tries - 1, '
    'retries_left + 1. Without attempt: sets any task, and makes the attempt of the worker that '
    'has it stale. That is for operators, and for the article''s plain state machine. It does '
    'what it is told and backs off from nothing by itself. delay: no capture of the task before '
    'that has passed. message: the last error. Its first 4000 characters are kept until the '
    'task is done (null: the one before). dead, only with failed: no capture is left, and the '
    'task is a dead letter. Waits while another transaction is changing the task. Wakes idle '
    'workers, except for done and dead without a key. Errors: P0002 unknown task; 22004 null; '
    '22023 in_progress, bad id, delay negative, infinite or with months, dead without failed.';

-- file: sql/functions/task/delete_task.sql
-- +goose StatementBegin
-- delete_task deletes a task that nobody has in progress; false: there is none.
create or replace function lock.delete_task(
    id        text,
    queue_id  text  default 'default'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(delete_task.id, 'id');
    perform lock_internal.check_id(delete_task.queue_id, 'queue_id');
    delete from lock.task
    where task.queue_id = delete_task.queue_id
      and task.id = delete_task.id
      and task.status <> 'in_progress';
    return found;
end;
$$;
-- +goose StatementEnd

comment on function lock.delete_task(text, text) is
    'Deletes a task, whatever its status, unless it is in_progress. False: it is in_progress, or '
    'there is no such task. To stop one that is in_progress, settle it first: lock.set_status(id, '
    '''failed'', dead => true). Its id can be created again; then its attempt begins at 0. Waits '
    'while another transaction is changing the task. Errors: 22004 null id or queue_id; 22023 '
    'empty or longer than 1024 bytes; 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/task/extend_task.sql
-- +goose StatementBegin
-- extend_task gives the holder of an attempt more time, counted from now; false: the attempt is
-- stale.
create or replace function lock.extend_task(
    id        text,
    attempt   bigint,
    timeout   interval,
    queue_id  text  default 'default'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(extend_task.id, 'id');
    perform lock_internal.check_id(extend_task.queue_id, 'queue_id');
    perform lock_internal.check_interval(extend_task.timeout, 'timeout', true);
    if extend_task.attempt is null then
        raise exception 'attempt must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the attempt that lock.capture returned.';
    end if;
    -- The wait, if any, is in the subselect. So the new deadline counts from the end of the wait.
    update lock.task
    set deadline = (lock_internal.utc(clock_timestamp()) + extend_task.timeout) at time zone interval '0'
    where task.queue_id = extend_task.queue_id
      and task.id = (
        select held.id
        from lock.task as held
        where held.queue_id = extend_task.queue_id
          and held.id = extend_task.id
          and held.attempt = extend_task.attempt
          and held.status = 'in_progress'
        for no key update
      );
    if not found then
        perform lock_internal.check_known(extend_task.id, extend_task.queue_id);
        return false;
    end if;
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.extend_task(text, bigint, interval, text) is
    'Gives the holder of an attempt timeout from now on. It does so even after its time has run '
    'out, if nobody took the task over. False: the attempt is stale, and the work should stop. '
    'The task''s own timeout stays for later attempts. Waits while another transaction is '
    'changing the task. Errors: P0002 unknown task; 22004 null; 22023 bad id, timeout not '
    'positive, infinite or with months.';

-- file: sql/functions/task/extend_tasks.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.extend_tasks(text[], bigint[], interval, text) is
    'Gives the holder of many attempts timeout from now on, as lock.extend_task does for one, and '
    'returns the ids that are still the caller''s. The work on the others should stop: their '
    'attempts are stale, or there are no such tasks. attempts: one for each id. Waits while '
    'another transaction is changing one of the tasks. Errors: 22004 a null; 22023 arrays of '
    'different lengths, an id twice, bad id, timeout not positive, infinite or with months.';

-- file: sql/functions/task/forgotten_tasks.sql
-- +goose StatementBegin
-- forgotten_tasks describes tasks that have been in_progress for over an hour and cannot time out;
-- null: there are none.
create or replace function lock_internal.forgotten_tasks()
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select format('tasks in progress for over an hour without a timeout: %s, such as %s', count(*), min(task.queue_id || ': ' || task.id))
    from lock.task
    where task.status = 'in_progress'
      and task.deadline is null
      and task.changed_at < clock_timestamp() - interval '1 hour'
    having count(*) > 0;
$$;
-- +goose StatementEnd

-- file: sql/functions/task/get_task.sql
-- +goose StatementBegin
-- get_task returns a task as it is stored; no row: there is none.
create or replace function lock.get_task(
    id        text,
    queue_id  text  default 'default'
)
returns setof lock.task
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(get_task.id, 'id');
    perform lock_internal.check_id(get_task.queue_id, 'queue_id');
    return query
        select task.*
        from lock.task
        where task.queue_id = get_task.queue_id
          and task.id = get_task.id;
end;
$$;
-- +goose StatementEnd

comment on function lock.get_task(text, text) is
    'A task as it is stored; no row: there is none. Never waits. Errors: 22004 null, 22023 empty '
    'or too long.';

-- file: sql/functions/task/limit_queue.sql
-- +goose StatementBegin
-- limit_queue says how many tasks of one key may be in progress in a queue.
--
-- The queue's own lock keeps a capture from making the same row, and waiting for this transaction.
create or replace function lock.limit_queue(
    queue_id  text,
    per_key   integer
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform lock_internal.check_id(limit_queue.queue_id, 'queue_id');
    perform lock_internal.check_count(limit_queue.per_key, 'per_key');
    perform lock_internal.check_writable();
    perform lock_internal.try_task_key(lock_internal.key_number(limit_queue.queue_id, ''));
    insert into lock.queue_limit (queue_id, per_key)
    values (limit_queue.queue_id, limit_queue.per_key)
    on conflict (queue_id) do update
    set per_key = excluded.per_key
    where queue_limit.per_key <> excluded.per_key;
    perform lock_internal.wake('lock_task', limit_queue.queue_id);
end;
$$;
-- +goose StatementEnd

comment on function lock.limit_queue(text, integer) is
    'Sets how many tasks of one key may be in progress at once in a queue: 1 without this call. '
    'Call it at each deploy. When it is lowered, what is in progress goes on, and the limit is '
    'met as that ends. Works for queues that have nothing yet. Wakes idle workers at commit. '
    'Waits while an open transaction limits the same queue, or has captured a task with a key '
    'there. Errors: 22004 null; 22023 bad queue_id, per_key below 1; 25006 read-only; 40001 under '
    'REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/task/list_tasks.sql
-- +goose StatementBegin
-- list_tasks shows some tasks of a queue in one status. An index holds each status in the order
-- that is shown. Those that wait for their key are in another, key by key.
create or replace function lock.list_tasks(
    queue_id  text              default 'default',
    status    lock.task_status  default 'new',
    max       integer           default 100,
    key       text              default null
)
returns setof lock.task
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    number  constant bigint := lock_internal.key_number(list_tasks.queue_id, list_tasks.key);
begin
    perform lock_internal.check_id(list_tasks.queue_id, 'queue_id');
    perform lock_internal.check_count(list_tasks.max, 'max');
    if list_tasks.status is null then
        raise exception 'status must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass new, in_progress, done or failed.';
    elsif list_tasks.key is not null then
        perform lock_internal.check_id(list_tasks.key, 'key');
        if list_tasks.status = 'in_progress' then
            return query
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.key_number = number
                  and task.key = list_tasks.key
                  and case task.status when 'in_progress' then 1 else 0 end = 1
                order by task.changed_at
                limit list_tasks.max;
        else
            return query
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.key_number = number
                  and task.key = list_tasks.key
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.status = list_tasks.status
                order by task.available_at
                limit list_tasks.max;
        end if;
        return;
    elsif list_tasks.status = 'in_progress' then
        return query
            select *
            from (
                (
                    select task.*
                    from lock.task
                    where task.queue_id = list_tasks.queue_id
                      and task.status = 'in_progress'
                      and task.deadline is not null
                    order by task.deadline
                    limit list_tasks.max
                )
                union all
                (
                    select task.*
                    from lock.task
                    where task.queue_id = list_tasks.queue_id
                      and task.status = 'in_progress'
                      and task.deadline is null
                    order by task.changed_at
                    limit list_tasks.max
                )
            ) as held
            order by held.deadline, held.changed_at
            limit list_tasks.max;
        return;
    end if;
    return query
        select *
        from (
            (
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.status = list_tasks.status
                  and task.status <> 'in_progress'
                  and task.retries_left is distinct from 0
                  and task.key_number is null
                order by task.available_at
                limit list_tasks.max
            )
            union all
            (
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.key_number is not null
                  and case task.status when 'in_progress' then 1 else 0 end = 0
                  and task.status = list_tasks.status
                order by task.key_number, task.available_at
                limit list_tasks.max
            )
            union all
            (
                select task.*
                from lock.task
                where task.queue_id = list_tasks.queue_id
                  and task.status = list_tasks.status
                  and task.status <> 'in_progress'
                  and task.retries_left = 0
                order by task.available_at
                limit list_tasks.max
            )
        ) as oldest
        order by oldest.available_at
        limit list_tasks.max;
end;
$$;
-- +goose StatementEnd

comment on function lock.list_tasks(text, lock.task_status, integer, text) is
    'At most max tasks of a queue in one status, as they are stored. Tasks in_progress come by '
    'their deadline, those without a timeout last. Other statuses come by available_at, oldest '
    'first, dead letters (lock.dead_letter) among them. Of tasks that wait for a key it shows '
    'those of some keys when there are more than max. key: only those that wait for this key, '
    'oldest first, or, with in_progress, those that have it (null: all tasks). Never waits. '
    'What an open transaction has captured shows as before. Errors: 22004 null; 22023 bad '
    'queue_id or key, max below 1; 22P02 a status that does not exist.';

-- file: sql/functions/task/purge_tasks.sql
-- +goose StatementBegin
-- purge_tasks deletes settled tasks that nobody has touched for a while, oldest first, and returns
-- how many.
create or replace function lock.purge_tasks(
    older_than  interval,
    max         integer           default 10000,
    queue_id    text              default 'default',
    status      lock.task_status  default 'done'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    before  timestamptz;
    chosen  text[];
    purged  bigint;
begin
    perform lock_internal.check_interval(purge_tasks.older_than, 'older_than', false);
    perform lock_internal.check_task(purge_tasks.queue_id, purge_tasks.status, null, null, null);
    if purge_tasks.status not in ('done', 'failed') then
        raise exception 'only done and failed tasks can be purged, not %', purge_tasks.status
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass done, or failed for the dead letters.';
    end if;
    perform lock_internal.check_count(purge_tasks.max, 'max');
    before := clock_timestamp() - purge_tasks.older_than;
    chosen := array(
        select task.id
        from lock.task
        where task.queue_id = purge_tasks.queue_id
          and task.status = purge_tasks.status
          and task.status <> 'in_progress'
          and task.retries_left = 0
          and task.available_at < before
        order by task.available_at
        limit purge_tasks.max
        for update skip locked
    );
    if purge_tasks.status = 'done' then
        chosen := chosen || array(
            select task.id
            from lock.task
            where task.queue_id = purge_tasks.queue_id
              and task.status = purge_tasks.status
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
              and task.available_at < before
            order by task.available_at
            limit purge_tasks.max - cardinality(chosen)
            for update skip locked
        );
    end if;
    delete from lock.task
    where task.queue_id = purge_tasks.queue_id
      and task.id = any (chosen);
    get diagnostics purged = row_count;
    return purged;
end;
$$;
-- +goose StatementEnd

comment on function lock.purge_tasks(interval, integer, text, lock.task_status) is
    'For operators. Deletes at most max done tasks that were settled longer than older_than ago, '
    'oldest first, and returns how many. With status failed it deletes dead letters, and never a '
    'task that can still be captured as failed. Skips tasks that other transactions hold, and '
    'never waits. Call it until it returns less than max. A purged id can be created again; then '
    'its attempt counts from 0. Errors: 22004 null; 22023 bad interval, max below 1, other '
    'statuses.';

-- file: sql/functions/task/retry_task.sql
-- +goose StatementBegin
-- retry_task makes a task new once more, with so many captures ahead of it; false: a worker has it
-- in progress.
create or replace function lock.retry_task(
    id            text,
    retries_left  integer,
    queue_id      text  default 'default'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    perform lock_internal.check_id(retry_task.id, 'id');
    perform lock_internal.check_id(retry_task.queue_id, 'queue_id');
    perform lock_internal.check_count(coalesce(retry_task.retries_left, 1), 'retries_left');
    update lock.task
    set status = 'new',
        tries = 0,
        retries_left = retry_task.retries_left,
        key_number = lock_internal.key_number(task.queue_id, task.key),
        available_at = clock_timestamp(),
        deadline = null,
        changed_at = clock_timestamp()
    where task.queue_id = retry_task.queue_id
      and task.id = retry_task.id
      and task.status <> 'in_progress';
    if not found then
        perform lock_internal.check_known(retry_task.id, retry_task.queue_id);
        return false;
    end if;
    perform lock_internal.wake('lock_task', retry_task.queue_id);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.retry_task(text, integer, text) is
    'Revives a task, such as a dead letter of lock.dead_letter. The task is new, available now, '
    'with retries_left captures ahead (null: any number). Back-off starts afresh: tries is 0. '
    'False: it is in_progress; settle it first. Its attempt goes on counting. Waits while another '
    'transaction is changing the task. Wakes idle workers at commit. Errors: P0002 unknown task; '
    '22004 null id or queue_id; 22023 bad id, retries_left below 1.';

-- file: sql/functions/task/retry_tasks.sql
-- +goose StatementBegin
-- retry_tasks makes dead letters of a queue new once more, the oldest first, and returns how many.
--
-- It never waits: it passes over a dead letter that another transaction is changing.
create or replace function lock.retry_tasks(
    queue_id      text     default 'default',
    retries_left  integer  default 1,
    max           integer  default 1000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    wanted   lock.task_status;
    moved    bigint;
    revived  bigint := 0;
begin
    perform lock_internal.check_id(retry_tasks.queue_id, 'queue_id');
    perform lock_internal.check_count(coalesce(retry_tasks.retries_left, 1), 'retries_left');
    perform lock_internal.check_count(retry_tasks.max, 'max');
    foreach wanted in array '{failed,new}'::lock.task_status[] loop
        update lock.task
        set status = 'new',
            tries = 0,
            retries_left = retry_tasks.retries_left,
            key_number = lock_internal.key_number(task.queue_id, task.key),
            available_at = clock_timestamp(),
            changed_at = clock_timestamp()
        where task.queue_id = retry_tasks.queue_id
          and task.id = any (array(
            select dead.id
            from lock.task as dead
            where dead.queue_id = retry_tasks.queue_id
              and dead.status = wanted
              and dead.status <> 'in_progress'
              and dead.retries_left = 0
            order by dead.available_at
            limit retry_tasks.max - revived
            for update skip locked
          ));
        get diagnostics moved = row_count;
        revived := revived + moved;
    end loop;
    if revived > 0 then
        perform lock_internal.wake('lock_task', retry_tasks.queue_id);
    end if;
    return revived;
end;
$$;
-- +goose StatementEnd

comment on function lock.retry_tasks(text, integer, integer) is
    'Revives at most max dead letters of a queue (lock.dead_letter). Those that died first come '
    'first, and those that never were tried come last. The tasks are new, available now, with '
    'retries_left captures ahead (null: any number). Returns how many: call it again while it '
    'returns max. Their tries are 0 again. Never waits: it passes over what another transaction '
    'is changing. Wakes idle workers at commit. Errors: 22004 null queue_id or max; 22023 bad '
    'queue_id, retries_left or max below 1; 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/task/set_statuses.sql
-- +goose StatementBegin
-- set_statuses settles many captured tasks at once, and returns how many attempts were not stale.
create or replace function lock.set_statuses(
    ids       text[],
    attempts  bigint[],
    status    lock.task_status,
    queue_id  text      default 'default',
    delay     interval  default '0',
    message   text      default null,
    dead      boolean   default false
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
    freed    bigint[];
    settled  bigint;
begin
    if set_statuses.ids is null then
        perform lock_internal.check_ids(set_statuses.ids);
    end if;
    perform lock_internal.check_task(set_statuses.queue_id, set_statuses.status, null, null, null);
    if set_statuses.delay is distinct from interval '0' then
        perform lock_internal.check_interval(set_statuses.delay, 'delay', true);
    end if;
    if set_statuses.dead is null or set_statuses.dead and set_statuses.status <> 'failed' then
        perform lock_internal.check_dead(set_statuses.dead, set_statuses.status);
    end if;
    freed := lock_internal.held_keys(set_statuses.queue_id, set_statuses.ids, set_statuses.attempts);
    settled := lock_internal.settle(
        set_statuses.ids,
        set_statuses.attempts,
        array_fill(case when set_statuses.dead then 'dead' else set_statuses.status::text end, array[cardinality(set_statuses.ids)]),
        set_statuses.queue_id,
        case when set_statuses.delay <> interval '0' then array_fill(set_statuses.delay, array[cardinality(set_statuses.ids)]) end,
        case when set_statuses.message <> '' then array_fill(set_statuses.message, array[cardinality(set_statuses.ids)]) end
    );
    if freed is not null then
        perform lock_internal.wake('lock_task', set_statuses.queue_id);
    end if;
    return settled;
end;
$$;
-- +goose StatementEnd

comment on function lock.set_statuses(
    text[], bigint[], lock.task_status, text, interval, text, boolean
) is
    'Settles many captured tasks in one statement, each with its attempt as in lock.set_status, '
    'and returns how many were settled. It leaves out those whose attempt is stale and those that '
    'do not exist. It does what it is told: delay, message and dead are those of lock.set_status, '
    'for all of them. Waits while another transaction is changing one of them. Errors: 22004 a '
    'null; 22023 arrays of different lengths, an id twice, in_progress, bad id or delay, dead '
    'without failed.';

-- file: sql/functions/task/task_queues.sql
-- +goose StatementBegin
-- task_queues lists the first max queues that have tasks, by name. It hops from one to the next in
-- the indexes, so a long queue costs no more than a short one.
create or replace function lock_internal.task_queues(
    max  integer
)
returns setof text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    queue  text collate "C" := '';
begin
    for count in 1 .. task_queues.max loop
        queue := least(
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status <> 'in_progress'
                  and task.retries_left is distinct from 0
                  and task.key_number is null
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.key_number is not null
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status <> 'in_progress'
                  and task.retries_left = 0
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status = 'in_progress'
                  and task.deadline is not null
                order by task.queue_id
                limit 1
            ),
            (
                select task.queue_id
                from lock.task
                where task.queue_id > queue
                  and task.status = 'in_progress'
                  and task.deadline is null
                order by task.queue_id
                limit 1
            )
        );
        exit when queue is null;
        return next queue;
    end loop;
end;
$$;
-- +goose StatementEnd

-- end of functions

select lock_internal.end_migration(20261101000900, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000900 needs 20261101000800, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000900, 20261101000800, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.dead_letter, lock.task, lock.queue_limit}');
select lock_internal.refuse_loss('lock.task', 'status <> ''done''', 'tasks that are not done');
select lock_internal.refuse_loss('lock.queue_limit', 'per_key <> 1', 'limits of queues');

-- functions of task: written by make migration, not by hand

-- gone: sql/functions/task/task_queues.sql
drop function if exists lock_internal.task_queues(integer);

-- gone: sql/functions/task/set_statuses.sql
drop function if exists lock.set_statuses(text[], bigint[], lock.task_status, text, interval, text, boolean);

-- gone: sql/functions/task/retry_tasks.sql
drop function if exists lock.retry_tasks(text, integer, integer);

-- gone: sql/functions/task/retry_task.sql
drop function if exists lock.retry_task(text, integer, text);

-- gone: sql/functions/task/purge_tasks.sql
drop function if exists lock.purge_tasks(interval, integer, text, lock.task_status);

-- gone: sql/functions/task/list_tasks.sql
drop function if exists lock.list_tasks(text, lock.task_status, integer, text);

-- gone: sql/functions/task/limit_queue.sql
drop function if exists lock.limit_queue(text, integer);

-- gone: sql/functions/task/get_task.sql
drop function if exists lock.get_task(text, text);

-- gone: sql/functions/task/forgotten_tasks.sql
drop function if exists lock_internal.forgotten_tasks();

-- gone: sql/functions/task/extend_tasks.sql
drop function if exists lock.extend_tasks(text[], bigint[], interval, text);

-- gone: sql/functions/task/extend_task.sql
drop function if exists lock.extend_task(text, bigint, interval, text);

-- gone: sql/functions/task/delete_task.sql
drop function if exists lock.delete_task(text, text);

-- gone: sql/functions/task/set_status.sql
drop function if exists lock.set_status(text, lock.task_status, bigint, text, interval, text, boolean);

-- gone: sql/functions/task/create_tasks.sql
drop function if exists lock.create_tasks(text[], text, lock.task_status, integer, interval, jsonb, timestamptz, jsonb[], text[]);

-- gone: sql/functions/task/create_task.sql
drop function if exists lock.create_task(text, text, lock.task_status, integer, interval, jsonb, timestamptz, text, boolean);

-- gone: sql/functions/task/check_task.sql
drop function if exists lock_internal.check_task(text, lock.task_status, integer, interval, timestamptz);

-- gone: sql/functions/task/check_known.sql
drop function if exists lock_internal.check_known(text, text);

-- gone: sql/functions/task/check_dead.sql
drop function if exists lock_internal.check_dead(boolean, lock.task_status);

-- gone: sql/functions/task/await_task.sql
drop function if exists lock.await_task(text[], bigint[], text[], integer, text, text[], text, interval[], text[], interval, interval, integer, text, interval);

-- gone: sql/functions/task/next_task_in.sql
drop function if exists lock.next_task_in(text, text[]);

-- gone: sql/functions/task/capture.sql
drop function if exists lock.capture(integer, text, text[], text, timestamptz, integer);

-- gone: sql/functions/task/settle_and_capture.sql
drop function if exists lock.settle_and_capture(text[], bigint[], text[], integer, text, text[], text, interval[], text[], timestamptz, interval, interval, integer, boolean);

-- gone: sql/functions/task/move_due.sql
drop function if exists lock_internal.move_due(text, lock.task_status);

-- gone: sql/functions/task/choose_by_key.sql
drop function if exists lock_internal.choose_by_key(text, text[], integer);

-- gone: sql/functions/task/open_keys.sql
drop function if exists lock_internal.open_keys(text, text[], integer, bigint);

-- gone: sql/functions/task/key_number.sql
drop function if exists lock_internal.key_number(text, text);

-- gone: sql/functions/task/try_task_key.sql
drop function if exists lock_internal.try_task_key(bigint);

-- gone: sql/functions/task/settle.sql
drop function if exists lock_internal.settle(text[], bigint[], text[], text, interval[], text[], interval, interval, integer, text[]);

-- gone: sql/functions/task/backoff.sql
drop function if exists lock_internal.backoff(integer, interval, interval);

-- gone: sql/functions/task/check_statuses.sql
drop function if exists lock_internal.check_statuses(text[]);

-- gone: sql/functions/task/check_ids.sql
drop function if exists lock_internal.check_ids(text[]);

-- gone: sql/functions/task/held_keys.sql
drop function if exists lock_internal.held_keys(text, text[], bigint[]);

-- end of functions

drop view if exists lock.dead_letter;
drop table if exists lock.queue_limit;
drop table if exists lock.task;
drop type if exists lock.task_status;

select lock_internal.end_migration(20261101000900, 'down');
