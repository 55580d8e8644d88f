-- renew_lease lets a live lease end ttl from now; false when the lease is lost. No renewal brings
-- it back.
--
-- It changes no key, so it does not wait for transactions that have asserted the lease (for key
-- share), nor they for it. The time is read again once the row is locked: a lease that ran out
-- during a wait is lost like any other.
create or replace function lock.renew_lease(
    name   text,
    token  bigint,
    ttl    interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    expires_at  timestamptz;
begin
    perform lock_internal.check_token(renew_lease.name, renew_lease.token);
    perform lock_internal.check_interval(renew_lease.ttl, 'ttl', true);
    select lease.expires_at into expires_at
    from lock.lease
    where lease.name = renew_lease.name
      and lease.token = renew_lease.token
      and lease.expires_at > clock_timestamp()
    for no key update;
    if not found or expires_at <= clock_timestamp() then
        return false;
    end if;
    update lock.lease
    set renewed_at = moment.now,
        expires_at = (moment.now at time zone 'UTC' + renew_lease.ttl) at time zone 'UTC'
    from (select clock_timestamp() as now) as moment
    where lease.name = renew_lease.name
      and lease.token = renew_lease.token;
    return true;
end;
$$;

comment on function lock.renew_lease(text, bigint, interval) is
    'Lets a lease end ttl from now, which may be sooner than before. Returns false when the lease '
    'is lost: expired (even when nobody else has it yet), or released. A lost lease never comes '
    'back. Does not wait for transactions that called lock.assert_lease. Errors: 22004 null, '
    '22023 bad name or ttl, 40001 under REPEATABLE READ and SERIALIZABLE when it was renewed or '
    'lost, or a waiter marked it, after the snapshot, 25006 read-only.';
