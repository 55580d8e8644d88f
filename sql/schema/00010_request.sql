-- +goose Up
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(10, 'up');

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
        'A create is worked on alone, outstanding updates of one entity together, and only when there is no outstanding create.';
    comment on type lock.request_status is
        'new, then in-progress inside the worker''s transaction, and complete or error when that commits. Nobody else ever sees in-progress.';
end;
$$;
-- +goose StatementEnd

-- No check constraints: each would cost an insert of one row 3 microseconds. The types, and lock_internal.add_request, say the same.
create table if not exists lock.request (
    request_id      bigint               not null generated always as identity,
    queue_id        text collate "C"     not null default 'default',
    entity_id       text collate "C"     not null,
    request_type    lock.request_type    not null,
    request_status  lock.request_status  not null default 'new',
    payload         jsonb,
    process_id      uuid,
    message         text,
    attempts        integer              not null default 0,
    head            boolean              not null,
    available_at    timestamptz,
    created_at      timestamptz          not null default clock_timestamp(),
    started_at      timestamptz,
    settled_at      timestamptz,
    constraint request_pkey primary key (request_id)
);

comment on table lock.request is
    'Requests for work on entities: the queue of what is outstanding, and the history of what is settled, until it is purged. A plain insert of '
    'request_type, entity_id and, if wanted, queue_id and payload is as good as lock.enqueue.';

comment on column lock.request.request_id is
    'The order of the queue. Transactions may commit in another order.';

comment on column lock.request.process_id is
    'Who captured it last: the process_id of lock.capture_request.';

comment on column lock.request.message is
    'What lock.settle_request was given: why it is in error, or was put back.';

comment on column lock.request.attempts is
    'How often it was settled or put back; a worker''s rollback or death does not count.';

comment on column lock.request.head is
    'Whether the entity is found in the queue by this request; the others follow it. Kept by lock_internal.add_request, lock.capture_request and lock.settle_request.';

comment on column lock.request.available_at is
    'Put back to be tried again not before this time; its entity waits as long. Null: at once.';

comment on column lock.request.started_at is
    'When it was captured by the worker that settled it.';

-- See lock_internal.add_request for why one says head and the other head >= true.
create index if not exists request_queue_id_head_request_id_idx
    on lock.request (queue_id, head, request_id)
    where head;

create index if not exists request_queue_id_entity_id_head_request_id_idx
    on lock.request (queue_id, entity_id, head, request_id)
    where settled_at is null or head >= true;

create unique index if not exists request_one_create
    on lock.request (queue_id, entity_id)
    where request_type = 'create';

create index if not exists request_queue_id_entity_id_request_id_idx
    on lock.request (queue_id, entity_id, request_id)
    where settled_at is not null;

create index if not exists request_settled_at_idx
    on lock.request (settled_at asc)
    where settled_at is not null;

create table if not exists lock.request_batch (
    queue_id     text collate "C"  not null,
    entity_id    text collate "C"  not null,
    process_id   uuid              not null,
    request_ids  bigint[]          not null,
    heads        bigint[]          not null,
    free         bigint[]          not null,
    constraint request_batch_pkey primary key (queue_id, entity_id)
);

comment on table lock.request_batch is
    'Internal: what is captured and not yet settled. Rows live inside one worker''s transaction, and are never committed.';

comment on column lock.request_batch.heads is
    'The entity''s heads that the worker has locked.';

comment on column lock.request_batch.free is
    'Those of them that no open producer counts on, so that they can be taken off the queue.';

create index if not exists request_batch_process_id_idx
    on lock.request_batch (process_id);

create table if not exists lock.settled_process (
    process_id  uuid  not null,
    constraint settled_process_pkey primary key (process_id)
);

comment on table lock.settled_process is
    'Internal: always empty. A line of lock.request_batch refers to it at commit, and so cannot be committed.';

-- Deferred to the commit, when lock.settle_request has deleted the line. Not on YugabyteDB, where it is not known to spare deleted lines.
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

