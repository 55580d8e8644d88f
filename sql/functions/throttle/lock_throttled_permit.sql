-- lock_throttled_permit is lock_throttled_resource for a resource of several permits: it takes the
-- one whose grant is the oldest.
--
-- Each permit is granted at most once per interval, so no window has more grants than there are
-- permits. The update skips those that open transactions have, and takes the next oldest. All are
-- looked at first, 100 at most. No index has last_locked: an update that changes no index leaves
-- its old version on the same page, from where the next one clears it.
--
-- unused_since, as the caller read it, is stored anew when it is of another hour, unless somebody
-- else does so. A plan that is made while the table is empty is kept, and must not scan it later.
create or replace function lock_internal.lock_throttled_permit(
    resource_id   text,
    details       text,
    unused_since  timestamp
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    free     boolean;
    ahead    boolean;
    granted  boolean := false;
    until    timestamp;
begin
    select
        bool_or(lock_internal.utc(permit.last_locked) + permit.throttle_interval < lock_internal.utc(clock_timestamp())),
        max(permit.last_locked) > clock_timestamp()
    into free, ahead
    from lock.throttled_permit as permit
    where permit.resource_id = lock_throttled_permit.resource_id;
    if free then
        update lock.throttled_permit
        set
            last_locked = clock_timestamp(),
            last_locker_details = lock_throttled_permit.details,
            previously_locked = throttled_permit.last_locked
        where throttled_permit.resource_id = lock_throttled_permit.resource_id
          and throttled_permit.permit = (
            select ready.permit
            from lock.throttled_permit as ready
            where ready.resource_id = lock_throttled_permit.resource_id
              and lock_internal.utc(ready.last_locked) + ready.throttle_interval < lock_internal.utc(clock_timestamp())
            order by ready.last_locked
            limit 1
            for no key update skip locked
        )
        returning lock_internal.full_hour(lock_internal.utc(throttled_permit.last_locked) + throttled_permit.throttle_interval) into until;
        granted := found;
    end if;
    if ahead and not granted then
        update lock.throttled_permit
        set last_locked = clock_timestamp(), previously_locked = least(throttled_permit.previously_locked, clock_timestamp())
        where throttled_permit.resource_id = lock_throttled_permit.resource_id
          and throttled_permit.permit = any(array(
            select far.permit
            from lock.throttled_permit as far
            where far.resource_id = lock_throttled_permit.resource_id
              and lock_internal.utc(far.last_locked) > lock_internal.utc(clock_timestamp()) + far.throttle_interval + interval '1 minute'
            for no key update skip locked
        ));
        if found then
            until := '-infinity';
            raise log 'throttled resource "%" was locked in the future: the clock was set back; those permits are denied for one interval from now', lock_throttled_permit.resource_id;
        end if;
    end if;
    if until <> lock_throttled_permit.unused_since then
        update lock.throttled_resource
        set unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()) + throttled_resource.throttle_interval)
        where throttled_resource.resource_id = (
            select stale.resource_id
            from lock.throttled_resource as stale
            where stale.resource_id = lock_throttled_permit.resource_id
              and stale.unused_since = lock_throttled_permit.unused_since
            for no key update skip locked
        );
    end if;
    return granted;
end;
$$;
