-- +goose Up
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(12, 'up');

-- sqlc does not know pg_locks, so it reads the view's columns here, and the block below puts the query in.
create or replace view lock.activity with (security_barrier) as
select
    ''::text as kind,
    (''::text collate "C")::text as name,
    ''::text as mode,
    false as granted,
    null::text as owner,
    null::integer as pid,
    null::timestamptz as since,
    null::timestamptz as until,
    ''::text as details
where false;

-- pg_locks is read as jsonb where its columns differ between PostgreSQL and YugabyteDB.
-- +goose StatementBegin
do $$
begin
    create or replace view lock.activity with (security_barrier) as
    select
        'key'::text as kind,
        coalesce(locked_keys.name, held.key::text) as name,
        case when held.mode = 'ShareLock' then 'shared' else 'exclusive' end as mode,
        held.granted,
        to_jsonb(pg_stat_activity) ->> 'usename' as owner,
        held.pid,
        coalesce(held.waits_since, pg_stat_activity.xact_start) as since,
        null::timestamptz as until,
        coalesce(nullif(pg_stat_activity.application_name, '') || ': ', '') || coalesce(pg_stat_activity.query, '') as details
    from (
        select
            lock.advisory_key((pg_locks.classid::bigint << 32) | pg_locks.objid::bigint) as key,
            pg_locks.mode,
            pg_locks.granted,
            pg_locks.pid,
            (to_jsonb(pg_locks) ->> 'waitstart')::timestamptz as waits_since
        from pg_locks
        where pg_locks.locktype = 'advisory'
          and pg_locks.objsubid = 1
          and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
    ) as held
    join lock.locked_keys on locked_keys.key = held.key
    left join pg_stat_activity on pg_stat_activity.pid = held.pid
    union all
    select
        'mutex', mutex.task_id, 'exclusive', true, mutex.owner, null, mutex.acquired_at, null, ''
    from lock.mutex
    where mutex.acquired
    union all
    select
        'timeout', timeout_status.task_id, 'exclusive', true, null, null, timeout_status.ts, timeout_status.free_at, ''
    from lock.timeout_status
    where timeout_status.locked
    union all
    select
        'throttle', throttled_resource_status.resource_id, 'exclusive', true, null, null, throttled_resource_status.last_locked,
        throttled_resource_status.free_at, throttled_resource_status.last_locker_details
    from lock.throttled_resource_status
    where throttled_resource_status.throttled
    union all
    select
        'lease', lease_holder.name, 'permit', true, lease_holder.owner, null, lease_holder.acquired_at, lease_holder.expires_at,
        'token ' || lease_holder.token
    from lock.lease_holder
    union all
    select
        'task', task.queue_id || ': ' || task.id, 'exclusive', true, task.owner, null, task.changed_at, task.deadline, 'attempt ' || task.attempt
    from lock.task
    where task.status = 'in_progress';
end;
$$;
-- +goose StatementEnd

comment on view lock.activity is
    'What is held now, and who waits for a key, one row each: kind, name, mode, granted (false: waits), owner, pid, since, until (null: until '
    'released), details. What an open transaction has just acquired or released shows as it was before, but for keys. A key shows by '
    'its number until somebody who waited for it by name has committed, and a program''s own advisory lock on a number beyond 2^32 looks like a key: see lock.locked_keys. '
    'Keys on the advisory engine only: the row engine''s locks are rows, and PostgreSQL lists who waits for rows in '
    'pg_stat_activity alone. Queries of other roles show as PostgreSQL lets you see them. Reads whole tables: for operators, not for programs.';

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
    paused.reason as paused_reason
from (
    select
        'task'::text as kind,
        task.queue_id,
        count(*) filter (where task.status <> 'in_progress' and task.retries_left is distinct from 0 and task.available_at <= now.at) as ready,
        count(*) filter (where task.status <> 'in_progress' and task.retries_left is distinct from 0 and task.available_at > now.at) as delayed,
        count(*) filter (where task.status = 'in_progress' and (task.deadline is null or task.deadline > now.at)) as running,
        count(*) filter (where task.status = 'in_progress' and task.deadline <= now.at) as overdue,
        count(*) filter (where task.status <> 'in_progress' and task.retries_left = 0) as dead,
        min(task.available_at) filter (where task.status <> 'in_progress' and task.retries_left is distinct from 0 and task.available_at <= now.at)
            as oldest_ready
    from lock.task
    cross join (select clock_timestamp() as at offset 0) as now
    where task.status <> 'done'
    group by task.queue_id
    union all
    select
        'request',
        request.queue_id,
        count(*) filter (where request.settled_at is null and (request.available_at is null or request.available_at <= now.at)),
        count(*) filter (where request.settled_at is null and request.available_at > now.at),
        null,
        null,
        count(*) filter (where request.settled_at is not null),
        min(request.created_at) filter (where request.settled_at is null and (request.available_at is null or request.available_at <= now.at))
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
    'What is waiting to be done, one row a queue: kind (task or request), queue_id, ready: a capture could have it now; delayed: not before a time to come; running; '
    'overdue: in progress beyond its timeout, and taken over by the next capture; dead; oldest_ready: since when the oldest of ready has been; paused_since, '
    'paused_reason: of lock.pause_queue. Tasks that are done do not count; dead tasks are those of lock.dead_letter. Requests: what a worker is at counts as ready '
    'until its transaction ends, since nobody else can see it, and so running and overdue are null; dead: what ended in error within the last 24 hours. '
    'Counts row by row: for dashboards that ask once a minute, not for workers.';

select lock_internal.end_migration(12, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(12, 'down');
select lock_internal.refuse_dependents('{lock.queue_depth, lock.activity}');

drop view if exists lock.queue_depth;
drop view if exists lock.activity;

select lock_internal.end_migration(12, 'down');
