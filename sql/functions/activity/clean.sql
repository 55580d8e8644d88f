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

comment on function lock.clean(interval, integer) is
    'For operators. Deletes what nobody needs any more, and returns a row for each kind with how '
    'many there were: done tasks of every queue and settled requests that ended longer ago than '
    'older_than; mutexes, time slots, rate limits and leases that nobody has, and that were unused '
    'that long; and keys that nobody holds. At most max of each kind but keys: call it again, in a '
    'new transaction, until every kind says less than max. Once a day is a good habit. Dead '
    'letters stay, and so do timeouts and throttled resources, which are made beforehand. Skips '
    'what others hold. Never waits, and makes nobody wait. Errors: 22004 null; 22023 bad interval, '
    'max below 1; 25006 read-only or standby; 40001 under REPEATABLE READ and SERIALIZABLE.';
