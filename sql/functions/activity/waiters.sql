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
