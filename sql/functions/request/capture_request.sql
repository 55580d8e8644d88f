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
-- The walk's snapshot is older than the lock. So a worker may get the lock of an entity that
-- another has just settled. It gives the lock back by ending the inner block, which is a
-- subtransaction. Otherwise the entity's next requests would wait for a transaction that does not
-- work on them. The same happens to an entity with a request that was put back until later, and to
-- one that this transaction has already captured.
--
-- The update waits for an operator who settles a request by hand. It leaves out what was settled
-- meanwhile.
--
-- The row comparison leaves only one index that has the order. Without statistics the planner would
-- take the primary key. For the same reason only the walk says "not failed", and the update looks
-- at the status: see the indexes of lock.request.
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
    isolation  text := current_setting('transaction_isolation');
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
    if lock_internal.is_yugabyte() and to_regproc('yb_get_effective_transaction_isolation_level') is not null then
        execute format('select %s()', to_regproc('yb_get_effective_transaction_isolation_level')) into isolation;
    end if;
    if isolation not in ('read committed', 'read uncommitted') then
        raise exception 'requests are captured under READ COMMITTED, and this transaction is %', upper(isolation)
            using errcode = 'invalid_transaction_state',
                  hint = 'Begin it with: begin isolation level read committed. On YugabyteDB enable yb_enable_read_committed_isolation.';
    end if;

    for candidate in
        select request.entity_id
        from lock.request
        where (request.queue_id, request.request_id) > (capture_request.queue_id, capture_request.after)
          and request.queue_id <= capture_request.queue_id
          and request.settled_at is null
          and not request.failed
          and request.request_status = 'new'
          and (request.available_at is null or request.available_at <= clock_timestamp())
          and not exists (select from lock_internal.is_paused('request', capture_request.queue_id))
        order by request.queue_id, request.request_id
    loop
        continue when candidate.entity_id = any (met);
        met := met || candidate.entity_id;
        begin
            continue when not lock_internal.try_entity(capture_request.queue_id, candidate.entity_id);
            select coalesce(
                array_agg(request.request_id) filter (where request.request_type = 'create'),
                (array_agg(request.request_id order by request.request_id))[1:capture_request.max]
            )
            into taken
            from lock.request
            where request.queue_id = capture_request.queue_id
              and request.entity_id = candidate.entity_id
              and request.settled_at is null
            having bool_and(request.request_status = 'new' and (request.available_at is null or request.available_at <= clock_timestamp()));
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
end;
$$;

comment on function lock.capture_request(uuid, bigint, text, integer) is
    'Takes the first work of the queue that nobody else has, and returns its requests. The search '
    'follows the order of the outstanding requests, behind the line after. It takes the create of '
    'the first request''s entity alone. Without a create it takes the oldest max (1000) '
    'outstanding updates of that entity, oldest first. The requests become in-progress for '
    'process_id, and tries grows by 1. No row: nothing can be had now, or the queue is paused '
    '(lock.pause_queue). Never waits: it skips what others work on, and what is put back until '
    'later. The caller has the entity until its transaction ends. That transaction must call '
    'lock.settle_request before it commits (23503 settle_request_before_commit). After a rollback, '
    'also one to a savepoint, and when the caller dies, everything is new again. Errors: 22004 '
    'null, 22023 bad queue_id or max, 25000 not READ COMMITTED, 25006 read-only. After the lock '
    'state machine of a spreadsheet service; see docs/request.md.';
