-- force_release_throttled_resource lets a resource be locked at once, and records who did so and
-- why.
--
-- The permits of a resource that has several are locked behind its own row, as
-- create_throttled_resource does.
create or replace function lock.force_release_throttled_resource(
    resource_id  text,
    reason       text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    previous  jsonb;
    permits   integer;
    taken     boolean;
begin
    perform lock_internal.check_id(force_release_throttled_resource.resource_id, 'resource_id');
    perform lock_internal.check_text(force_release_throttled_resource.reason, 'reason');
    select to_jsonb(held) into previous
    from lock.throttled_resource as held
    where held.resource_id = force_release_throttled_resource.resource_id
      and lock_internal.utc(held.last_locked) + held.throttle_interval >= lock_internal.utc(clock_timestamp())
    for no key update;
    if not found then
        select throttled_resource.permits into permits
        from lock.throttled_resource
        where throttled_resource.resource_id = force_release_throttled_resource.resource_id;
        if not found then
            raise exception 'throttled resource "%" was never created', force_release_throttled_resource.resource_id
                using errcode = 'no_data_found',
                      hint = 'select resource_id from lock.throttled_resource lists what there is.';
        elsif permits = 1 then
            return false;
        end if;
        select to_jsonb(throttled_resource) into previous
        from lock.throttled_resource
        where throttled_resource.resource_id = force_release_throttled_resource.resource_id
        for no key update;
        select
            bool_or(lock_internal.utc(held.last_locked) + held.throttle_interval >= lock_internal.utc(clock_timestamp())),
            previous || jsonb_build_object('throttled_permit', jsonb_agg(to_jsonb(held) order by held.permit))
        into taken, previous
        from (
            select throttled_permit.*
            from lock.throttled_permit
            where throttled_permit.resource_id = force_release_throttled_resource.resource_id
            for no key update
        ) as held;
        if taken is not true then
            return false;
        end if;
    end if;
    update lock.throttled_permit
    set last_locked = '-infinity', last_locker_details = '', previously_locked = '-infinity'
    where throttled_permit.resource_id = force_release_throttled_resource.resource_id;
    update lock.throttled_resource
    set last_locked = '-infinity', last_locker_details = '', previously_locked = '-infinity'
    where throttled_resource.resource_id = force_release_throttled_resource.resource_id;
    perform lock_internal.record_forced_release('throttle', force_release_throttled_resource.resource_id, force_release_throttled_resource.reason, previous);
    return true;
end;
$$;

comment on function lock.force_release_throttled_resource(text, text) is
    'For operators. Lets a resource be locked at once, with all its permits, and returns true; '
    'false when its interval has passed anyway, for every permit. lock.forced_release records the '
    'operator, the reason (1 to 1024 bytes) and what was stored. The call waits for a transaction '
    'that has just locked the resource. Errors: 22004, 22023 bad arguments, P0002 never created, '
    '25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01 deadlock, 55P03 '
    'lock_timeout, 57014 statement_timeout.';
