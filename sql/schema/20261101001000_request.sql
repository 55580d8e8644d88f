-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101001000 needs 20261101000900, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101001000, 20261101000900, 'up');
end;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
do $$
begin
    if to_regtype('lock.request_type') is null then
        create type lock.request_type as enum ('create', 'update');
    end if;
    if to_regtype('lock.request_status') is null then
        create type lock.request_status as enum ('new', 'in-progress', 'complete', 'error');
    end if;
    comment on type lock.request_type is
        'A worker gets a create alone. It gets the outstanding updates of one entity together, '
        'once no create of that entity is outstanding.';
    comment on type lock.request_status is
        'new, then in-progress inside the worker''s transaction, and complete or error when that '
        'commits. No other session ever sees in-progress.';
end;
$$;
-- +goose StatementEnd

-- No check constraints: each would cost an insert of one row 3 microseconds. The types and
-- lock_internal.add_request check the same.
create table if not exists lock.request (
    request_id      bigint               not null generated always as identity,
    queue_id        text collate "C"     not null default 'default',
    entity_id       text collate "C"     not null,
    request_type    lock.request_type    not null,
    request_status  lock.request_status  not null default 'new',
    payload         jsonb,
    process_id      uuid,
    message         text,
    tries           integer              not null default 0,
    available_at    timestamptz,
    created_at      timestamptz          not null,
    started_at      timestamptz,
    settled_at      timestamptz,
    failed          boolean              not null generated always as (request_status = 'error') stored,
    constraint request_pkey primary key (request_id)
);

comment on table lock.request is
    'Requests for work on entities. Outstanding ones are the queue, and settled ones the history, '
    'until they are purged. The owner''s plain insert of request_type, entity_id and, if wanted, '
    'queue_id and payload does what lock.enqueue does.';

comment on column lock.request.request_id is
    'The order of the queue. Transactions may commit in another order.';

comment on column lock.request.process_id is
    'The process_id of lock.capture_request that captured it last.';

comment on column lock.request.message is
    'The message of lock.settle_request, at most 4000 characters of it: why the request is in '
    'error, or was put back.';

comment on column lock.request.tries is
    'How often it was captured, this time included. A capture that was rolled back, or whose '
    'worker died, does not count.';

comment on column lock.request.available_at is
    'It was put back, and is not tried again before this time. Its entity waits as long. Null: at '
    'once.';

comment on column lock.request.created_at is
    'The trigger that checks a new request sets it. Leave it out: a new request that comes with '
    'it counts as checked, and wakes nobody.';

comment on column lock.request.started_at is
    'When the worker that settled it captured it.';

comment on column lock.request.failed is
    'Whether it ended in error. An index uses it in place of the status, so that a capture, which '
    'changes the status, changes no index.';

-- The entity's outstanding requests. The sum keeps the planner from the primary key, which has the
-- same order, and the whole history.
create index if not exists request_outstanding
    on lock.request (queue_id, entity_id, (request_id + 0))
    where settled_at is null;

-- The queue: first what was put back and is due, then what was never put back.
create index if not exists request_put_back
    on lock.request (queue_id, available_at, request_id)
    where settled_at is null and available_at is not null;

create index if not exists request_fresh
    on lock.request (queue_id, (request_id + 0))
    where settled_at is null and available_at is null;

create unique index if not exists request_one_create
    on lock.request (queue_id, entity_id)
    where request_type = 'create' and not failed;

-- The entity's history.
create index if not exists request_queue_id_entity_id_request_id_settled_idx
    on lock.request (queue_id, entity_id, request_id)
    where settled_at is not null;

-- Requests that failed lately, for lock.queue_depth.
create index if not exists request_queue_id_settled_at_idx
    on lock.request (queue_id, settled_at)
    where failed;

create index if not exists request_settled_at_idx
    on lock.request (settled_at asc)
    where settled_at is not null;

create table if not exists lock.request_batch (
    process_id   uuid              not null,
    queue_id     text collate "C"  not null,
    entity_id    text collate "C"  not null,
    request_ids  bigint[]          not null,
    constraint request_batch_pkey primary key (process_id, queue_id, entity_id)
);

