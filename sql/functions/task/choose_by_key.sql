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
