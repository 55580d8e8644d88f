-- create_throttled_resource makes a resource that can be locked at once; false when it exists, which then has the new interval.
create or replace function lock.create_throttled_resource(
    resource_id        text,
    throttle_interval  interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_id(create_throttled_resource.resource_id, 'resource_id');
    perform lock_internal.check_interval(create_throttled_resource.throttle_interval, 'throttle_interval', false);
    -- As text, because 1 month and 30 days are equal as intervals.
    perform
    from lock.throttled_resource
    where throttled_resource.resource_id = create_throttled_resource.resource_id
      and throttled_resource.throttle_interval::text = create_throttled_resource.throttle_interval::text;
    if found then
        return false;
    end if;
    insert into lock.throttled_resource (resource_id, throttle_interval)
    values (create_throttled_resource.resource_id, create_throttled_resource.throttle_interval)
    on conflict do nothing;
    if found then
        return true;
    end if;
    update lock.throttled_resource
    set
        throttle_interval = create_throttled_resource.throttle_interval,
        unused_since = greatest(
            throttled_resource.unused_since,
            lock_internal.full_hour(lock_internal.utc(throttled_resource.last_locked) + create_throttled_resource.throttle_interval)
        )
    where throttled_resource.resource_id = create_throttled_resource.resource_id;
    if not found then
        perform lock_internal.give_up('throttled resource', create_throttled_resource.resource_id);
    end if;
    return false;
end;
$$;

comment on function lock.create_throttled_resource(text, interval) is
    'Makes a throttled resource (resource_id: 1 to 1024 bytes; throttle_interval: over 0, up to 100 years) that can be locked at once and returns true. When it exists, returns false, and it has the new interval, which counts from the last grant. '
    'A day is 24 hours, whatever the session''s time zone; months and years are calendar arithmetic in UTC. Writes nothing when it exists with this interval. Waits for a transaction that is making, changing or locking it. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, or when it is being dropped.';
