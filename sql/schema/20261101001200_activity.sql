-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101001200 needs 20261101001100, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101001200, 20261101001100, 'up');
end;
$$;
-- +goose StatementEnd

create table if not exists lock.key_session (
    key                bigint       not null,
    name               text         not null,
    mode               text,
    granted            boolean,
    pid                integer,
    owner              text,
    application        text,
    since              timestamptz,
    blocked_by         integer[],
    state              text,
    transaction_since  timestamptz,
    query              text,
    hint               text
);

comment on table lock.key_session is
    'The row type of lock.who(). Always empty. key; name (by number where no name is known); mode '
    '(shared, exclusive, or unknown: a holder on the row engine); granted (false: waits); pid (0: '
    'a prepared transaction); owner (the role); application; since (granted: when the transaction '
    'began; else when the wait did); blocked_by (the sessions that a waiter waits for, those in '
    'front in the queue included); state, transaction_since and query of the session; hint (in a '
    'row of its own, whose mode, granted and pid are null: a key that looks alike is in use).';

create table if not exists lock.queue_size (
    kind           text         not null,
    queue_id       text         not null,
    ready          bigint       not null,
    delayed        bigint       not null,
    running        bigint,
    overdue        bigint,
    dead           bigint       not null,
    oldest_ready   timestamptz,
    paused_since   timestamptz,
    paused_reason  text,
    endless        bigint,
    waiting        bigint       not null
);

comment on table lock.queue_size is
    'The row type of lock.queue_sizes(), with the columns of lock.queue_depth. Always empty.';

create table if not exists lock.cleaned (
    kind     text    not null,
    removed  bigint  not null
);

comment on table lock.cleaned is
    'The row type of lock.clean(): how many of a kind it deleted. Always empty.';

-- functions of activity: written by make migration, not by hand

-- file: sql/functions/activity/clean.sql
-- +goose StatementBegin
-- clean deletes what no kind needs any more, at most max of each, and says how many there were.
--
-- Timeouts and throttled resources stay: who acquires one that is gone gets an error, since they
-- are made beforehand. Dead letters stay, too.
create or replace function lock.clean(
    older_than  interval  default '30 days',
    max         integer   default 10000
)
returns setof lock.cleaned
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tasks  bigint := 0;
    queue  text;
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_interval(clean.older_than, 'older_than', false);
    perform lock_internal.check_count(clean.max, 'max');
    for queue in
        select task_queues from lock_internal.task_queues(clean.max)
    loop
        exit when tasks >= clean.max;
        tasks := tasks + lock.purge_tasks(clean.older_than, (clean.max - tasks)::integer, queue);
    end loop;
    return query
        values
            ('task', tasks),
            ('request', lock.purge_requests(clean.older_than, clean.max)),
            ('mutex', lock.drop_unused_mutexes(clean.older_than, clean.max)),
            ('time_slot', lock.drop_unused_time_slots(clean.older_than, clean.max)),
            ('rate_limit', lock.drop_unused_rate_limits(clean.older_than, clean.max)),
            ('lease', lock.drop_unused_leases(clean.older_than, clean.max)),
            ('key', lock.vacuum());
end;
$$;
-- +goose StatementEnd

comment on function lock.clean(interval, integer) is
    'For operators. Deletes what nobody needs any more, and returns a row for each kind with how '
    'many there were: done tasks of every queue and settled requests that ended longer ago than '
    'older_than; mutexes, time slots, rate limits and leases that nobody has, and that were unused '
    'that long; and keys that nobody holds. At most max of each kind but keys: call it again, in a '
    'new transaction, until every kind says less than max. Once a day is a good habit. Dead '
    'letters stay, and so do timeouts and throttled resources, which are made beforehand. Skips '
    'what others hold. Never waits, and makes nobody wait. Errors: 22004 null; 22023 bad interval, '
    'max below 1; 25006 read-only or standby; 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/activity/queue_sizes.sql
