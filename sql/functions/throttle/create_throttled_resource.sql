-- create_throttled_resource makes a resource that can be locked at once; false when it exists,
-- which then has the new interval and permits.
--
-- A resource of one permit keeps its last grant in its own row. A resource of several has a row of
-- lock.throttled_permit for each. A change makes all of them anew: a caller that is about to lock
-- one by the old interval finds it gone, and is denied.
--
-- The newest grants are kept. Of older ones this much is known: none is newer than the newest
-- grant that a permit had before its last, or that is forgotten here. No permit counts as free any
-- earlier than after that.
create or replace function lock.create_throttled_resource(
    resource_id        text,
    throttle_interval  interval,
    permits            integer   default 1
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    made       boolean;
    held       lock.throttled_resource;
    known      lock.throttled_permit[];
    forgotten  timestamptz;
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_id(create_throttled_resource.resource_id, 'resource_id');
    perform lock_internal.check_interval(create_throttled_resource.throttle_interval, 'throttle_interval', false);
    perform lock_internal.check_count(create_throttled_resource.permits, 'permits');
    if create_throttled_resource.permits > 100 then
        raise exception 'permits must be at most 100, not %', create_throttled_resource.permits
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass a shorter interval with fewer permits: 1000 per minute is at most 100 per 6 seconds.';
    end if;
    -- As text, because 1 month and 30 days are equal as intervals.
    perform
    from lock.throttled_resource
    where throttled_resource.resource_id = create_throttled_resource.resource_id
      and throttled_resource.throttle_interval::text = create_throttled_resource.throttle_interval::text
      and throttled_resource.permits = create_throttled_resource.permits;
    if found then
        return false;
    end if;
    insert into lock.throttled_resource (resource_id, throttle_interval, permits)
    values (create_throttled_resource.resource_id, create_throttled_resource.throttle_interval, create_throttled_resource.permits)
    on conflict do nothing;
    made := found;
    if made and create_throttled_resource.permits = 1 then
        return true;
    end if;
    select throttled_resource.* into held
    from lock.throttled_resource
    where throttled_resource.resource_id = create_throttled_resource.resource_id
    for no key update;
    if not found then
        perform lock_internal.give_up('throttled resource', create_throttled_resource.resource_id);
    end if;
    with gone as (
        delete from lock.throttled_permit
        where throttled_permit.resource_id = create_throttled_resource.resource_id
        returning throttled_permit.*
    )
    select array_agg(gone::lock.throttled_permit order by gone.last_locked desc) into known
    from gone;
    if held.permits = 1 then
        known := array[row(
            held.resource_id, 1, held.throttle_interval, held.last_locked, held.last_locker_details, held.previously_locked
        )::lock.throttled_permit];
    end if;
    select greatest(
        '-infinity',
        max(permit.previously_locked),
        max(permit.last_locked) filter (where permit.rank > create_throttled_resource.permits)
    ) into forgotten
    from unnest(known) with ordinality as permit (resource_id, permit, throttle_interval, last_locked, last_locker_details, previously_locked, rank);
    if create_throttled_resource.permits > 1 then
        insert into lock.throttled_permit (resource_id, permit, throttle_interval, last_locked, last_locker_details, previously_locked)
        select
            create_throttled_resource.resource_id, counted.permit, create_throttled_resource.throttle_interval, counted.last_locked,
            case counted.last_locked
                when '-infinity' then ''
                when known[counted.permit].last_locked then known[counted.permit].last_locker_details
                else known[1].last_locker_details
            end,
            forgotten
        from (
            select number as permit, greatest(known[number].last_locked, forgotten) as last_locked
            from generate_series(1, create_throttled_resource.permits) as number
        ) as counted;
    end if;
    update lock.throttled_resource
    set
        throttle_interval = create_throttled_resource.throttle_interval,
        permits = create_throttled_resource.permits,
        last_locked = case create_throttled_resource.permits when 1 then known[1].last_locked else '-infinity' end,
        last_locker_details = case create_throttled_resource.permits when 1 then known[1].last_locker_details else '' end,
        previously_locked = case create_throttled_resource.permits when 1 then forgotten else '-infinity' end,
        unused_since = greatest(
            throttled_resource.unused_since,
            lock_internal.full_hour(lock_internal.utc(known[1].last_locked) + create_throttled_resource.throttle_interval)
        )
    where throttled_resource.resource_id = create_throttled_resource.resource_id;
    return made;
end;
$$;

comment on function lock.create_throttled_resource(text, interval, integer) is
    'Makes a throttled resource that can be locked at once and returns true. It is granted at most '
    'permits times in any window of throttle_interval (resource_id: 1 to 1024 bytes; '
    'throttle_interval: over 0, up to 100 years; permits: 1 to 100). When it exists, returns '
    'false, and it has the new interval and permits, which count for the grants before as well. '
    'As many of the newest grants are kept as there are permits. Older grants that may lie in a '
    'longer window count as if they were as late as they can have been: never a grant too many. '
    'Permits that are added alone are free at once. A day is 24 hours, whatever the session''s '
    'time zone; months and years are calendar arithmetic in UTC. The call writes nothing when the '
    'resource exists like this. It waits for a transaction that is making, changing or locking '
    'the resource. Errors: 22004, 22023 bad arguments, 25006 read-only or standby, 40001 under '
    'REPEATABLE READ and SERIALIZABLE, or when it is being dropped, 40P01 deadlock, 55P03 '
    'lock_timeout, 57014 statement_timeout.';
