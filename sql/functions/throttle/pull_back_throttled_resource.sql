-- pull_back_throttled_resource brings a time that lies far in the future back to now, because the clock was set back since it was stored.
--
-- Nothing is granted early: the grant was made before now, so a full interval from now is at least one from the grant. The
-- margin keeps it from steps of milliseconds and from servers whose clocks differ. A row that somebody holds is left alone.
create or replace function lock_internal.pull_back_throttled_resource(
    resource_id  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
begin
    update lock.throttled_resource
    set
        last_locked = right_now,
        unused_since = lock_internal.full_hour(lock_internal.utc(right_now) + throttled_resource.throttle_interval)
    where throttled_resource.resource_id = (
        select ahead.resource_id
        from lock.throttled_resource as ahead
        where ahead.resource_id = pull_back_throttled_resource.resource_id
          and lock_internal.utc(ahead.last_locked) > lock_internal.utc(right_now) + ahead.throttle_interval + interval '1 minute'
        for no key update skip locked
    );
    if found then
        raise log 'throttled resource "%" was locked in the future: the clock was set back; it is denied for one interval from now', pull_back_throttled_resource.resource_id;
    end if;
end;
$$;