-- +goose StatementBegin
-- queue_sizes is lock.queue_depth for monitors: it counts to max and no further, by the indexes
-- alone.
--
-- The recursions hop from one queue to the next in the indexes, so a long queue costs no more than
-- a short one. With an equality on a queue's requests the planner would walk the primary key
-- instead, through the whole history.
create or replace function lock.queue_sizes(
    max  integer  default 1000
)
returns setof lock.queue_size
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
begin
    perform lock_internal.check_count(queue_sizes.max, 'max');
    return query
    with recursive request_queue (id) as (
        select ''::text collate "C"
        union all
        select least(
            (
                select request.queue_id
                from lock.request
                where request.queue_id > request_queue.id
                  and request.settled_at is null
                order by request.queue_id
                limit 1
            ),
            (
                select request.queue_id
                from lock.request
                where request.queue_id > request_queue.id
                  and request.failed
                order by request.queue_id
                limit 1
            )
        )
        from request_queue
        where request_queue.id is not null
    ),
    size as (
        select
            'task'::text as kind,
            queue.id,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status in ('new', 'failed')
                      and task.status <> 'in_progress'
                      and task.retries_left is distinct from 0
                      and task.key_number is null
                      and task.available_at <= right_now
                    limit queue_sizes.max
                ) as entry
            ) as ready,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status in ('new', 'failed')
                      and task.status <> 'in_progress'
                      and task.retries_left is distinct from 0
                      and task.key_number is null
                      and task.available_at > right_now
                    limit queue_sizes.max
                ) as entry
            ) as delayed,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = 'in_progress'
                      and task.deadline > right_now
                    limit queue_sizes.max
                ) as entry
            ) as timed,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = 'in_progress'
                      and task.deadline is null
                    limit queue_sizes.max
                ) as entry
            ) as endless,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = 'in_progress'
                      and task.deadline <= right_now
                    limit queue_sizes.max
                ) as entry
            ) as overdue,
            (
                select count(*)
                from (
                    select
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status in ('new', 'failed')
                      and task.status <> 'in_progress'
                      and task.retries_left = 0
                    limit queue_sizes.max
                ) as entry
            ) as dead,
            (
                select min(oldest.available_at)
                from unnest('{new,failed}'::lock.task_status[]) as wanted
                cross join lateral (
                    select task.available_at
                    from lock.task
                    where task.queue_id = queue.id
                      and task.status = wanted
                      and task.status <> 'in_progress'
                      and task.retries_left is distinct from 0
                      and task.key_number is null
                      and task.available_at <= right_now
                    order by task.available_at
                    limit 1
                ) as oldest
            ) as oldest_ready,
            by_key.ready as ready_by_key,
            by_key.waiting,
            by_key.oldest_ready as oldest_by_key
        from lock_internal.task_queues(queue_sizes.max) as queue (id)
        cross join lateral (
            select
                coalesce(sum(least(entry.due, entry.free)), 0)::bigint as ready,
                coalesce(sum(entry.due - least(entry.due, entry.free)), 0)::bigint as waiting,
                min(entry.oldest) filter (where entry.free > 0) as oldest_ready
            from (
                select
                    count(*) as due,
                    min(piece.available_at) as oldest,
                    greatest(
                        0,
                        coalesce((select queue_limit.per_key from lock.queue_limit where queue_limit.queue_id = queue.id), 1) - (
                            select count(*)
                            from lock.task
                            where task.queue_id = queue.id
                              and task.key_number = piece.key_number
                              and case task.status when 'in_progress' then 1 else 0 end = 1
                        )
                    ) as free
                from (
                    select task.key_number, task.available_at
                    from lock.task
                    where task.queue_id = queue.id
                      and task.key_number is not null
                      and case task.status when 'in_progress' then 1 else 0 end = 0
                    order by task.key_number, task.available_at
                    limit queue_sizes.max
                ) as piece
                group by piece.key_number
            ) as entry
        ) as by_key
        union all
        select
            'request',
            queue.id,
            outstanding.ready,
            outstanding.delayed,
            null,
            null,
            null,
            (
                select count(*)
                from (
                    select
                    from lock.request
                    where request.queue_id = queue.id
                      and request.failed
                      and request.settled_at > right_now - interval '1 day'
                    limit queue_sizes.max
                ) as entry
            ),
            outstanding.oldest_ready,
            0,
            0,
            null
        from (select request_queue.id from request_queue where request_queue.id <> '' limit queue_sizes.max) as queue
        cross join lateral (
            select
                count(*) filter (where entry.ready) as ready,
                count(*) filter (where not entry.ready) as delayed,
                min(entry.created_at) filter (where entry.ready) as oldest_ready
            from (
                (
                    select true as ready, piece.created_at
                    from (
                        (
                            select request.created_at
                            from lock.request
                            where request.queue_id = queue.id
                              and request.settled_at is null
                              and request.available_at <= right_now
                            order by request.available_at, request.request_id
                            limit queue_sizes.max
                        )
                        union all
                        (
                            select request.created_at
                            from lock.request
                            where request.queue_id = queue.id
                              and request.settled_at is null
                              and request.available_at is null
                            order by request.request_id + 0
                            limit queue_sizes.max
                        )
                    ) as piece
                    limit queue_sizes.max
                )
                union all
                (
                    select false, request.created_at
                    from lock.request
                    where request.queue_id = queue.id
                      and request.settled_at is null
                      and request.available_at > right_now
                    order by request.available_at, request.request_id
                    limit queue_sizes.max
                )
            ) as entry
        ) as outstanding
    )
    select
        coalesce(size.kind, paused.kind)::text,
        coalesce(size.id, paused.queue_id)::text,
        least(coalesce(size.ready + size.ready_by_key, 0), queue_sizes.max),
        coalesce(size.delayed, 0),
        case when size.timed is not null then least(size.timed + size.endless, queue_sizes.max) end,
        size.overdue,
        coalesce(size.dead, 0),
        least(size.oldest_ready, size.oldest_by_key),
        paused.paused_at,
        paused.reason,
        size.endless,
        coalesce(size.waiting, 0)
    from size
    full join (
        select queue_pause.kind, queue_pause.queue_id, queue_pause.paused_at, queue_pause.reason
        from lock.queue_pause
        where queue_pause.resumed_at is null
    ) as paused on paused.kind = size.kind and paused.queue_id = size.id
    where paused.kind is not null
       or size.ready + size.ready_by_key + size.delayed + coalesce(size.timed + size.endless + size.overdue + size.waiting, 0) + size.dead > 0;