comment on table lock.request_batch is
    'Internal: requests that are captured and not yet settled. A row lives inside one worker''s '
    'transaction, and is never committed.';

create table if not exists lock.settled_process (
    process_id  uuid  not null,
    constraint settled_process_pkey primary key (process_id)
);

comment on table lock.settled_process is
    'Internal: always empty. A row of lock.request_batch refers to it at commit, and so cannot be '
    'committed.';

-- Deferred to the commit, when lock.settle_request has deleted the row. YugabyteDB does not have
-- it: nobody knows whether it spares deleted rows there.
-- +goose StatementBegin
do $$
begin
    if version() not like '%-YB-%'
        and not exists (select from pg_constraint where pg_constraint.conname = 'settle_request_before_commit')
    then
        alter table lock.request_batch
            add constraint settle_request_before_commit foreign key (process_id)
            references lock.settled_process (process_id) deferrable initially deferred;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions of request: written by make migration, not by hand

-- file: sql/functions/request/entity_number.sql
-- +goose StatementBegin
-- entity_number is the number of an entity's lock: a hash of 64 bits. Its seed, 'requests' in
-- ASCII, is used nowhere else.
create or replace function lock_internal.entity_number(
    queue_id   text,
    entity_id  text
)
returns bigint
language sql
immutable
parallel safe
as $$
    select pg_catalog.hashtextextended(entity_number.entity_id, pg_catalog.hashtextextended(entity_number.queue_id, 8243119441998738547));
$$;
-- +goose StatementEnd

-- file: sql/functions/request/add_request.sql
-- +goose StatementBegin
-- add_request completes a new request: it checks the ids, and wakes the idle workers of the queue.
--
-- A producer looks at no worker. A request of an entity that is put back gets its available_at,
-- so that no search meets it before. The next search finds what it commits.
create or replace function lock_internal.add_request()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    if new.entity_id is null or new.entity_id = '' or octet_length(new.entity_id) > 1024 then
        perform lock_internal.check_id(new.entity_id, 'entity_id');
    elsif new.queue_id is null or new.queue_id = '' or octet_length(new.queue_id) > 1024 then
        perform lock_internal.check_id(new.queue_id, 'queue_id');
    end if;
    new.created_at := coalesce(new.created_at, clock_timestamp());

    if new.request_status in ('complete', 'error') then
        new.settled_at := coalesce(new.settled_at, clock_timestamp());
        return new;
    elsif new.request_status <> 'new' or new.settled_at is not null or new.process_id is not null then
        raise exception 'a new request is inserted as new, and lock.capture_request captures it'
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave out request_status, process_id and settled_at. Insert a piece of history as complete or error.';
    end if;
    if new.available_at is null then
        new.available_at := (
            select request.available_at
            from lock.request
            where lock_internal.entity_number(request.queue_id, request.entity_id)
                  = lock_internal.entity_number(new.queue_id, new.entity_id)
              and request.settled_at is null
              and request.available_at > clock_timestamp()
            order by request.available_at desc
            limit 1
        );
    end if;
    perform lock_internal.wake('lock_request', new.queue_id);
    return new;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/request/try_entity.sql
-- +goose StatementBegin
-- try_entity takes the lock of an entity until the transaction ends, if nobody else has it; never
-- waits.
--
-- A worker holds this lock while it works on an entity. Producers never ask for it. The number is a
-- hash. Two entities with one number are not worked on at once, which costs time and nothing else.
-- The number is in the space of two integers, so no key lock has it.
create or replace function lock_internal.try_entity(
    queue_id   text,
    entity_id  text
)
returns boolean
language sql
volatile
as $$
    select case
        when lock_internal.is_advisory() then pg_catalog.pg_try_advisory_xact_lock(
            (lock_internal.entity_number(try_entity.queue_id, try_entity.entity_id) >> 32)::integer,
            lock_internal.entity_number(try_entity.queue_id, try_entity.entity_id)::bit(32)::integer
        )
        else lock_internal.hold_row(
            lock_internal.entity_number(try_entity.queue_id, try_entity.entity_id),
            'request ' || try_entity.queue_id || ' ' || try_entity.entity_id,
            shared => false,
            wait => interval '0'
        )
    end;
