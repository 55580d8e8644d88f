-- await_lease acquires a lease, or says how long to sleep before the next call. It leaves marks
-- that make releases notify.
--
-- The row that it returns is the lease that was granted, or has token 0 and describes the lease
-- whose end frees a permit. With more leases than permits that is not the first to end. When that
-- lease had run out before the call asked, a transaction that asserted it is still open. Nobody can
-- say for how long, so the answer is to come back in a ttl, 5 seconds at most.
--
-- All leases on the name are marked, on one snapshot. As long as each of these is there, no permit
-- is free. A caller that ends one of them sees its mark, or deleted it before it was marked; then
-- there is nothing to mark. When other callers have marked them all, the call writes nothing and
-- does not wait.
--
-- It may wait for a transaction that is ending a lease. It does so only when every lease has to go
-- (permits is 1) and one lease alone is not marked. So it does not oversleep another permit. It has
-- no other lease's row locked, so a caller that ends two leases in a transaction cannot deadlock
-- with it. Leases that it could not mark otherwise are left to its next call, soon.
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
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    answer  record;
    asked   timestamptz;
    again   boolean := false;
    silent  bigint[];
    marked  bigint;
begin
    loop
        asked := clock_timestamp();
        select lease.name, lease.token, lease.owner, lease.acquired_at, lease.renewed_at, lease.expires_at, await_lease.ttl as expires_in
        into answer
        from lock.acquire_lease(await_lease.name, await_lease.owner, await_lease.ttl, await_lease.permits) as lease;
        if found then
            return next answer;
            return;
        end if;

        select
            lease.name, 0, lease.owner, lease.acquired_at, lease.renewed_at, lease.expires_at,
            lease.expires_at - clock_timestamp(),
            array(
                select other.token
                from lock.lease as other
                where other.name = await_lease.name
                  and not other.awaited
            )
        into
            answer.name, answer.token, answer.owner, answer.acquired_at, answer.renewed_at, answer.expires_at,
            answer.expires_in,
            silent
        from lock.lease
        where lease.name = await_lease.name
        order by lease.expires_at desc, lease.token desc
        offset await_lease.permits - 1
        limit 1;
        continue when not found or answer.expires_in <= interval '0' and answer.expires_at > asked;
        -- The lease that denied this call may have gone since. The next round takes over this one.
        if answer.expires_in <= interval '0' and not again then
            again := true;
            continue;
        end if;

        if answer.expires_in <= interval '0' then
            answer.expires_in := least(await_lease.ttl, interval '5 seconds');
        end if;
        if silent <> '{}' then
            update lock.lease
            set awaited = true
            where lease.name = await_lease.name
              and lease.token = any(array(
                select free.token
                from lock.lease as free
                where free.name = await_lease.name
                  and free.token = any(silent)
                  and not free.awaited
                for no key update skip locked
              ));
            get diagnostics marked = row_count;
            if marked = 0 and await_lease.permits = 1 and cardinality(silent) = 1 then
                update lock.lease
                set awaited = true
                where lease.name = await_lease.name
                  and lease.token = silent[1];
                continue when not found;
                marked := 1;
                answer.expires_in := greatest(least(answer.expires_in, answer.expires_at - clock_timestamp()), interval '0');
            end if;
            if marked < cardinality(silent) then
                answer.expires_in := least(answer.expires_in, interval '100 milliseconds');
            end if;
        end if;
        return next answer;
        return;
    end loop;
end;
$$;

comment on function lock.await_lease(text, text, interval, integer) is
    'Acquires a lease as lock.acquire_lease does, or says how long to sleep. Returns one row. It '
    'is the lease that was granted, or has token 0 with the holder, expiry and expires_in of '
    'another lease: the one whose end would free a permit. Sleep for expires_in, or until a '
    'notification on channel lock_lease whose payload is the name. Then call it again. Listen '
    'before the first call. A release, by force or not, notifies only because of this call. Where '
    'notifications do not arrive, sleeping is enough. Call it outside a transaction block. Until '
    'its transaction ends, nobody can release or renew the leases on the name. It waits for '
    'transactions that are about to do so. Errors: as lock.acquire_lease.';
