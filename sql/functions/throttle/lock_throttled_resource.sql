-- lock_throttled_resource returns true when the resource was not granted within its interval, and
-- never waits to say so.
--
-- A caller that sees that the interval has not passed is denied, and has written nothing. The look
-- grants nothing: the update takes the row only when its interval has passed and nobody else has it
-- (skip locked). A row that another open transaction has granted, or is granting, is a denial as
-- well, whether that transaction commits or not.
--
-- The update reads the clock when it runs, behind a wait for the table's lock (an index is being
-- made), and stores what it reads after the test. So the interval never starts before the grant.
-- The sum is made in UTC, so that days and months do not depend on the session's time zone.
--
-- A time that lies far in the future is brought back to now as acquire_timeout does. A resource of
-- several permits passes through to lock_throttled_permit.
create or replace function lock.lock_throttled_resource(
    resource_id  text,
    details      text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    permits  integer;
    passed   boolean;
    ahead    boolean;
    unused   timestamp;
begin
    if (
        octet_length(lock_throttled_resource.resource_id) between 1 and 1024
        and octet_length(lock_throttled_resource.details) <= 1024
        and ltrim(lock_throttled_resource.details, E' \t\n\x0b\f\r') <> ''
        and not current_setting('transaction_read_only')::boolean
    ) is not true then
        perform lock_internal.check_writable();
        perform lock_internal.check_id(lock_throttled_resource.resource_id, 'resource_id');
        perform lock_internal.check_text(lock_throttled_resource.details, 'details');
    end if;
    select
        throttled_resource.permits,
        lock_internal.utc(throttled_resource.last_locked) + throttled_resource.throttle_interval < lock_internal.utc(clock_timestamp()),
        throttled_resource.last_locked > clock_timestamp(),
        throttled_resource.unused_since
    into permits, passed, ahead, unused
    from lock.throttled_resource
    where throttled_resource.resource_id = lock_throttled_resource.resource_id;
    if not found then
        raise exception 'throttled resource "%" was never created', lock_throttled_resource.resource_id
            using errcode = 'no_data_found',
                  hint = 'Create it once with lock.create_throttled_resource(resource_id, throttle_interval).';
    elsif permits > 1 then
        return lock_internal.lock_throttled_permit(lock_throttled_resource.resource_id, lock_throttled_resource.details, unused);
    elsif passed then
        update lock.throttled_resource
        set
            last_locked = clock_timestamp(),
            last_locker_details = lock_throttled_resource.details,
            previously_locked = throttled_resource.last_locked,
            unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()) + throttled_resource.throttle_interval)
        where throttled_resource.resource_id = (
            select ready.resource_id
            from lock.throttled_resource as ready
            where ready.resource_id = lock_throttled_resource.resource_id
              and lock_internal.utc(ready.last_locked) + ready.throttle_interval < lock_internal.utc(clock_timestamp())
              and ready.permits = 1
            for no key update skip locked
        );
        return found;
    elsif ahead then
        update lock.throttled_resource
        set
            last_locked = clock_timestamp(),
            previously_locked = least(throttled_resource.previously_locked, clock_timestamp()),
            unused_since = lock_internal.full_hour(lock_internal.utc(clock_timestamp()) + throttled_resource.throttle_interval)
        where throttled_resource.resource_id = (
            select far.resource_id
            from lock.throttled_resource as far
            where far.resource_id = lock_throttled_resource.resource_id
              and lock_internal.utc(far.last_locked) > lock_internal.utc(clock_timestamp()) + far.throttle_interval + interval '1 minute'
            for no key update skip locked
        );
        if found then
            raise log 'throttled resource "%" was locked in the future: the clock was set back; it is denied for one interval from now', lock_throttled_resource.resource_id;
        end if;
    end if;
    return false;
end;
$$;

comment on function lock.lock_throttled_resource(text, text) is
    'Grants a resource made by lock.create_throttled_resource (resource_id: 1 to 1024 bytes) at '
    'most once per its interval. With several permits, as many grants fall into any window of the '
    'interval. Returns true when a permit''s last grant + throttle_interval < now by the '
    'database''s clock, strictly and to the microsecond; else false. A grant stores now and '
    'details: who and why, 1 to 1024 bytes, not blank. The call never waits: a permit that an '
    'open transaction has just been granted is taken, whether that transaction commits or not. '
    'When all permits are taken, the call is denied at once. The grant is part of the '
    'transaction: rolled back, it never was, so commit at once and work afterwards. A denial '
    'writes nothing. A stored time far in the future (more than the interval and a minute) means '
    'that the clock was set back. Such a call is denied and brings the time back to now, the one '
    'denial that writes; so the resource is free again after one interval. Errors: 22004, 22023 '
    'bad arguments, P0002 never created, 25006 read-only or standby, 40001 under REPEATABLE READ '
    'and SERIALIZABLE. After the time-locked resources in PostgreSQL (for update skip locked); '
    'the permits are beyond them.';
