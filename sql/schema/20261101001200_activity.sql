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
        'throttle', throttled_resource_status.resource_id, case throttled_resource_status.permits when 1 then 'exclusive' else 'permit' end, true, null, null, throttled_resource_status.last_locked,
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
    'task'::text as kind,
    task.queue_id,
    task.status::text as status,
    count(*) as count,
    min(task.available_at)::timestamptz as oldest
from lock.task
where task.status <> 'done'
group by task.queue_id, task.status
union all
select
    'request', request.queue_id, request.request_status::text, count(*), min(request.created_at)::timestamptz
from lock.request
where request.settled_at is null
group by request.queue_id, request.request_status;

comment on view lock.queue_depth is
    'What is waiting to be done: tasks that are not done, by status, and requests that are not settled. kind, queue_id, status, count and the oldest of each. Counts row by row: for dashboards that '
    'ask once a minute, not for workers.';

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
select lock_internal.refuse_dependents('{lock.queue_depth, lock.activity}');

drop view if exists lock.queue_depth;
drop view if exists lock.activity;

select lock_internal.end_migration(20261101001200, 'down');
