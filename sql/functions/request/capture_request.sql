-- capture_request takes the next work of a queue for the caller's transaction: one entity's create,
-- or its oldest updates.
--
-- A worker has an entity while it holds the entity's lock (lock_internal.try_entity), until its
-- transaction ends. Only the holder settles. The worker that had the lock before has committed, and
-- a statement that begins after the lock has a newer snapshot. So what that statement sees
-- outstanding is outstanding. This needs READ COMMITTED: elsewhere the snapshot is older than the
-- lock.
--
-- Producers insert and look at nothing. What they commit after that snapshot is in nobody's batch.
-- The next capture finds it.
--
-- The walk goes through places: what was put back and is due, by its time, then what was never put
-- back, by its id. It reads pieces that double in size, and tries each entity once. The requests of
-- an entity that it passed over cost no more than their index entries.
--
-- After a batch the walk goes on behind the first place of the batch's entity. It takes no entity
-- that has a place before. So the place grows from look to look, whatever fails, and skips nothing.
-- An entity that was put back until later has left its place. After its first try the walk begins
-- with what is due, and after another with what was never put back. So neither starves the other.
--
-- The walk's snapshot is older than the lock. So a worker may get the lock of an entity that
-- another has just settled. It gives the lock back by ending the inner block, which is a
-- subtransaction. Otherwise the entity's next requests would wait for a transaction that does not
-- work on them. The same happens to an entity with a request that was put back until later, and to
-- one that this transaction has already captured.
--
-- lock.settle_request and lock_internal.add_request mark what is behind a request that is put back.
-- That only spares the walk. What has no mark is found, and passed over.
--
-- The update waits for an operator who settles a request by hand. It leaves out what was settled
-- meanwhile.
create or replace function lock.capture_request(
    process_id  uuid,
    after       bigint   default 0,
    queue_id    text     default 'default',
    max         integer  default 1000
)
returns setof lock.request
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    moment     constant timestamptz := clock_timestamp();
    line_at    timestamptz := timestamptz '-infinity';
    line_id    bigint := 0::bigint;
    last       lock.request;
    walk_at    timestamptz;
    walk_id    bigint;
    more       boolean;
    step       bigint := 4::bigint;
    candidate  record;
    met        text[] := array[]::text[];
    taken      bigint[];