end;
$$;
-- +goose StatementEnd

comment on function lock.queue_sizes(integer) is
    'lock.queue_depth at a bounded cost, for monitors. It has the same columns, but each count '
    'ends at max (1000). Of each kind it looks at no more than max queues, by name. The '
    'oldest_ready of requests is the oldest of the first max that are ready. Waits for nobody, '
    'changes nothing, works on a standby. It costs some index entries for each queue, and at most '
    'max for each count. Errors: 22004 null, 22023 max below 1.';

-- file: sql/functions/activity/row_at.sql
-- +goose StatementBegin
-- row_at names the row that somebody waits for, by the address in pg_locks; null: not a row with a
-- name.
--
-- YugabyteDB has no such addresses, and shows no tuple locks. Only ids leave this function: roles
-- call it through lock.blocked.
create or replace function lock_internal.row_at(
    relation  regclass,
    page      integer,
    tuple     smallint
)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    id    text;
    name  text;
begin
    id := case row_at.relation
        when to_regclass('lock.locked_keys') then 'key'
        when to_regclass('lock.mutex') then 'task_id'
        when to_regclass('lock.timeout') then 'task_id'
        when to_regclass('lock.time_slot') then 'task_id'
        when to_regclass('lock.throttled_resource') then 'resource_id'
        when to_regclass('lock.throttled_permit') then 'resource_id'
        when to_regclass('lock.rate_limit') then 'limit_id'
        when to_regclass('lock.lease') then 'name'
        when to_regclass('lock.lease_name') then 'name'
        when to_regclass('lock.task') then 'queue_id || '': '' || id'
        when to_regclass('lock.request') then 'queue_id || '': '' || entity_id'
    end;
    if id is null or lock_internal.is_yugabyte() then
        return null;
    end if;
    execute format('select %s from %s where ctid = %L::tid', id, row_at.relation, format('(%s,%s)', row_at.page, row_at.tuple))
    into name;
    return name;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/activity/uncleaned.sql
-- +goose StatementBegin
-- uncleaned describes a history that nobody seems to clean: null when it is small. It counts to ten
-- thousand, and looks at no more than a hundred queues.
create or replace function lock_internal.uncleaned()
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    enough  constant integer := 10000;
    before  constant timestamptz := clock_timestamp() - interval '60 days';
    kept    bigint;
begin
    select count(*)
    into kept
    from (
        select
        from lock.request
        where request.settled_at < before
        order by request.settled_at
        limit enough
    ) as settled;
    if kept < enough then
        select kept + count(*)
        into kept
        from (
            select task_queues as id from lock_internal.task_queues(100)
        ) as queue
        cross join lateral (
            select
            from lock.task
            where task.queue_id = queue.id
              and task.status = 'done'
              and task.status <> 'in_progress'
              and task.retries_left is distinct from 0
              and task.key_number is null
              and task.available_at < before
            order by task.available_at
            limit enough
        ) as done;
    end if;
    if kept >= enough then
        return format('%s tasks and requests or more were done over 60 days ago, and are still kept', enough);
    end if;
    return null;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/activity/waiters.sql
