-- drop_unused_leases forgets leases and names that nobody has used for a while. Their tokens are
-- never given again.
--
-- It locks the floor first and raises it in the same transaction: see add_lease_name. It locks the
-- names, and then looks for their leases once more, on a newer snapshot. A transaction that began
-- long ago can have granted one after the first look and before the lock.
create or replace function lock.drop_unused_leases(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    before      timestamptz;
    idle_names  text[];
    highest     bigint;
    forgotten   bigint;
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_interval(drop_unused_leases.unused_for, 'unused_for', false);
    perform lock_internal.check_count(drop_unused_leases.max, 'max');
    before := clock_timestamp() - drop_unused_leases.unused_for;

    perform
    from lock.lease_floor
    for update;
    delete from lock.lease
    where (lease.name, lease.token) in (
        select ended.name, ended.token
        from lock.lease as ended
        where ended.expires_at < before
        limit drop_unused_leases.max
        for update skip locked
    );
    select array_agg(idle.name) into idle_names
    from (
        select lease_name.name
        from lock.lease_name
        where lease_name.granted_at < before
          and not exists (
            select
            from lock.lease
            where lease.name = lease_name.name
          )
        limit drop_unused_leases.max
        for update of lease_name skip locked
    ) as idle;
    with gone as (
        delete from lock.lease_name
        where lease_name.name = any(idle_names)
          and not exists (
            select
            from lock.lease
            where lease.name = lease_name.name
          )
        returning lease_name.token
    )
    select count(*), max(gone.token) into forgotten, highest
    from gone;
    update lock.lease_floor
    set token = highest
    where lease_floor.token < highest;
    return forgotten;
end;
$$;

comment on function lock.drop_unused_leases(interval, integer) is
    'For operators. Forgets up to max names (default 10000) that have no lease, and had none '
    'granted for unused_for; returns how many. Leases that expired so long ago go, too. New names '
    'start with a token above that of every forgotten one. It reads the tables from end to end. '
    'Run it from cron when names come and go by the thousand, until it returns 0. New names wait '
    'while it runs. Errors: 22004 null, 22023 bad interval or max below 1, 40001 under REPEATABLE '
    'READ and SERIALIZABLE, 25006 read-only.';