-- file: sql/functions/request/add_request.sql
-- +goose StatementBegin
-- add_request completes a new request: checks its ids, decides whether it is a head, and wakes the idle workers of its queue.
--
-- A request that finds a head of its entity becomes a follower, and locks that head for key share until it is committed.
-- A worker takes a head off the queue only when it could lock it for update: that fails while an uncommitted follower counts
-- on it, and what counted on it before is committed and found. A producer that meets such a lock, or finds on a newer
-- snapshot that the head is one no more, makes its own request a head. So nobody ever waits, neither producers nor workers.
-- Two heads of one entity do no harm; an entity without any would be lost. Where the snapshot can be old every request is
-- a head.
--
-- Two spellings of one condition: "head" reads the index of the queue's order, "head >= true" the index by entity. Neither
-- query can be planned on the other's index, whatever the statistics say.
create or replace function lock_internal.add_request()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    leader  bigint;
begin
    if new.entity_id is null or new.entity_id = '' or octet_length(new.entity_id) > 1024 then
        perform lock_internal.check_id(new.entity_id, 'entity_id');
    elsif new.queue_id is null or new.queue_id = '' or octet_length(new.queue_id) > 1024 then
        perform lock_internal.check_id(new.queue_id, 'queue_id');
    end if;

    if new.request_status in ('complete', 'error') then
        new.head := false;
        new.settled_at := coalesce(new.settled_at, clock_timestamp());
        return new;
    elsif new.request_status <> 'new' or new.settled_at is not null or new.process_id is not null then
        raise exception 'a request is inserted as new, and captured by lock.capture_request'
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave request_status, process_id and settled_at out; or, for a piece of history, insert it as complete or error.';
    end if;

    if current_setting('transaction_isolation') = 'read committed' then
        select request.request_id
        into leader
        from lock.request
        where request.queue_id = new.queue_id
          and request.entity_id = new.entity_id
          and request.head >= true
        limit 1
        for key share skip locked;
        new.head := leader is null or not exists (
            select
            from lock.request
            where request.request_id = leader
              and request.head
        );
    else
        new.head := true;
    end if;

    if current_setting('lock.woken', true) is distinct from 'lock_request ' || new.queue_id then
        perform lock_internal.wake('lock_request', new.queue_id);
    end if;
    return new;
end;
$$;
-- +goose StatementEnd

comment on function lock_internal.add_request() is
    'The trigger that completes a new request. Never waits. Errors: 22004, 22023 bad id or status.';

revoke all on function lock_internal.add_request() from public;