-- +goose StatementBegin
-- waiters lists the sessions that wait for a key, or for a row of schema lock, and the root of each
-- one's chain.
--
-- It runs with the caller's rights, because PostgreSQL hides the queries of other roles by those.
--
-- It reads pg_locks once, and asks the lock manager once for each waiting session of the server: a
-- chain may lead through locks of any sort. An object is what a session waits for. A node is a
-- session's pid, or the virtual transaction of a prepared one.
--
-- An object with two modes has every holder in front of every waiter, if only behind another
-- waiter. So the edges lead to holders alone: edges to the rest of the queue would be as many as
-- its square. The roots are carried backwards along the edges. On YugabyteDB pg_blocking_pids sees
-- no row locks, and ybdetails has the transactions.
--
-- The planner takes a recursion for huge, and would compile what runs for milliseconds. The
-- function is in PL/pgSQL, because the server plans a function in SQL at every call.
create or replace function lock_internal.waiters()
returns table (kind text, key bigint, id text, mode text, pid integer, owner text, application text, since timestamptz, query text, blocked_by integer[], held_by integer[], root_pid integer, root_owner text, root_application text, root_state text, root_since timestamptz, root_query text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    with recursive seen as materialized (
        select
            pg_locks.pid,
            pg_locks.granted,
            pg_locks.locktype,
            pg_locks.mode::text as mode,
            pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database()) as here,
            pg_locks.relation,
            pg_locks.page,
            pg_locks.tuple,
            pg_locks.classid::bigint as classid,
            pg_locks.objid::bigint as objid,
            pg_locks.objsubid,
            coalesce(pg_locks.pid::text, pg_locks.virtualtransaction) as node,
            concat_ws(
                ' ', pg_locks.locktype, pg_locks.database, pg_locks.relation, pg_locks.page, pg_locks.tuple, pg_locks.virtualxid,
                pg_locks.transactionid, pg_locks.classid, pg_locks.objid, pg_locks.objsubid,
                case when version() like '%-YB-%' then to_jsonb(pg_locks) #>> '{ybdetails,keyrangedetails}' end
            ) as object,
            case when not pg_locks.granted then (to_jsonb(pg_locks) ->> 'waitstart')::timestamptz end as since,
            case when version() like '%-YB-%' then to_jsonb(pg_locks) -> 'ybdetails' end as details
        from pg_locks
    ),
    waiting as materialized (
        select asked.*
        from (
            select
                one.*,
                array(
                    select distinct blocker
                    from unnest(case when one.details is null then pg_blocking_pids(one.pid) else array(
                        select seen.pid
                        from seen
                        where seen.granted
                          and seen.details ->> 'transactionid' in (select jsonb_array_elements_text(one.details -> 'blocked_by'))
                    ) end) as blocker
                    order by blocker
                ) as blocked_by
            from (
                select distinct on (seen.pid) seen.*
                from seen
                where not seen.granted
                order by seen.pid, seen.details #>> '{keyrangedetails,cols,0}'
            ) as one
        ) as asked
        where asked.blocked_by <> '{}'
    ),
    holder as materialized (
        select distinct
            waiting.pid,
            waiting.node,
            coalesce(seen.pid, 0) as holder_pid,
            seen.node as holder_node,
            waiting.locktype in ('advisory', 'tuple', 'transactionid') or coalesce(seen.pid, 0) = any (waiting.blocked_by) as in_front
        from waiting
        join seen on seen.object = waiting.object and seen.granted and seen.pid is distinct from waiting.pid
    ),
    held as materialized (
        select holder.pid, array_agg(holder.holder_pid order by holder.holder_pid) as pids
        from holder
        group by holder.pid
    ),
    edge as materialized (
        select holder.node, holder.holder_node as behind
        from holder
        where holder.in_front
        union all
        select waiting.node, blocker::text
        from waiting
        cross join unnest(waiting.blocked_by) as blocker
        where waiting.pid not in (select holder.pid from holder where holder.in_front)
    ),
    chain (node, root) as (
        select edge.node, edge.behind
        from edge
        where edge.behind not in (select waiting.node from waiting)
        union
        select edge.node, chain.root
        from chain
        join edge on edge.behind = chain.node
    ),
    session as materialized (
        select
            pg_stat_activity.pid::text as node,
            pg_stat_activity.pid,
            pg_stat_activity.usename as owner,
            split_part(pg_stat_activity.application_name, ' waits for ', 1) as application,
            pg_stat_activity.state,
            pg_stat_activity.xact_start as since,
            pg_stat_activity.query
        from pg_stat_activity
        union all
        select
            seen.node,
            0,
            pg_prepared_xacts.owner,
            null,
            'prepared',
            pg_prepared_xacts.prepared,
            format('prepare transaction %L', pg_prepared_xacts.gid)
        from pg_prepared_xacts
        join seen on seen.pid is null and seen.object = 'transactionid ' || pg_prepared_xacts.transaction
    ),
    root as (
        select distinct on (chain.node) chain.node as waiter, session.*
        from chain
        join session on session.node = chain.root
        order by chain.node, session.since, session.pid
    ),
    stored as materialized (
        select
            pg_class.oid,
            case
                when pg_class.relname = 'locked_keys' then 'key'
                when pg_class.relname like 'throttled%' then 'throttle'
                when pg_class.relname like 'lease%' then 'lease'
                when pg_class.relname like 'request%' then 'request'
                else pg_class.relname::text
            end as kind
        from pg_class
        where pg_class.relnamespace = 'lock'::regnamespace
          and pg_class.relkind = 'r'
    ),
    place as (
        select
            waiting.pid,
            'key' as kind,
            lock.advisory_key((waiting.classid << 32) | waiting.objid)::text as id,
            waiting.mode = 'ShareLock' as shared
        from waiting
        where waiting.locktype = 'advisory'
          and waiting.objsubid = 1
          and waiting.classid not in (0, 4294967295)
          and waiting.here
        union all
        -- The row that a waiter is at.
        select
            waiting.pid,
            stored.kind,
            case
                when at.tuple is not null then lock_internal.row_at(at.relation, at.page, at.tuple)
                else waiting.details #>> '{keyrangedetails,cols,0}'
            end,
            at.mode in ('RowShareLock', 'AccessShareLock', '{STRONG_READ}')
        from waiting
        join seen as at on at.pid = waiting.pid and at.here and (at.locktype = 'tuple' or at.object = waiting.object and not at.granted)
        join stored on stored.oid = at.relation
        where waiting.locktype <> 'advisory'
        union all
        -- A session that waits for another's new row, or behind a row's newer version, leaves no
        -- address: these are the tables that it has used.
        select waiting.pid, string_agg(distinct stored.kind, ' or '), null, false
        from waiting
        join seen as used on used.pid = waiting.pid and used.here and used.locktype = 'relation' and used.mode in ('RowShareLock', 'RowExclusiveLock')
        join stored on stored.oid = used.relation
        where waiting.locktype in ('transactionid', 'spectoken')
          and not exists (select from seen where seen.pid = waiting.pid and seen.locktype = 'tuple')
        group by waiting.pid
    )
    select
        place.kind,
        case when place.kind = 'key' and place.id ~ '^-?[0-9]{1,19}$' then place.id::bigint end,
        place.id,
        case when place.shared then 'shared' else 'exclusive' end,
        waiting.pid,
        session.owner::text,
        session.application,
        waiting.since,
        session.query,
        waiting.blocked_by,
        coalesce(behind.pids, held.pids, '{}'),
        root.pid,
        root.owner::text,
        root.application,
        root.state,
        root.since,
        root.query
    from place
    join waiting on waiting.pid = place.pid
    left join held on held.pid = waiting.pid
    -- The holder of a row's address is the first session that waits for the row.
    left join held as behind on behind.pid = held.pids[1] and waiting.locktype = 'tuple'
    left join session on session.node = waiting.node
    left join root on root.waiter = waiting.node;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/activity/who.sql
