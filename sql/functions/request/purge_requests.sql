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

comment on function lock.purge_requests(interval, integer) is
    'For operators. Deletes at most max requests that were settled longer ago than older_than, '
    'oldest first, of all queues. Returns how many. Call it again, in a new transaction, until it '
    'returns less than max. Never waits, never makes a worker wait, and never touches an '
    'outstanding request. A purged create may be created again. Errors: 22004 null, 22023 bad '
    'interval or max, 40001 under REPEATABLE READ.';