-- file: sql/functions/request/retire_heads.sql
-- +goose StatementBegin
-- retire_heads takes settled heads that are free off the queue, and makes the oldest outstanding request a head.
--
-- The caller holds the entity, and locked the heads for update before this function's snapshots: so everything that counted
-- on them is seen here.
create or replace function lock_internal.retire_heads(
    queue_id   text,
    entity_id  text,
    heads      bigint[]
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    oldest  bigint;
begin
    update lock.request
    set head = false
    where request.request_id = any (retire_heads.heads)
      and request.head
      and request.settled_at is not null;

    -- Sorted as the index by entity is, so that no other can be chosen for its order.
    select follower.request_id
    into oldest
    from lock.request as follower
    where follower.queue_id = retire_heads.queue_id
      and follower.entity_id = retire_heads.entity_id
      and follower.settled_at is null
      and not follower.head
      and follower.request_status = 'new'
    order by follower.head, follower.request_id
    limit 1;
    if found and not exists (
        select
        from lock.request
        where request.queue_id = retire_heads.queue_id
          and request.entity_id = retire_heads.entity_id
          and request.head >= true
          and request.settled_at is null
          and request.request_id < oldest
    ) then
        update lock.request
        set head = true
        where request.request_id = oldest;
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock_internal.retire_heads(text, text, bigint[]) is
    'Takes settled heads off the queue and puts the entity''s oldest outstanding request there. See lock_internal.add_request.';

revoke all on function lock_internal.retire_heads(text, text, bigint[]) from public;

-- file: sql/functions/request/capture_request.sql
-- +goose StatementBegin
-- capture_request takes the next work of a queue for the caller's transaction: one entity's create, or all its updates.
--
-- An entity stands in the queue where its oldest head stands; its followers are not looked at, however many they are. Who
-- holds an entity has locked all its heads. A head that appears later is committed by a producer that did not see the
-- others, so a lock alone proves nothing: it counts when a snapshot newer than the locks shows no head but the locked ones.
-- Of two who think they hold one entity, the later has then seen a head of the earlier, which it cannot have locked.
-- request_batch's primary key would refuse the second one in any case.
--
-- READ COMMITTED: each statement below has a snapshot of its own, and a head that changed while the search met it is judged
-- by its newest version. REPEATABLE READ and SERIALIZABLE: who worked on the entity since the snapshot has changed a head
-- that the snapshot shows, and that raises 40001.
--
-- Every head that no open producer counts on is then locked for update: from there on a producer makes its request a head
-- of its own, and what counted on this one is committed and seen by the statements below. It can be taken off the queue. The
-- others stay, settled as they may be, so that the entity is found again for what those producers commit. This needs
-- snapshots newer than the lock: elsewhere every head stays. A head must not be updated between the two locks: PostgreSQL
-- waits for a lock on a newer version of a row even where it is told to skip. So once this transaction has settled a head
-- that stays, it keeps all it captures (lock.heads_kept).
--
-- So a head may have been settled long ago, and nothing be left to do. When it is free by now it is taken off here.
--
-- Heads and the create may be committed until the very snapshot that the updates are taken on. A head that is not locked is
-- left, because others may count on it and only its lock would tell, and so is all behind it that may count on it; and before a
-- create nothing is taken. The next capture has them.
--
-- An entity that was passed over stays locked until the transaction ends, since there is no other way to look at it: when it was free
-- but for a moment, the others find it that much later. This takes a head that is committed late, with a lower number than others.
--
-- What was put back makes the whole entity wait: its heads say until when, and a head that came later does not overrule them.
--
-- Without statistics the planner takes the backlog for two rows, and would gladly read and sort them: hence index scans only.
create or replace function lock.capture_request(
    process_id  uuid,
    after       bigint  default 0,
    queue_id    text    default 'default'
)
returns setof lock.request
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    newest   constant boolean := current_setting('transaction_isolation') = 'read committed'
                                 and current_setting('lock.heads_kept', true) is distinct from 'true';
    line     bigint := capture_request.after;
    entity   text;
    first    bigint;
    others   bigint[];
    passed   boolean;
    locked   bigint[];
    free     bigint[] := array[]::bigint[];
    created  record;
    taken    bigint[];
begin
    if capture_request.process_id is null or capture_request.after is null then
        raise exception '% must not be null', case when capture_request.process_id is null then 'process_id' else 'after' end
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass gen_random_uuid() as process_id, and as after 0 or the first request_id of the last batch.';
    elsif capture_request.queue_id is null or capture_request.queue_id = '' or octet_length(capture_request.queue_id) > 1024 then
        perform lock_internal.check_id(capture_request.queue_id, 'queue_id');
    end if;
    perform lock_internal.check_primary();

    loop
        select candidate.request_id, candidate.entity_id
        into first, entity
        from lock.request as candidate
        where candidate.queue_id = capture_request.queue_id
          and candidate.head
          and candidate.request_id > line
          and (candidate.available_at is null or candidate.available_at <= clock_timestamp())
          and candidate.request_id <= (
            select oldest.request_id
            from lock.request as oldest
            where oldest.queue_id = candidate.queue_id
              and oldest.entity_id = candidate.entity_id
              and oldest.head >= true
            order by oldest.head, oldest.request_id
            limit 1
        )
        order by candidate.head, candidate.request_id
        limit 1
        for no key update of candidate skip locked;
        if not found then
            return;
        end if;
        line := first;

        select array_agg(request.request_id) filter (where request.request_id <> first),
               coalesce(bool_or(request.available_at > clock_timestamp()), false) or exists (
                select
                from lock.request_batch
                where request_batch.queue_id = capture_request.queue_id
                  and request_batch.entity_id = entity
               )
        into others, passed
        from lock.request
        where request.queue_id = capture_request.queue_id
          and request.entity_id = entity
          and request.head >= true;
        continue when passed;
        locked := array[first];
        if others is not null then
            select array_agg(other.request_id)
            into others
            from (
                select request.request_id
                from lock.request
                where request.request_id = any (others)
                  and request.head
                for no key update skip locked
            ) as other;
            locked := locked || others;
            continue when (
                select count(*)
                from lock.request
                where request.queue_id = capture_request.queue_id
                  and request.entity_id = entity
                  and request.head >= true
            ) <> cardinality(locked);
        end if;

        if newest then
            free := array(
                select request.request_id
                from lock.request
                where request.request_id = any (locked)
                for update skip locked
            );
        end if;

        -- The unique index has one create an entity; without settled_at in the condition no other index will do.
        select request.request_id, request.settled_at is null and (not request.head or request.request_id = any (locked)) as outstanding
        into created
        from lock.request
        where request.queue_id = capture_request.queue_id
          and request.entity_id = entity
          and request.request_type = 'create';
        if created.outstanding then
            update lock.request
            set request_status = 'in-progress',
                process_id = capture_request.process_id,
                started_at = clock_timestamp(),
                head = false
            where request.request_id = created.request_id
              and request.settled_at is null;
            if found then
                taken := array[created.request_id];
            end if;
        else
            with moved as (
                update lock.request
                set request_status = 'in-progress',
                    process_id = capture_request.process_id,
                    started_at = clock_timestamp(),
                    head = false
                where request.queue_id = capture_request.queue_id
                  and request.entity_id = entity
                  and request.settled_at is null
                  and request.request_type = 'update'
                  and (request.request_id = any (locked) or request.request_id < coalesce(
                    (
                        select min(late.request_id)
                        from lock.request as late
                        where late.queue_id = capture_request.queue_id
                          and late.entity_id = entity
                          and late.head >= true
                          and late.settled_at is null
                          and late.request_id <> all (locked)
                    ),
                    9223372036854775807
                  ))
                  and (
                    select late.settled_at is null
                    from lock.request as late
                    where late.queue_id = capture_request.queue_id
                      and late.entity_id = entity
                      and late.request_type = 'create'
                  ) is not true
                returning request.request_id
            )
            select array_agg(moved.request_id order by moved.request_id)
            into taken
            from moved;
        end if;
        exit when taken is not null;

        if free <> '{}' then
            perform lock_internal.retire_heads(capture_request.queue_id, entity, free);
        end if;
    end loop;

    insert into lock.request_batch (queue_id, entity_id, process_id, request_ids, heads, free)
    values (capture_request.queue_id, entity, capture_request.process_id, taken, locked, free);
    return query
        select *
        from lock.request
        where request.request_id = any (taken)
        order by request.request_id;
end;
$$;
-- +goose StatementEnd

comment on function lock.capture_request(uuid, bigint, text) is
    'Takes the first work of the queue that nobody else has, in the order of the entities'' oldest requests, passing over those whose oldest is '
    'not greater than after: an entity''s outstanding create alone, or else all its outstanding updates, oldest first, as in-progress for '
    'process_id. No row: nothing can be had now. Never waits; what others work on is skipped here. The entity is the caller''s until its '
    'transaction ends, and that transaction must call lock.settle_request before it commits (23503 settle_request_before_commit); rolled '
    'back, or when the caller dies, everything is new again. Errors: 22004 null, 22023 bad queue_id, 25006 read-only, 40001 (REPEATABLE READ, '
    'SERIALIZABLE, YugabyteDB: retry the transaction). After the lock state machine of a spreadsheet service; see docs/request.md.';

revoke all on function lock.capture_request(uuid, bigint, text) from public;

-- file: sql/functions/request/enqueue.sql
-- +goose StatementBegin
-- enqueue adds a request to a queue and returns its id; it counts when the caller's transaction commits.
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
        raise exception 'request_type is %, and must be create or update', enqueue.request_type
            using errcode = 'invalid_parameter_value',
                  hint = 'A create is worked on alone; updates that wait for one entity are worked on together.';
    end if;
    if enqueue.request_type = 'update' then
        insert into lock.request (request_type, entity_id, payload, queue_id)
        values ('update', enqueue.entity_id, enqueue.payload, enqueue.queue_id)
        returning request.request_id into added;
        return added;
    end if;
    insert into lock.request (request_type, entity_id, payload, queue_id)
    values ('create', enqueue.entity_id, enqueue.payload, enqueue.queue_id)
    on conflict (queue_id, entity_id) where request_type = 'create' do nothing
    returning request.request_id into added;
    if not found then
        raise exception 'entity % of queue % has a create already', enqueue.entity_id, enqueue.queue_id
            using errcode = 'unique_violation',
                  constraint = 'request_one_create',
                  hint = 'An entity has one create, settled or not, until it is purged: enqueue an update, or see lock.request_history.';
    end if;
    return added;
end;
$$;
-- +goose StatementEnd

comment on function lock.enqueue(text, text, jsonb, text) is
    'Adds a request, create or update, for an entity (1 to 1024 bytes) to a queue, and returns its id. It is part of the caller''s '
    'transaction: rolled back, it never was. Never waits for workers, and not for other producers, except a second create of one entity '
    'for the first''s transaction. Workers that idle are woken at commit. Errors: 22004 null, 22023 bad type or id, 23505 the entity '
    'has a create already, settled or not (40001 under REPEATABLE READ when that is newer than the snapshot). After the lock state machine of a spreadsheet service; see docs/request.md.';

revoke all on function lock.enqueue(text, text, jsonb, text) from public;

-- file: sql/functions/request/pass_on_head.sql
-- +goose StatementBegin
-- pass_on_head makes an entity's oldest outstanding request a head when one of its heads is deleted.
--
-- The delete has waited for everybody who counts on the head, and nobody can any more. To see what they committed takes a
-- snapshot newer than that.
create or replace function lock_internal.pass_on_head()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'request % may stand for others, which this snapshot does not show', old.request_id
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Delete under READ COMMITTED, or what is settled alone: lock.purge_requests.';
    end if;
    perform lock_internal.retire_heads(old.queue_id, old.entity_id, array[]::bigint[]);
    return null;
end;
$$;
-- +goose StatementEnd

comment on function lock_internal.pass_on_head() is
    'The trigger that hands the followers of a deleted head on. Error: 55000 unless READ COMMITTED.';

revoke all on function lock_internal.pass_on_head() from public;

-- file: sql/functions/request/purge_requests.sql
-- +goose StatementBegin
-- purge_requests deletes at most max requests that were settled longer ago than older_than, oldest first; how many.
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
    perform lock_internal.check_max(purge_requests.max);
    delete from lock.request
    where request.request_id = any (array(
        select old.request_id
        from lock.request as old
        where old.settled_at < clock_timestamp() - purge_requests.older_than
          and not old.head
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
    'Deletes at most max requests, of all queues, that were settled longer ago than older_than, oldest first, and returns how many: call it '
    'again, in a new transaction, until it returns less than max. Never waits, never stands in a worker''s way, never touches what is '
    'outstanding. A purged create may be created again. Errors: 22004 null, 22023 bad interval or max, 40001 under REPEATABLE READ.';

revoke all on function lock.purge_requests(interval, integer) from public;

-- file: sql/functions/request/request_history.sql
-- +goose StatementBegin
-- request_history answers what happened to an entity: its newest requests, outstanding and settled, newest first.
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
    perform lock_internal.check_max(request_history.max);
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
                  and not request.head
                order by request.head desc, request.request_id desc
                limit request_history.max
            )
            union all
            (
                select *
                from lock.request
                where request.queue_id = request_history.queue_id
                  and request.entity_id = request_history.entity_id
                  and request.settled_at is null
                  and request.head >= true
                order by request.head desc, request.request_id desc
                limit request_history.max
            )
        ) as newest
        order by newest.request_id desc
        limit request_history.max;
end;
$$;
-- +goose StatementEnd

comment on function lock.request_history(text, text, integer) is
    'The newest max requests of an entity, outstanding and settled, newest first: when each was made, started and settled, by which process, '
    'how often it was tried, and its message. Waits for nobody; what a worker is at is shown as new until it commits. '
    'Errors: 22004 null, 22023 bad id or max.';

revoke all on function lock.request_history(text, text, integer) from public;

-- file: sql/functions/request/settle_request.sql
-- +goose StatementBegin
-- settle_request ends what a process captured in this transaction: complete, error, or new for another try; how many.
--
-- Only what was captured is settled: a request that came later is not in request_batch. The heads that capture_request found
-- free are heads no more; the others stay, settled as they are. Those that are not in the batch are written unchanged, so that
-- whoever captures the entity on a snapshot from before meets a change, and gets 40001. A delay is for the whole entity, so
-- all its heads get it.
create or replace function lock.settle_request(
    process_id  uuid,
    status      text      default 'complete',
    message     text      default null,
    delay       interval  default '0'
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
    batch    record;
    kept     boolean;
    until    timestamptz;
    ended    timestamptz;
    moved    bigint;
    settled  bigint := 0;
begin
    if settle_request.process_id is null or settle_request.status is null then
        raise exception '% must not be null', case when settle_request.process_id is null then 'process_id' else 'status' end
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the process_id of lock.capture_request, and complete, error or new.';
    elsif settle_request.status not in ('complete', 'error', 'new') then
        raise exception 'status is %, and must be complete, error or new', settle_request.status
            using errcode = 'invalid_parameter_value',
                  hint = 'new puts the requests back for another try.';
    elsif settle_request.delay is distinct from interval '0' then
        perform lock_internal.check_interval(settle_request.delay, 'delay', false);
        if settle_request.status <> 'new' then
            raise exception 'what is settled as % cannot have a delay', settle_request.status
                using errcode = 'invalid_parameter_value',
                      hint = 'A delay is for status new: the time until the next try.';
        end if;
    end if;

    for batch in
        delete from lock.request_batch
        where request_batch.process_id = settle_request.process_id
        returning request_batch.*
    loop
        kept := cardinality(batch.free) < cardinality(batch.heads);
        if kept then
            perform set_config('lock.heads_kept', 'true', true);
        end if;
        if settle_request.status = 'new' then
            if settle_request.delay > interval '0' then
                until := (lock_internal.utc(clock_timestamp()) + settle_request.delay) at time zone interval '0';
                update lock.request
                set available_at = until
                where request.request_id = any (batch.heads)
                  and request.request_status <> 'in-progress';
            end if;
            update lock.request
            set request_status = 'new',
                process_id = null,
                started_at = null,
                attempts = request.attempts + 1,
                message = settle_request.message,
                available_at = until,
                head = request.request_id in (select unnest(batch.heads))
            where request.request_id = any (batch.request_ids);
            get diagnostics moved = row_count;
        else
            ended := clock_timestamp();
            update lock.request
            set request_status = settle_request.status::lock.request_status,
                settled_at = ended,
                attempts = request.attempts + 1,
                message = settle_request.message,
                head = kept and request.request_id in (select unnest(batch.heads) except select unnest(batch.free))
            where request.request_id = any (batch.request_ids);
            get diagnostics moved = row_count;
            if batch.heads <> batch.request_ids[1:1] then
                update lock.request
                set head = request.head
                where request.request_id = any (array(select unnest(batch.heads) except select unnest(batch.request_ids)))
                  and not (request.settled_at is not null and request.request_id = any (batch.free));
                if found then
                    perform set_config('lock.heads_kept', 'true', true);
                end if;
            end if;
            perform lock_internal.retire_heads(batch.queue_id, batch.entity_id, batch.free);
        end if;
        settled := settled + moved;
    end loop;
    return settled;
end;
$$;
-- +goose StatementEnd

comment on function lock.settle_request(uuid, text, text, interval) is
    'Settles everything that process_id captured in this transaction as complete or error, with a message that is kept, and returns how many '
    'requests that were (0: none, settled already, or another transaction''s). new puts them back at their old place for another try '
    'instead, not before delay is over; attempts counts the tries. The entity stays the caller''s until the transaction ends. Never waits. '
    'Errors: 22004 null, 22023 bad status or delay, 40001 under REPEATABLE READ and SERIALIZABLE.';

revoke all on function lock.settle_request(uuid, text, text, interval) from public;

-- end of functions

create or replace trigger request_add
    before insert on lock.request
    for each row when (new.head is null)
    execute function lock_internal.add_request();

create or replace trigger request_pass_on
    after delete on lock.request
    for each row when (old.head)
    execute function lock_internal.pass_on_head();

select lock_internal.end_migration(10, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(10, 'down');

-- +goose StatementBegin
do $$
begin
    if to_regclass('lock.request') is not null then
        drop trigger if exists request_add on lock.request;
        drop trigger if exists request_pass_on on lock.request;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions of request: written by make migration, not by hand

-- gone: sql/functions/request/settle_request.sql
drop function if exists lock.settle_request(uuid, text, text, interval);

-- gone: sql/functions/request/request_history.sql
drop function if exists lock.request_history(text, text, integer);

-- gone: sql/functions/request/purge_requests.sql
drop function if exists lock.purge_requests(interval, integer);

-- gone: sql/functions/request/pass_on_head.sql
drop function if exists lock_internal.pass_on_head();

-- gone: sql/functions/request/enqueue.sql
drop function if exists lock.enqueue(text, text, jsonb, text);

-- gone: sql/functions/request/capture_request.sql
drop function if exists lock.capture_request(uuid, bigint, text);

-- gone: sql/functions/request/retire_heads.sql
drop function if exists lock_internal.retire_heads(text, text, bigint[]);

-- gone: sql/functions/request/add_request.sql
drop function if exists lock_internal.add_request();

-- end of functions

drop table if exists lock.request_batch;
drop table if exists lock.settled_process;
drop table if exists lock.request;
drop type if exists lock.request_status;
drop type if exists lock.request_type;

select lock_internal.end_migration(10, 'down');
