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

comment on function lock.capture_request(uuid, bigint, text) is
    'Takes the first work of the queue that nobody else has, in the order of the entities'' oldest requests, passing over those whose oldest is '
    'not greater than after: an entity''s outstanding create alone, or else all its outstanding updates, oldest first, as in-progress for '
    'process_id. No row: nothing can be had now. Never waits; what others work on is skipped here. The entity is the caller''s until its '
    'transaction ends, and that transaction must call lock.settle_request before it commits (23503 settle_request_before_commit); rolled '
    'back, or when the caller dies, everything is new again. Errors: 22004 null, 22023 bad queue_id, 25006 read-only, 40001 (REPEATABLE READ, '
    'SERIALIZABLE, YugabyteDB: retry the transaction). After the lock state machine of a spreadsheet service; see docs/request.md.';

revoke all on function lock.capture_request(uuid, bigint, text) from public;
