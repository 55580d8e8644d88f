-- acquire_lease grants a lease on a name, with a token greater than every one before; no row when
-- all permits are taken.
--
-- The row of lock.lease_name is the gate of all callers that acquire the name: a grant raises its
-- token. The first statement takes the gate when it is free, and counts the permits on its
-- snapshot. If the token at the gate is still the snapshot's, nothing was granted since, and the
-- count holds. Token and count are read apart from the row that is locked. So they stay the
-- snapshot's when that row is tested again. A release that the snapshot does not see makes this
-- deny, never grant.
--
-- When live leases take the permits, the call writes nothing and does not wait. It finds them
-- newest first: what remains of leases that are gone, while an old snapshot is open, is not read.
--
-- A caller that is left over meets an open transaction at the gate, a new name, or expired leases.
-- The last passage waits at the gate, and counts behind it on a snapshot and by a clock of its own.
-- Under REPEATABLE READ and SERIALIZABLE the gate refuses (40001) if a lease was granted since the
-- snapshot. A caller that finds no permit left undoes all of it, and so keeps nobody waiting.
--
-- An expired lease frees its permit by being deleted. While a transaction that has asserted it is
-- open, its row is skipped and the permit counts as taken. A caller that waited for the end of an
-- expired lease marked it as awaited. The lease in its place has that mark, too.
--
-- The ttl is added in UTC, where every day has 24 hours. A plan that is made while lock.lease is
-- empty is kept, and must not scan it later. The body is long because there are two ways to a
-- grant: one that never waits, and one that does.
create or replace function lock.acquire_lease(
    name     text,
    owner    text,
    ttl      interval,
    permits  integer  default 1
)
returns setof lock.lease
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    granted  lock.lease;
    known    bigint;
begin
    if (
        octet_length(acquire_lease.name) between 1 and 1024 and octet_length(acquire_lease.owner) between 1 and 1024
        and acquire_lease.ttl > interval '0' and acquire_lease.ttl < interval '30 days'
        and extract(year from acquire_lease.ttl) = 0 and extract(month from acquire_lease.ttl) = 0
        and acquire_lease.permits > 0 and not pg_is_in_recovery()
    ) is not true then
        perform lock_internal.check_primary();
        perform lock_internal.check_id(acquire_lease.name, 'name');
        perform lock_internal.check_id(acquire_lease.owner, 'owner');
        perform lock_internal.check_interval(acquire_lease.ttl, 'ttl', true);
        perform lock_internal.check_count(acquire_lease.permits, 'permits');
    end if;

    -- The gate is free, and so is a permit: granted.
    with gate as (
        update lock.lease_name
        set token = lease_name.token + 1, granted_at = clock_timestamp()
        where lease_name.name = (
            select free.name
            from lock.lease_name as free
            where free.name = acquire_lease.name
              and free.token = (select before.token from lock.lease_name as before where before.name = acquire_lease.name)
              and not exists (
                select
                from lock.lease
                where lease.name = acquire_lease.name
                order by lease.token desc
                offset acquire_lease.permits - 1
              )
            for no key update skip locked
        )
        returning lease_name.token, lease_name.granted_at
    )
    insert into lock.lease (name, token, owner, acquired_at, renewed_at, expires_at)
    select
        acquire_lease.name, gate.token, acquire_lease.owner, gate.granted_at, gate.granted_at,
        (gate.granted_at at time zone 'UTC' + acquire_lease.ttl) at time zone 'UTC'
    from gate
    returning lease.* into granted;
    if found then
        return next granted;
        return;
    end if;

    -- Live leases have all permits: denied.
    perform
    from lock.lease
    where lease.name = acquire_lease.name
      and lease.expires_at > clock_timestamp()
    order by lease.token desc
    offset acquire_lease.permits - 1
    limit 1;
    if found then
        return;
    end if;

    -- Wait at the gate, and count behind it.
    begin
        update lock.lease_name
        set token = lease_name.token + 1, granted_at = clock_timestamp()
        where lease_name.name = acquire_lease.name
        returning lease_name.token into known;
        if not found then
            known := lock_internal.add_lease_name(acquire_lease.name);
        end if;
        with expired as (
            delete from lock.lease
            where lease.name = acquire_lease.name
              and lease.token = any(array(
                select ended.token
                from lock.lease as ended
                where ended.name = acquire_lease.name
                  and ended.expires_at <= clock_timestamp()
                for update skip locked
              ))
            returning lease.token, lease.awaited
        )
        insert into lock.lease (name, token, owner, acquired_at, renewed_at, expires_at, awaited)
        select
            acquire_lease.name, known, acquire_lease.owner, moment.now, moment.now,
            (moment.now at time zone 'UTC' + acquire_lease.ttl) at time zone 'UTC',
            exists (select from expired where expired.awaited)
        from (select clock_timestamp() as now) as moment
        where acquire_lease.permits > (select count(*) from lock.lease where lease.name = acquire_lease.name)
                                      - (select count(*) from expired)
        returning lease.* into granted;
        if not found then
            raise exception 'all permits of % are taken', acquire_lease.name
                using errcode = 'LK002';
        end if;
        return next granted;
    exception
        when sqlstate 'LK002' then
            return;
    end;
end;
$$;

comment on function lock.acquire_lease(text, text, interval, integer) is
    'Grants a lease on name to owner for ttl, counted from now (100 years at most). owner is a '
    'text that tells people who it is. Returns the lease with its token, which is greater than '
    'that of every earlier lease on the name. Returns no row when permits (default 1) leases are '
    'held. Call it in a transaction of its own: other callers that would get a permit wait until '
    'the transaction ends. A grant that is rolled back never was. When the permits are taken, it '
    'neither waits nor writes. The permit of an expired lease is free, except while a transaction '
    'that called lock.assert_lease with it is open. Errors: 22004 null, 22023 bad name, owner or '
    'ttl (zero, negative, infinite, months), permits below 1, 40001 under REPEATABLE READ and '
    'SERIALIZABLE, 40P01 deadlock, 55P03 lock_timeout, 57014 statement_timeout, 25006 read-only. '
    'Leases, fencing tokens and counting semaphores are beyond the articles that the other kinds '
    'come from.';
