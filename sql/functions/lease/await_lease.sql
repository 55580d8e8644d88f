-- await_lease acquires a lease, or says how long to sleep before asking again, and leaves a mark
-- that makes releases notify.
--
-- The row that it returns is the lease that was granted, or has token 0 and describes the lease
-- whose end frees a permit: with more leases than permits that is not the first to end. When that
-- one had run out before it was asked for, a transaction that asserted it is still open, and nobody
-- can say for how long: the answer is to come back in a ttl, 5 seconds at most.
--
-- The marks are on the leases, all of them, on one snapshot: as long as each of these is there, no
-- permit is free, and who ends one of them sees its mark, or deleted it first, and then there is
-- nothing to mark. When all have been marked by others, nothing is written and nothing waited for.
--
-- It waits for another's transaction, which may be about to end a lease, only when every lease has
-- to go and this one alone is not marked: so it does not oversleep another permit, and has no other
-- lease's row locked, so that nobody who ends two leases in a transaction meets it in a deadlock.
-- What it could not mark otherwise is left to its next call, soon.
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
set enable_seqscan = off
as $$
declare
    answer  lock.lease_holder;
    asked   timestamptz;
    again   boolean := false;
    silent  bigint[];
    marked  bigint;
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
        -- Denied by another lease, which has gone since? The next round takes it over.
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
    'Acquires a lease as lock.acquire_lease does, or says how long to sleep. Returns one row: the lease that was granted, or token 0 with '
    'the holder, expiry and expires_in of the lease whose end would free a permit. Sleep for expires_in, or until a notification on channel '
    'lock_lease whose payload is the name, and call it again; listen before the first call. A release, by force or not, notifies only because of this call. '
    'Where notifications do not arrive, sleeping is enough. Call it outside a transaction block: it keeps the leases on the name from being released and renewed '
    'until its transaction ends, and waits for who is about to do so. Errors: as lock.acquire_lease.';

revoke all on function lock.await_lease(text, text, interval, integer) from public;