$$;
-- +goose StatementEnd

-- file: sql/functions/request/capture_request.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

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

-- file: sql/functions/request/next_request_in.sql
-- +goose StatementBegin
-- next_request_in says how soon the next request can be captured that was put back until later than
-- since, when a look began; null: there is none.
create or replace function lock_internal.next_request_in(
    queue_id  text,
    since     timestamptz
)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    if exists (select from lock_internal.is_paused('request', next_request_in.queue_id)) then
        return null;
    end if;
    return (
        select min(request.available_at)
        from lock.request
        where request.queue_id = next_request_in.queue_id
          and request.settled_at is null
          and request.available_at > next_request_in.since
    ) - clock_timestamp();
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/request/await_request.sql
-- +goose StatementBegin
-- await_request captures the next requests for the caller's transaction, or says how long to sleep.
--
-- It lists the worker as idle as lock.await_task does: one call lists, and the look of the next
-- call counts.
create or replace function lock.await_request(
    process_id  uuid,
    after       bigint    default null,
    queue_id    text      default 'default',
    worker      text      default null,
    poll        interval  default '30 seconds',
    max         integer   default 1000
)
returns table (
    request_id    bigint,
    entity_id     text,
    request_type  text,
    tries         integer,
    message       text,
    payload       jsonb,
    created_at    timestamptz,
    sleep         double precision
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    myself  constant text := coalesce(await_request.worker, 'pid ' || pg_backend_pid());
    line    bigint := coalesce(await_request.after, 0);
    began   constant timestamptz := clock_timestamp();
    listed  boolean;
begin
    perform lock_internal.check_id(await_request.queue_id, 'queue_id');
    perform lock_internal.check_id(myself, 'worker');
    perform lock_internal.check_interval(await_request.poll, 'poll', true);
    listed := lock_internal.begin_look('lock_request', await_request.queue_id, myself);
    loop
        return query
            select
                request.request_id, request.entity_id, request.request_type::text, request.tries, request.message, request.payload,
                request.created_at, 0::double precision
            from lock.capture_request(await_request.process_id, line, await_request.queue_id, await_request.max) as request;
        if found then
            if listed is not null then
                perform lock.stop_idling('lock_request', await_request.queue_id, myself);
            end if;
            return;
        end if;
        exit when line <= 0;
        line := 0;
    end loop;

    if listed is null and await_request.after > 0 then
        sleep := 0.005;
    else
        sleep := lock_internal.end_look(
            'lock_request', await_request.queue_id, myself, listed, await_request.poll,
            lock_internal.next_request_in(await_request.queue_id, began)
        );
    end if;
    return next;
end;
$$;
-- +goose StatementEnd

comment on function lock.await_request(uuid, bigint, text, text, interval, integer) is
    'Captures the next requests for the caller''s transaction, or says how long to sleep. It takes '
    'the arguments of lock.capture_request. When there are requests, it returns them: settle them '
    'with lock.settle_request before the commit. When there are none, it returns one row whose '
    'request_id is null: commit then, too. Its sleep is in seconds. A notification on channel '
    'lock_request, with the queue''s id as payload, that came since this call began ends the '
    'sleep early. Then call again, in a new transaction. Nothing is lost. The worker asks nothing '
    'between polls. While a transaction is open that may have missed the worker, it asks at most '
    'once a second. after: the request_id of the last answer''s first row; null: from the '
    'beginning. When nothing is left behind that line, the search starts from the beginning by '
    'itself. Call listen before the first call and after each reconnection. worker: a name that '
    'no other worker has; null: this session. A worker that ends calls lock.stop_idling, or does '
    'nothing. Requests of a worker that dies are found after poll at the latest. Where '
    'notifications do not arrive, pass a shorter poll. Errors: those of lock.capture_request; '
    '22023 bad worker or poll; 25001 called again in the transaction that found nothing.';

-- file: sql/functions/request/cancel_request.sql
-- +goose StatementBegin
-- cancel_request ends a request that nobody works on as error, and records the operator and the
-- reason.
--
-- It takes the entity's lock, as a worker does, and looks at the request in a later statement. So
-- the request is outstanding when it is ended, no worker has it, and no other transaction ends it.
create or replace function lock.cancel_request(
    request_id  bigint,
    reason      text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    wanted  lock.request;
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_text(cancel_request.reason, 'reason');
    if cancel_request.request_id is null then
        raise exception 'request_id must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the id of a request that is outstanding; lock.request_history shows it.';
    end if;
    select *
    into wanted
    from lock.request
    where request.request_id = cancel_request.request_id;
    if not found then
        raise exception 'there is no request %', cancel_request.request_id
            using errcode = 'no_data_found',
                  hint = 'It may have been settled and purged: look at lock.request_history.';
    elsif wanted.settled_at is not null or not lock_internal.try_entity(wanted.queue_id, wanted.entity_id) then
        return false;
    end if;
    -- Workers pass over the entity until this transaction ends, whatever it finds. They are woken
    -- then, because they may have missed something.
    perform lock_internal.wake('lock_request', wanted.queue_id);
    update lock.request
    set request_status = 'error',
        message = left('cancelled: ' || cancel_request.reason, 4000),
        settled_at = clock_timestamp()
    where request.request_id = cancel_request.request_id
      and request.request_status = 'new'
      and request.settled_at is null;
    if not found then
        return false;
    end if;
    -- What came behind it waited for it: see settle_request. It was never tried.
    update lock.request
    set available_at = null
    where request.queue_id = wanted.queue_id
      and request.entity_id = wanted.entity_id
      and request.settled_at is null
      and request.available_at is not null
      and request.tries = 0
      and not exists (
          select
          from lock.request as other
          where other.queue_id = wanted.queue_id
            and other.entity_id = wanted.entity_id
            and other.settled_at is null
            and other.available_at > clock_timestamp()
            and other.tries > 0
      );
    perform lock_internal.record_forced_release(
        'request',
        wanted.queue_id || ': ' || wanted.entity_id,
        cancel_request.reason,
        jsonb_build_object('action', 'cancel') || to_jsonb(wanted)
    );
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.cancel_request(bigint, text) is
    'For operators. Ends an outstanding request as error, and returns true. The reason (1 to 1024 '
    'bytes) becomes its message. Returns false when the request is settled, or when a worker has '
    'its entity now: ask again later. lock.forced_release records the operator, the reason and '
    'the request. The caller has the entity until the transaction ends. After a rollback the '
    'request is as it was. A cancelled create frees the updates behind it, as a create that ended '
    'in error does. Never waits. Wakes idle workers at commit. Errors: 22004 null, 22023 bad '
    'reason, P0002 no such request, 25006 read-only or standby, 40001 under REPEATABLE READ and '
    'SERIALIZABLE.';

-- file: sql/functions/request/enqueue.sql
-- +goose StatementBegin
-- enqueue adds a request to a queue and returns its id; it counts when the caller's transaction
-- commits.
--
-- A create looks first. The insert of a second create would wait for the worker that has the first.
-- Two creates that are made at the same time do not see each other, and one waits for the other's
-- transaction.
create or replace function lock.enqueue(
    request_type  text,
    entity_id     text,
    payload       jsonb  default null,
    queue_id      text   default 'default'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    added  bigint;
begin
    if enqueue.request_type is null then
        raise exception 'request_type must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass create or update.';
    elsif enqueue.request_type not in ('create', 'update') then
        raise exception 'request_type is %, and must be create or update', left(enqueue.request_type, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass create or update. A worker gets a create alone, and all waiting updates of one entity together.';
    end if;
    if enqueue.request_type = 'update' then
        insert into lock.request (request_type, entity_id, payload, queue_id)
        values ('update', enqueue.entity_id, enqueue.payload, enqueue.queue_id)
        returning request.request_id into added;
        return added;
    end if;
    if not exists (
        select
        from lock.request
        where request.queue_id = enqueue.queue_id
          and request.entity_id = enqueue.entity_id
          and request.request_type = 'create'
          and not request.failed
    ) then
        insert into lock.request (request_type, entity_id, payload, queue_id)
        values ('create', enqueue.entity_id, enqueue.payload, enqueue.queue_id)
        on conflict (queue_id, entity_id) where request_type = 'create' and not failed do nothing
        returning request.request_id into added;
    end if;
    if added is null then
        raise exception 'entity % of queue % has a create already', enqueue.entity_id, enqueue.queue_id
            using errcode = 'unique_violation',
                  constraint = 'request_one_create',
                  hint = 'Enqueue an update, or look at lock.request_history. An entity has one create until that is in error or purged.';
    end if;
    return added;
end;
$$;
-- +goose StatementEnd

comment on function lock.enqueue(text, text, jsonb, text) is
    'Adds a request, create or update, for an entity (1 to 1024 bytes) to a queue, and returns its '
    'id. It is part of the caller''s transaction: after a rollback it never was. Never waits for '
    'a worker. Waits for another producer only with a second create of one entity, until the '
    'first''s transaction ends. Idle workers are woken at commit. Errors: 22004 null, 22023 bad '
    'type or id, 23505 the entity has a create already that is not in error (40001 under '
    'REPEATABLE READ when that is newer than the snapshot). After the lock state machine of a '
    'spreadsheet service; see docs/request.md.';

-- file: sql/functions/request/purge_requests.sql
-- +goose StatementBegin
-- purge_requests deletes at most max requests that were settled longer ago than older_than, oldest
-- first, and returns how many.
create or replace function lock.purge_requests(
    older_than  interval,
    max         integer  default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    purged  bigint;
begin
    perform lock_internal.check_interval(purge_requests.older_than, 'older_than', false);
    perform lock_internal.check_count(purge_requests.max, 'max');
    delete from lock.request
    where request.request_id = any (array(
        select old.request_id
        from lock.request as old
        where old.settled_at < clock_timestamp() - purge_requests.older_than
        order by old.settled_at
        limit purge_requests.max
        for update skip locked
    ));
    get diagnostics purged = row_count;
    return purged;
end;
$$;
-- +goose StatementEnd

comment on function lock.purge_requests(interval, integer) is
    'For operators. Deletes at most max requests that were settled longer ago than older_than, '
    'oldest first, of all queues. Returns how many. Call it again, in a new transaction, until it '
    'returns less than max. Never waits, never makes a worker wait, and never touches an '
    'outstanding request. A purged create may be created again. Errors: 22004 null, 22023 bad '
    'interval or max, 40001 under REPEATABLE READ.';

-- file: sql/functions/request/puts_back.sql
-- +goose StatementBegin
-- puts_back says whether any entity of a queue is put back until later.
create or replace function lock_internal.puts_back(
    queue_id  text
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return exists (
        select
        from lock.request
        where request.queue_id = puts_back.queue_id
          and request.settled_at is null
          and request.available_at > clock_timestamp()
    );
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/request/request_history.sql
-- +goose StatementBegin
-- request_history returns the newest requests of an entity, outstanding and settled, newest first.
create or replace function lock.request_history(
    entity_id  text,
    queue_id   text     default 'default',
    max        integer  default 100
)
returns setof lock.request
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform lock_internal.check_id(request_history.entity_id, 'entity_id');
    perform lock_internal.check_id(request_history.queue_id, 'queue_id');
    perform lock_internal.check_count(request_history.max, 'max');
    return query
        select *
        from (
            (
                select *
                from lock.request
                where request.queue_id = request_history.queue_id
                  and request.entity_id = request_history.entity_id
                  and request.settled_at is not null
                order by request.request_id desc
                limit request_history.max
            )
            union all
            (
                select *
                from lock.request
                where request.queue_id = request_history.queue_id
                  and request.entity_id = request_history.entity_id
                  and request.settled_at is null
                order by request.request_id + 0 desc
                limit request_history.max
            )
        ) as newest
        order by newest.request_id desc
        limit request_history.max;
end;
$$;
-- +goose StatementEnd

comment on function lock.request_history(text, text, integer) is
    'The newest max requests of an entity, outstanding and settled, newest first. Each shows when '
    'it was made, started and settled, by which process, how often it was tried, and its message. '
    'Never waits. A request that a worker has now shows as new until that worker commits. Errors: '
    '22004 null, 22023 bad id or max.';

-- file: sql/functions/request/retry_request.sql
-- +goose StatementBegin
-- retry_request enqueues a request that ended in error once more, as a new request at the queue's
-- end.
--
-- The old request stays as history. Two callers that retry one request at once make two new
-- updates, as two calls of enqueue do. Of a create they make one, since an entity has one create
-- that is not in error.
create or replace function lock.retry_request(
    request_id  bigint
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    ended  lock.request;
begin
    if retry_request.request_id is null then
        raise exception 'request_id must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the id of a request that ended in error; lock.request_history shows it.';
    end if;
    select *
    into ended
    from lock.request
    where request.request_id = retry_request.request_id;
    if not found then
        raise exception 'there is no request %', retry_request.request_id
            using errcode = 'no_data_found',
                  hint = 'It may have been purged: call lock.enqueue as you did the first time.';
    elsif ended.request_status <> 'error' then
        raise exception 'request % is %, and only a request that ended in error can be retried', ended.request_id, ended.request_status
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Wait for a new or in-progress request. To do a complete one again, call lock.enqueue.';
    end if;
    return lock.enqueue(ended.request_type::text, ended.entity_id, ended.payload, ended.queue_id);
end;
$$;
-- +goose StatementEnd

comment on function lock.retry_request(bigint) is
    'Enqueues a request that ended in error once more, at the end of its queue, and returns the '
    'new request''s id. The old request stays as history. It is part of the caller''s '
    'transaction, and waits as lock.enqueue does. Called twice it enqueues an update twice. '
    'Errors: 22004 null, P0002 no such request, 55000 it is not in error, 23505 a create whose '
    'entity has been created since.';

-- file: sql/functions/request/settle_request.sql
-- +goose StatementBegin
-- settle_request ends what a process captured in this transaction, and returns how many requests:
-- as complete or error, or back for another try.
--
-- Nobody interleaves, because the transaction holds the entities' locks. A request that came later
-- is not in request_batch. A request that is put back until later makes its whole entity wait. So
-- up to 1000 others of the entity get the same available_at, and no search meets them.
create or replace function lock.settle_request(
    process_id  uuid,
    status      text      default 'complete',
    message     text      default null,
    delay       interval  default '0',
    expects     bigint    default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    ended    constant timestamptz := case when settle_request.status in ('complete', 'error') then clock_timestamp() end;
    until    timestamptz;
    settled  bigint;
begin
    if settle_request.process_id is null or settle_request.status is null then
        raise exception '% must not be null', case when settle_request.process_id is null then 'process_id' else 'status' end
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the process_id of lock.capture_request, and complete, error, retry or new.';
    elsif settle_request.status not in ('complete', 'error', 'retry', 'new') then
        raise exception 'status is %, and must be complete, error, retry or new', left(settle_request.status, 60)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass complete or error, retry to put the requests back for another try, or new to put them back untried.';
    elsif settle_request.delay is distinct from interval '0' then
        perform lock_internal.check_interval(settle_request.delay, 'delay', false);
        if settle_request.status in ('complete', 'error') then
            raise exception 'a request that is settled as % cannot have a delay', settle_request.status
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass a delay with status retry or new only: it is the time until the next try.';
        end if;
    end if;

    if settle_request.delay > interval '0' then
        until := (lock_internal.utc(clock_timestamp()) + settle_request.delay) at time zone interval '0';
        update lock.request
        set available_at = until
        where request.request_id = any (array(
            select behind.request_id
            from lock.request_batch
            cross join lateral (
                select request.request_id
                from lock.request
                where request.queue_id = request_batch.queue_id
                  and request.entity_id = request_batch.entity_id
                  and request.settled_at is null
                  and request.request_status = 'new'
                order by request.request_id + 0
                limit 1000
            ) as behind
            where request_batch.process_id = settle_request.process_id
        ));
    end if;
    with batch as (
        delete from lock.request_batch
        where request_batch.process_id = settle_request.process_id
        returning request_batch.request_ids
    )
    update lock.request
    set request_status = case when ended is null then 'new' else settle_request.status end::lock.request_status,
        tries = request.tries - (settle_request.status = 'new')::integer,
        process_id = case when ended is not null then request.process_id end,
        started_at = case when ended is not null then request.started_at end,
        message = left(settle_request.message, 4000),
        available_at = case when ended is null then until else request.available_at end,
        settled_at = ended
    where request.request_id = any (array(select unnest(batch.request_ids) from batch));
    get diagnostics settled = row_count;
    if settled <> settle_request.expects then
        raise exception 'process % settles % requests of this transaction, and expects %',
            settle_request.process_id, settled, settle_request.expects
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Something else settled or deleted requests of the batch, or began another transaction.';
    end if;
    return settled;
end;
$$;
-- +goose StatementEnd

comment on function lock.settle_request(uuid, text, text, interval, bigint) is
    'Settles everything that process_id captured in this transaction, as complete or error. It '
    'keeps the first 4000 characters of message. Returns how many requests that were. 0: there '
    'were none, they are settled already, or another transaction has them. retry puts them back '
    'at their old place for another try, not before delay is over. lock.capture_request counts '
    'the tries. new is the same as if they had not been captured: the try does not count. '
    'expects: how many it should be; null: any number. With another number it raises 55000. The '
    'caller has the entity until the transaction ends. Never waits. Errors: 22004 null, 22023 bad '
    'status or delay, 55000 not what expects says.';

-- end of functions

-- What is put back, by entity. Without columns of the indexes above, no other index can be taken for
-- it.
create index if not exists request_entity_put_back
    on lock.request (lock_internal.entity_number(queue_id, entity_id), available_at, request_id)
    where settled_at is null and available_at is not null;

create or replace trigger request_add
    before insert on lock.request
    for each row when (new.created_at is null or new.request_status <> 'new')
    execute function lock_internal.add_request();

select lock_internal.end_migration(20261101001000, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101001000 needs 20261101000900, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101001000, 20261101000900, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.request_batch, lock.settled_process, lock.request}');
select lock_internal.refuse_loss('lock.request', 'settled_at is null', 'requests that are not settled');

-- +goose StatementBegin
do $$
begin
    if to_regclass('lock.request') is not null then
        drop trigger if exists request_add on lock.request;
        drop index if exists lock.request_entity_put_back;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions of request: written by make migration, not by hand

-- gone: sql/functions/request/settle_request.sql
drop function if exists lock.settle_request(uuid, text, text, interval, bigint);

-- gone: sql/functions/request/retry_request.sql
drop function if exists lock.retry_request(bigint);

-- gone: sql/functions/request/request_history.sql
drop function if exists lock.request_history(text, text, integer);

-- gone: sql/functions/request/puts_back.sql
drop function if exists lock_internal.puts_back(text);

-- gone: sql/functions/request/purge_requests.sql
drop function if exists lock.purge_requests(interval, integer);

-- gone: sql/functions/request/enqueue.sql
drop function if exists lock.enqueue(text, text, jsonb, text);

-- gone: sql/functions/request/cancel_request.sql
drop function if exists lock.cancel_request(bigint, text);

-- gone: sql/functions/request/await_request.sql
drop function if exists lock.await_request(uuid, bigint, text, text, interval, integer);

-- gone: sql/functions/request/next_request_in.sql
drop function if exists lock_internal.next_request_in(text, timestamptz);

-- gone: sql/functions/request/capture_request.sql
drop function if exists lock.capture_request(uuid, bigint, text, integer);

-- gone: sql/functions/request/try_entity.sql
drop function if exists lock_internal.try_entity(text, text);

-- gone: sql/functions/request/add_request.sql
drop function if exists lock_internal.add_request();

-- gone: sql/functions/request/entity_number.sql
drop function if exists lock_internal.entity_number(text, text);

-- end of functions

drop table if exists lock.request_batch;
drop table if exists lock.settled_process;
drop table if exists lock.request;
drop type if exists lock.request_status;
drop type if exists lock.request_type;

select lock_internal.end_migration(20261101001000, 'down');
