-- force_release_rate_limit fills a bucket, and records the operator and the reason. A bucket that
-- is gone is full.
create or replace function lock.force_release_rate_limit(
    limit_id  text,
    reason    text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    previous  jsonb;
begin
    perform lock_internal.check_id(force_release_rate_limit.limit_id, 'limit_id');
    perform lock_internal.check_text(force_release_rate_limit.reason, 'reason');
    delete from lock.rate_limit
    where rate_limit.limit_id = (
        select held.limit_id
        from lock.rate_limit as held
        where held.limit_id = force_release_rate_limit.limit_id
          and held.full_at > clock_timestamp()
        for update
    )
    returning to_jsonb(rate_limit) into previous;
    if not found then
        return false;
    end if;
    perform lock_internal.record_forced_release('rate_limit', force_release_rate_limit.limit_id, force_release_rate_limit.reason, previous);
    return true;
end;
$$;

comment on function lock.force_release_rate_limit(text, text) is
    'For operators. Fills a bucket of lock.take and returns true; false when it is full anyway. '
    'lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'The call waits for a transaction that has just taken tokens. Errors: 22004, 22023 bad '
    'arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';
