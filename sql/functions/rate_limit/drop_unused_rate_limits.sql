-- drop_unused_rate_limits deletes buckets that have been full for long. A bucket that is gone is
-- full.
--
-- It finds them as drop_unused_timeouts does.
create or replace function lock.drop_unused_rate_limits(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    before   constant timestamp := lock_internal.unused_before(drop_unused_rate_limits.unused_for, drop_unused_rate_limits.max);
    dropped  bigint;
begin
    delete from lock.rate_limit
    where rate_limit.limit_id = any(array(
        select oldest.limit_id
        from lock.rate_limit as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.full_at) < before
        order by oldest.unused_since
        limit drop_unused_rate_limits.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;

comment on function lock.drop_unused_rate_limits(interval, integer) is
    'For operators. Deletes at most max buckets that have been full for at least unused_for; '
    'returns how many. The longest unused go first. Call it again until it returns 0. Nothing is '
    'lost: a bucket that is gone is full, and the next lock.take makes it anew. It never waits. '
    'Times are kept to the hour, so one can stay up to an hour longer. Errors: 22004, 22023 bad '
    'arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