-- +goose StatementBegin
-- who lists the sessions that hold a key, and those that wait for it.
--
-- It runs with the caller's rights, because PostgreSQL hides the queries of other roles by those.
create or replace function lock.who(
    key  bigint
)
returns setof lock.key_session
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
begin
    if who.key is null then
        raise exception 'key must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a bigint, or a name of 1 to 1024 bytes.';
    end if;
    return query
    select
        activity.key,
        activity.name,
        activity.mode,
        activity.granted,
        activity.pid,
        activity.owner,
        split_part(pg_stat_activity.application_name, ' waits for ', 1),
        activity.since,
        activity.blocked_by,
        pg_stat_activity.state,
        pg_stat_activity.xact_start,
        case when activity.pid > 0 then pg_stat_activity.query else activity.details end,
        null::text
    from lock.activity
    left join pg_stat_activity on pg_stat_activity.pid = activity.pid
    where activity.kind = 'key'
      and activity.key = who.key
    order by activity.granted desc, activity.since, activity.pid;

    return query
    select
        alike.key,
        who.key::text,
        null::text, null::boolean, null::integer, null::text, null::text, null::timestamptz, null::integer[], null::text, null::timestamptz, null::text,
        format('The name %L is another key than the number %s, and is in use: see lock.who(%1$L).', who.key, who.key)
    from (select lock.key(who.key::text) as key) as alike
    where exists (select from lock.activity where activity.kind = 'key' and activity.key = alike.key);
end;
$$;
-- +goose StatementEnd

comment on function lock.who(bigint) is
    'The sessions that hold a key, and those that wait for it: a lock.key_session each; no row: '
    'nobody. Holders come first, then waiters by when they began to wait. A number and a name '
    'that look alike are different keys. When a session holds or waits for the name ''42'', '
    'lock.who(42) ends with a row without a session, whose column hint says so. For operators: it '
    'waits for nobody, locks nothing, and may be called inside a transaction. Members of '
    'pg_monitor see what sessions of other roles run, and since when. Others see null or '
    '<insufficient privilege>. On the row engine of PostgreSQL holders show only while somebody '
    'waits for them. A session that waits for a new key does not show. YugabyteDB shows '
    'transactions that are older than a second. Errors: 22004 null.';

-- +goose StatementBegin
create or replace function lock.who(
    name  text
)
returns setof lock.key_session
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted  constant bigint := lock.key(who.name);
begin
    return query
    select
        found.key,
        who.name,
        found.mode,
        found.granted,
        found.pid,
        found.owner,
        found.application,
        found.since,
        found.blocked_by,
        found.state,
        found.transaction_since,
        found.query,
        found.hint
    from lock.who(wanted) as found
    where found.hint is null;

    if who.name !~ '^(0|-?[1-9][0-9]{0,18})$' or who.name::numeric not between -9223372036854775808 and 9223372036854775807 then
        return;
    end if;
    return query
    select
        who.name::bigint,
        who.name,
        null::text, null::boolean, null::integer, null::text, null::text, null::timestamptz, null::integer[], null::text, null::timestamptz, null::text,
        format('The number %s is another key than the name %L, and is in use: see lock.who(%1$s).', who.name, who.name)
    where exists (select from lock.activity where activity.kind = 'key' and activity.key = who.name::bigint);
end;
$$;
-- +goose StatementEnd

comment on function lock.who(text) is
    'As lock.who(bigint), for lock.key(name). It also finds a name that nobody ever waited for. '
    'Its hint is about the number that looks like the name. Errors: 22004 null, 22023 empty or '
    'longer than 1024 bytes.';