begin
    if capture_request.process_id is null or capture_request.after is null then
        raise exception '% must not be null', case when capture_request.process_id is null then 'process_id' else 'after' end
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass gen_random_uuid() as process_id, and as after 0 or the first request_id of the last batch.';
    elsif capture_request.queue_id is null or capture_request.queue_id = '' or octet_length(capture_request.queue_id) > 1024 then
        perform lock_internal.check_id(capture_request.queue_id, 'queue_id');
    elsif capture_request.max is null or capture_request.max < 1 then
        perform lock_internal.check_count(capture_request.max, 'max');
    elsif pg_is_in_recovery() then
        perform lock_internal.check_primary();
    end if;
    perform lock_internal.check_read_committed('requests');

    if exists (select from lock_internal.is_paused('request', capture_request.queue_id)) then
        return;
    end if;
    if capture_request.after > 0 then
        select *
        into last
        from lock.request
        where request.request_id = capture_request.after;
        if last.request_id is null or last.settled_at is not null then
            line_at := coalesce(case when last.available_at <= moment then last.available_at end, 'infinity');
            line_id := capture_request.after;
        elsif last.available_at > moment then
            line_at := case when last.tries > 1 or last.tries = 0 and random() < 0.5 then timestamptz 'infinity' else '-infinity' end;
        else
            select place.at, place.id
            into line_at, line_id
            from (
                (
                    select request.available_at as at, request.request_id as id
                    from lock.request
                    where lock_internal.entity_number(request.queue_id, request.entity_id)
                          = lock_internal.entity_number(last.queue_id, last.entity_id)
                      and request.settled_at is null
                      and request.available_at <= moment
                    order by request.available_at, request.request_id
                    limit 1
                )
                union all
                (
                    select 'infinity', request.request_id
                    from lock.request
                    where last.request_type = 'create'
                      and request.queue_id = last.queue_id
                      and request.entity_id = last.entity_id
                      and request.settled_at is null
                    order by request.request_id + 0
                    limit 1
                )
                union all
                select 'infinity', last.request_id
                limit 1
            ) as place;
        end if;
    end if;
    walk_at := line_at;
    walk_id := line_id;

    loop
        more := false;
        for candidate in
            select
                place.entity_id,
                max(place.at) filter (where place.number = step) as at,
                max(place.id) filter (where place.number = step) as id,
                exists (
                    select
                    from lock.request
                    where lock_internal.entity_number(request.queue_id, request.entity_id)
                          = lock_internal.entity_number(capture_request.queue_id, place.entity_id)
                      and request.settled_at is null
                      and request.available_at > moment
                ) as waits
            from (
                select piece.at, piece.id, piece.entity_id, row_number() over () as number
                from (
                    (
                        select request.available_at as at, request.request_id as id, request.entity_id
                        from lock.request
                        where request.queue_id = capture_request.queue_id
                          and request.settled_at is null
                          and request.available_at <= moment
                          and (request.available_at, request.request_id) > (walk_at, walk_id)
                          and request.entity_id not in (select unnest(met))
                        order by request.available_at, request.request_id
                        limit step
                    )
                    union all
                    (
                        select 'infinity', request.request_id, request.entity_id
                        from lock.request
                        where request.queue_id = capture_request.queue_id
                          and request.settled_at is null
                          and request.available_at is null
                          and request.request_id + 0 > case when walk_at = 'infinity' then walk_id else 0 end
                          and request.entity_id not in (select unnest(met))
                        order by request.request_id + 0
                        limit step
                    )
                    limit step
                ) as piece
            ) as place
            group by place.entity_id
            order by min(place.number)
        loop
            if candidate.id is not null then
                walk_at := candidate.at;
                walk_id := candidate.id;
                more := true;
            end if;
            met := met || candidate.entity_id;
            continue when candidate.waits;
            begin
                continue when not lock_internal.try_entity(capture_request.queue_id, candidate.entity_id);
                with oldest as (
                    select request.request_id, request.request_status, request.available_at
                    from lock.request
                    where request.queue_id = capture_request.queue_id
                      and request.entity_id = candidate.entity_id
                      and request.settled_at is null
                    order by request.request_id + 0
                    limit capture_request.max
                ), created as (
                    select request.request_id, request.request_status, request.available_at
                    from lock.request
                    where request.queue_id = capture_request.queue_id
                      and request.entity_id = candidate.entity_id
                      and request.request_type = 'create'
                      and not request.failed
                      and request.settled_at is null
                ), work as (
                    select * from created
                    union all
                    select * from oldest where not exists (select from created)
                )
                select array_agg(work.request_id order by work.request_id)
                into taken
                from work
                having bool_and(work.request_status = 'new')
                   and (line_at < 'infinity' or (select min(oldest.request_id) from oldest) > line_id)
                   and not exists (
                        select
                        from lock.request
                        where lock_internal.entity_number(request.queue_id, request.entity_id)
                              = lock_internal.entity_number(capture_request.queue_id, candidate.entity_id)
                          and request.settled_at is null
                          and request.available_at <= moment
                          and (request.available_at, request.request_id) <= (line_at, line_id)
                    )
                   and not exists (
                        select
                        from lock.request
                        where lock_internal.entity_number(request.queue_id, request.entity_id)
                              = lock_internal.entity_number(capture_request.queue_id, candidate.entity_id)
                          and request.settled_at is null
                          and request.available_at > moment
                    );
                if not found then
                    raise no_data_found;
                end if;
            exception
                when no_data_found then
                    continue;
            end;

            return query
                with captured as (
                    update lock.request
                    set request_status = 'in-progress',
                        process_id = capture_request.process_id,
                        tries = request.tries + 1,
                        started_at = clock_timestamp()
                    where request.request_id = any (taken)
                      and request.request_status = 'new'
                    returning request.*
                ), batch as (
                    insert into lock.request_batch (process_id, queue_id, entity_id, request_ids)
                    select capture_request.process_id, capture_request.queue_id, candidate.entity_id, array_agg(captured.request_id)
                    from captured
                    having count(*) > 0
                )
                select *
                from captured
                order by captured.request_id;
            if found then
                return;
            end if;
        end loop;
        exit when not more;
        step := step * 2;
    end loop;
end;
$$;

comment on function lock.capture_request(uuid, bigint, text, integer) is
    'Takes the first work of the queue that nobody else has, and returns its requests. The search '
    'goes through what was put back and is due, by its time, then through the others by '
    'request_id, behind the request after. It takes the create of the first request''s entity '
    'alone. Without a create it takes the oldest max (1000) outstanding updates of that entity, '
    'oldest first. The requests become in-progress for process_id, and tries grows by 1. No row: '
    'nothing can be had now, or the queue is paused (lock.pause_queue). Never waits: it skips what '
    'others work on, and what is put back until later. The caller has the entity until its '
    'transaction ends. That transaction must call lock.settle_request before it commits (23503 '
    'settle_request_before_commit). After a rollback, also one to a savepoint, and when the caller '
    'dies, everything is new again. Errors: 22004 null, 22023 bad queue_id or max, 25000 not READ '
    'COMMITTED, 25006 read-only. After the lock state machine of a spreadsheet service; see '
    'docs/request.md.';
