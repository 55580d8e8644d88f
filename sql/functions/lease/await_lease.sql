-- await_lease acquires a lease, or says how long to sleep before asking again, and leaves a mark that makes releases notify.
--
-- The row that it returns is the lease that was granted, or has token 0 and describes the lease whose end frees a permit:
-- with more leases than permits that is not the first to end. When that one had run out before it was asked for, a transaction
-- that asserted it is still open, and nobody can say for how long: the answer is to come back in a ttl, 5 seconds at most.
--
-- The mark is set while the name's row is held for update, and the leases are looked at once more behind that lock: see
-- lock.notify_lease_waiters. A mark that is seen on one snapshot with the leases serves everybody: whoever set it has waited for
-- each release that had not seen it, and who takes it away notifies. Then nothing is written and nothing waited for.
create or replace function lock.await_lease(
    name     text,
    owner    text,
    ttl      interval,
    permits  integer  default 1
)
returns setof lock.lease_holder
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    answer       lock.lease_holder;
    asked        timestamptz;
    awaited      boolean;
    behind_gate  boolean := false;
begin
    loop
        asked := clock_timestamp();
        select lease.name, lease.token, lease.owner, lease.acquired_at, lease.renewed_at, lease.expires_at, await_lease.ttl into answer
        from lock.acquire_lease(await_lease.name, await_lease.owner, await_lease.ttl, await_lease.permits) as lease;
        if found then
            return next answer;
            return;
        end if;

        select
            lease.name, 0, lease.owner, lease.acquired_at, lease.renewed_at, lease.expires_at,
            lease.expires_at - clock_timestamp(),
            lease_name.awaited
        into
            answer.name, answer.token, answer.owner, answer.acquired_at, answer.renewed_at, answer.expires_at,
            answer.expires_in,
            awaited
        from lock.lease
        join lock.lease_name on lease_name.name = lease.name
        where lease.name = await_lease.name
        order by lease.expires_at desc, lease.token desc
        offset await_lease.permits - 1
        limit 1;
        continue when not found or answer.expires_in <= interval '0' and answer.expires_at > asked;

        if answer.expires_in <= interval '0' then
            answer.expires_in := least(await_lease.ttl, interval '5 seconds');
        end if;
        if behind_gate and not awaited then
            update lock.lease_name
            set awaited = true
            where lease_name.name = await_lease.name;
        end if;
        if awaited or behind_gate then
            return next answer;
            return;
        end if;
        perform
        from lock.lease_name
        where lease_name.name = await_lease.name
        for update;
        behind_gate := true;
    end loop;
end;
$$;

comment on function lock.await_lease(text, text, interval, integer) is
    'Acquires a lease as lock.acquire_lease does, or says how long to sleep. Returns one row: the lease that was granted, or token 0 with '
    'the holder, expiry and expires_in of the lease whose end would free a permit. Sleep for expires_in, or until a notification on channel '
    'lock_lease whose payload is the name, and call it again; listen before the first call. A release or revocation notifies only because of this call. '
    'Where notifications do not arrive, sleeping is enough. Call it outside a transaction block: it keeps others from acquiring and releasing leases on the name '
    'until its transaction ends. Errors: as lock.acquire_lease.';

revoke all on function lock.await_lease(text, text, interval, integer) from public;