-- end of functions

-- sqlc does not know pg_locks, so it reads the views' columns here. The block below puts the
-- queries in.
create or replace view lock.blocked with (security_barrier) as
select
    ''::text as kind,
    null::bigint as key,
    null::text as name,
    ''::text as mode,
    0::integer as pid,
    null::text as owner,
    null::text as application,
    null::timestamptz as since,
    null::text as query,
    '{}'::integer[] as blocked_by,
    '{}'::integer[] as held_by,
    null::integer as root_pid,
    null::text as root_owner,
    null::text as root_application,
    null::text as root_state,
    null::timestamptz as root_since,
    null::text as root_query
where false;

create or replace view lock.activity with (security_barrier) as
select
    ''::text as kind,
    (''::text collate "C")::text as name,
    null::bigint as key,
    ''::text as mode,
    false as granted,
    null::text as owner,
    null::integer as pid,
    null::timestamptz as since,
    null::timestamptz as until,
    null::integer[] as blocked_by,
    ''::text as details
where false;

-- pg_locks is read as jsonb where its columns differ between PostgreSQL and YugabyteDB.
-- +goose StatementBegin
do $$
begin
    create or replace view lock.blocked with (security_barrier) as
    select
        waiters.kind,
        waiters.key,
        case when waiters.kind = 'key' then locked_keys.name else waiters.id end as name,
        waiters.mode,
        waiters.pid,
        waiters.owner,
        waiters.application,
        waiters.since,
        waiters.query,
        waiters.blocked_by,
        waiters.held_by,
        waiters.root_pid,
        waiters.root_owner,
        waiters.root_application,
        waiters.root_state,
        waiters.root_since,
        waiters.root_query
    from lock_internal.waiters()
    left join lock.locked_keys on locked_keys.key = waiters.key;

    create or replace view lock.activity with (security_barrier) as
    select
        'key'::text as kind,
        coalesce(
            min(held.shown) filter (where lock.advisory_key(hashtextextended(held.shown collate "C", lock.advisory_key(0))) = held.key) over alike,
            min(held.shown) filter (where held.shown like '%...') over alike,
            held.key::text
        ) as name,
        held.key,
        case when held.mode = 'ShareLock' then 'shared' else 'exclusive' end as mode,
        held.granted,
        coalesce(to_jsonb(held.usename), to_jsonb(prepared.owner)) #>> '{}' as owner,
        coalesce(held.pid, 0) as pid,
        coalesce(held.waits_since, held.xact_start, prepared.prepared) as since,
        null::timestamptz as until,
        case when not held.granted then array(select distinct unnest(pg_blocking_pids(held.pid)) order by 1) end as blocked_by,
        coalesce(
            'prepare transaction ' || quote_literal(prepared.gid),
            coalesce(nullif(split_part(held.application_name, ' waits for ', 1), '') || ': ', '') || coalesce(held.query, '')
        ) as details
    from (
        select
            lock.advisory_key((pg_locks.classid::bigint << 32) | pg_locks.objid::bigint) as key,
            pg_locks.mode,
            pg_locks.granted,
            pg_locks.pid,
            pg_locks.virtualtransaction,
            case when not pg_locks.granted then (to_jsonb(pg_locks) ->> 'waitstart')::timestamptz end as waits_since,
            case when not pg_locks.granted then substring(pg_stat_activity.application_name from ' waits for (.+)$') end as shown,
            pg_stat_activity.usename,
            pg_stat_activity.xact_start,
            pg_stat_activity.application_name,
            pg_stat_activity.query
        from pg_locks
        left join pg_stat_activity on pg_stat_activity.pid = pg_locks.pid
        where pg_locks.locktype = 'advisory'
          and pg_locks.objsubid = 1
          and pg_locks.classid::bigint not in (0, 4294967295)
          and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
    ) as held
    left join (
        select pg_prepared_xacts.*, pg_locks.virtualtransaction
        from pg_prepared_xacts
        join pg_locks on pg_locks.transactionid = pg_prepared_xacts.transaction and pg_locks.pid is null
    ) as prepared on held.pid is null and prepared.virtualtransaction = held.virtualtransaction
    where lock_internal.is_advisory()
    window alike as (partition by held.key)
    union all
    select
        'key', coalesce(blocked.name, blocked.key::text, 'unknown'), blocked.key, blocked.mode, false, blocked.owner, blocked.pid,
        blocked.since, null, blocked.blocked_by, coalesce(nullif(blocked.application, '') || ': ', '') || coalesce(blocked.query, '')
    from lock.blocked
    where blocked.kind = 'key'
      and not lock_internal.is_advisory()
    union all
    select
        'key', coalesce(held.name, held.key::text, 'unknown'), held.key, 'unknown', true, to_jsonb(pg_stat_activity.usename) #>> '{}', held.pid,
        pg_stat_activity.xact_start, null, null,
        coalesce(nullif(pg_stat_activity.application_name, '') || ': ', '') || coalesce(pg_stat_activity.query, '')
    from (
        select distinct blocked.key, blocked.name, holder as pid
        from lock.blocked
        cross join unnest(blocked.held_by) as holder
        where blocked.kind = 'key'
          and not lock_internal.is_advisory()
    ) as held
    left join pg_stat_activity on pg_stat_activity.pid = held.pid
    union all
    select
        'mutex', mutex.task_id, null, 'exclusive', true, mutex.owner, null, mutex.acquired_at, null, null, ''
    from lock.mutex
    where mutex.acquired
    union all
    select
        'timeout', timeout_status.task_id, null, 'exclusive', true, null, null, timeout_status.ts, timeout_status.free_at, null, ''
    from lock.timeout_status
    where timeout_status.locked
    union all
    select
        'throttle', throttled_resource_status.resource_id, null, case throttled_resource_status.permits when 1 then 'exclusive' else 'permit' end, true, null, null, throttled_resource_status.last_locked,
        throttled_resource_status.free_at, null, throttled_resource_status.last_locker_details
    from lock.throttled_resource_status
    where throttled_resource_status.throttled
    union all
    select
        'rate_limit', rate_limit_status.limit_id, null, 'permit', true, null, null, rate_limit_status.taken_at, rate_limit_status.full_at,
        null, format('%s per %s, burst %s', rate_limit_status.rate, rate_limit_status.per, rate_limit_status.burst)
    from lock.rate_limit_status
    where rate_limit_status.remaining = 0
    union all
    select
        'lease', lease_holder.name, null, 'permit', true, lease_holder.owner, null, lease_holder.acquired_at, lease_holder.expires_at,
        null, 'token ' || lease_holder.token
    from lock.lease_holder
    union all
    select
        'task', task.queue_id || ': ' || task.id, null, 'exclusive', true, task.owner, null, task.changed_at, task.deadline, null, 'attempt ' || task.attempt
    from lock.task
    where task.status = 'in_progress';
end;
$$;
-- +goose StatementEnd

comment on view lock.activity is
    'Every grant that is held now, and every session that waits for a key, one row each: kind, '
    'name, key (the number, of a key), mode, granted (false: waits), owner, pid (0: a prepared '
    'transaction), since, until (null: until released), blocked_by (the sessions that a waiter '
    'waits for), details. A rate limit shows while no token remains: since the last grant, until '
    'the bucket is full. A grant that an open transaction has just acquired or released shows as '
    'it was before. Keys show as they are now. A key shows by its name while a session waits for '
    'it by name, and else by its number. A program''s own advisory lock on a number beyond 2^32 '
    'looks like a key: see lock.locked_keys. On the row engine keys show while somebody waits for '
    'them. Queries of other roles show as PostgreSQL lets you see them. It reads whole tables: it '
    'is for operators, not for programs.';

comment on view lock.blocked is
    'The sessions that wait for a key, or for a row of another kind, one row each: kind, key, '
    'name, mode, pid, owner, application, since (when the wait began), query; blocked_by (the '
    'sessions that it waits for, those in front in the queue included; 0: a prepared '
    'transaction); held_by (the sessions that hold what it waits for); and the root, the session '
    'at the end of the chain that waits for nobody: root_pid, root_owner, root_application, '
    'root_state, root_since (when its transaction began), root_query. Of several roots it shows '
    'the one whose transaction is the oldest. root_pid null: a cycle, until the server breaks it. '
    'A row has a name when the server shows where it is. Its kind is then its table''s, else that '
    'of the tables that the session has used. Members of pg_monitor see what sessions of other '
    'roles run, and since when. It combines several looks, while sessions go on. For operators: '
    'it locks nothing, and asks the lock manager once for each waiting session.';

create or replace view lock.queue_depth with (security_barrier) as
select
    coalesce(depth.kind, paused.kind)::text as kind,
    coalesce(depth.queue_id, paused.queue_id)::text as queue_id,
    coalesce(depth.ready, 0)::bigint as ready,
    coalesce(depth.delayed, 0)::bigint as delayed,
    depth.running,
    depth.overdue,
    coalesce(depth.dead, 0)::bigint as dead,
    depth.oldest_ready,
    paused.paused_at as paused_since,
    paused.reason as paused_reason,
    depth.endless,
    coalesce(depth.waiting, 0)::bigint as waiting
from (
    select
        'task'::text as kind,
        task.queue_id,
        task.ready + coalesce(by_key.ready, 0) as ready,
        task.delayed,
        task.running,
        task.overdue,
        task.endless,
        task.dead,
        least(task.oldest_ready, by_key.oldest_ready) as oldest_ready,
        coalesce(by_key.waiting, 0) as waiting
    from (
        select
            task.queue_id,
            count(*) filter (where task.status <> 'in_progress' and task.retries_left is distinct from 0 and task.key_number is null and task.available_at <= now.at) as ready,
            count(*) filter (where task.status <> 'in_progress' and task.retries_left is distinct from 0 and task.key_number is null and task.available_at > now.at) as delayed,
            count(*) filter (where task.status = 'in_progress' and (task.deadline is null or task.deadline > now.at)) as running,
            count(*) filter (where task.status = 'in_progress' and task.deadline <= now.at) as overdue,
            count(*) filter (where task.status = 'in_progress' and task.deadline is null) as endless,
            count(*) filter (where task.status <> 'in_progress' and task.retries_left = 0) as dead,
            min(task.available_at) filter (
                where task.status <> 'in_progress' and task.retries_left is distinct from 0 and task.key_number is null and task.available_at <= now.at
            ) as oldest_ready
        from lock.task
        cross join (select clock_timestamp() as at offset 0) as now
        where task.status <> 'done'
        group by task.queue_id
    ) as task
    left join (
        select
            by_key.queue_id,
            sum(least(by_key.due, by_key.free))::bigint as ready,
            sum(by_key.due - least(by_key.due, by_key.free))::bigint as waiting,
            min(by_key.oldest) filter (where by_key.free > 0) as oldest_ready
        from (
            select
                task.queue_id,
                count(*) filter (where task.status <> 'in_progress' and task.retries_left is distinct from 0) as due,
                min(task.available_at) filter (where task.status <> 'in_progress' and task.retries_left is distinct from 0) as oldest,
                greatest(0, coalesce(min(queue_limit.per_key), 1) - count(*) filter (where task.status = 'in_progress')) as free
            from lock.task
            left join lock.queue_limit on queue_limit.queue_id = task.queue_id
            where task.key_number is not null
              and task.status <> 'done'
            group by task.queue_id, task.key_number
        ) as by_key
        group by by_key.queue_id
    ) as by_key on by_key.queue_id = task.queue_id
    union all
    select
        'request'::text as kind,
        request.queue_id,
        count(*) filter (where request.settled_at is null and (request.available_at is null or request.available_at <= now.at)) as ready,
        count(*) filter (where request.settled_at is null and request.available_at > now.at) as delayed,
        null::bigint as running,
        null::bigint as overdue,
        null::bigint as endless,
        count(*) filter (where request.settled_at is not null) as dead,
        min(request.created_at) filter (where request.settled_at is null and (request.available_at is null or request.available_at <= now.at))
            as oldest_ready,
        0::bigint as waiting
    from (
        select request.queue_id, request.settled_at, request.available_at, request.created_at
        from lock.request
        where request.settled_at is null
        union all
        select request.queue_id, request.settled_at, request.available_at, request.created_at
        from lock.request
        where request.failed
          and request.settled_at > (select clock_timestamp() - interval '1 day')
    ) as request
    cross join (select clock_timestamp() as at offset 0) as now
    group by request.queue_id
) as depth
full join (
    select queue_pause.kind, queue_pause.queue_id, queue_pause.paused_at, queue_pause.reason
    from lock.queue_pause
    where queue_pause.resumed_at is null
) as paused on paused.kind = depth.kind and paused.queue_id = depth.queue_id;

comment on view lock.queue_depth is
    'The work that waits, one row a queue: kind (task or request), queue_id, ready (a capture '
    'could have it now), delayed (not before a later time), running, overdue (in progress beyond '
    'its timeout: the next capture takes it over), dead, oldest_ready (since when the oldest of '
    'ready has been ready), paused_since and paused_reason (of lock.pause_queue), endless (those '
    'of running that have no timeout: nobody takes them over when their worker dies), waiting (due, '
    'but their key has as many in progress as lock.limit_queue allows). Done tasks do not count. Dead tasks are those of lock.dead_letter. A request that a worker has counts '
    'as ready until the worker''s transaction ends, since no other session can see that. So '
    'running, overdue and endless of requests are null. dead counts the requests that ended in '
    'error within the last 24 hours. It counts row by row: it is for dashboards that ask once a '
    'minute, not for workers.';

select lock_internal.end_migration(20261101001200, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101001200 needs 20261101001100, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101001200, 20261101001100, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.queue_depth, lock.activity, lock.blocked, lock.queue_size, lock.cleaned, lock.key_session}');

drop view if exists lock.queue_depth;
drop view if exists lock.activity;
drop view if exists lock.blocked;

-- functions of activity: written by make migration, not by hand

-- gone: sql/functions/activity/who.sql
drop function if exists lock.who(bigint);
drop function if exists lock.who(text);

-- gone: sql/functions/activity/waiters.sql
drop function if exists lock_internal.waiters();

-- gone: sql/functions/activity/uncleaned.sql
drop function if exists lock_internal.uncleaned();

-- gone: sql/functions/activity/row_at.sql
drop function if exists lock_internal.row_at(regclass, integer, smallint);

-- gone: sql/functions/activity/queue_sizes.sql
drop function if exists lock.queue_sizes(integer);

-- gone: sql/functions/activity/clean.sql
drop function if exists lock.clean(interval, integer);

-- end of functions

drop table if exists lock.cleaned;
drop table if exists lock.queue_size;
drop table if exists lock.key_session;

select lock_internal.end_migration(20261101001200, 'down');
