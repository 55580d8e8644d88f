-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000600 needs 20261101000500, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000600, 20261101000500, 'up');
end;
$$;
-- +goose StatementEnd

create table if not exists lock.throttled_resource (
    resource_id          text collate "C"  not null,
    throttle_interval    interval          not null,
    last_locked          timestamptz       not null default '-infinity',
    last_locker_details  text              not null default '',
    unused_since         timestamp         not null default date_trunc('hour', clock_timestamp() at time zone 'UTC'),
    constraint throttled_resource_pkey primary key (resource_id),
    constraint positive_delays_only check (throttle_interval > interval '0'),
    constraint empty_rules check (
        last_locked = '-infinity' and last_locker_details = ''
        or last_locked <> '-infinity' and length(trim(last_locker_details)) > 0
    )
) with (fillfactor = 80);

create index if not exists throttled_resource_unused_since_idx on lock.throttled_resource (unused_since asc);

comment on table lock.throttled_resource is
    'Resources that are granted at most once per interval. lock.throttled_resource_status is the view for everybody.';

comment on column lock.throttled_resource.last_locked is
    'When it was last granted; -infinity: never, or released by force.';

comment on column lock.throttled_resource.last_locker_details is
    'Who locked it last, and why; empty when last_locked is -infinity.';

comment on column lock.throttled_resource.unused_since is
    'The hour, in UTC, in which the last interval ends, or in which it was made.';

create or replace view lock.throttled_resource_status with (security_barrier) as
select
    timed.resource_id,
    timed.throttle_interval,
    timed.last_locked,
    timed.last_locker_details,
    timed.free_at,
    timed.free_at >= timed.right_now as throttled,
    case when timed.free_at >= timed.right_now then timed.free_at - timed.right_now else interval '0' end as free_in,
    timed.last_locked > timed.right_now as clock_was_set_back
from (
    select
        throttled_resource.resource_id,
        throttled_resource.throttle_interval,
        throttled_resource.last_locked,
        throttled_resource.last_locker_details,
        ((throttled_resource.last_locked at time zone 'UTC' + throttled_resource.throttle_interval) at time zone 'UTC')::timestamptz as free_at,
        clock_timestamp() as right_now
    from lock.throttled_resource
) as timed;

comment on view lock.throttled_resource_status is
    'Why and until when each resource is throttled: who locked it last, the time of the next grant (after free_at) and the time until then (free_in). clock_was_set_back: its time lies in the future.';

-- functions of throttle: written by make migration, not by hand

-- file: sql/functions/throttle/create_throttled_resource.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.create_throttled_resource(text, interval) is
    'Makes a throttled resource (resource_id: 1 to 1024 bytes; throttle_interval: over 0, up to 100 years) that can be locked at once and returns true. When it exists, returns false, and it has the new interval, which counts from the last grant. '
    'A day is 24 hours, whatever the session''s time zone; months and years are calendar arithmetic in UTC. Writes nothing when it exists with this interval. Waits for a transaction that is making, changing or locking it. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE, or when it is being dropped.';

-- file: sql/functions/throttle/drop_unused_throttled_resources.sql
-- +goose StatementBegin
-- drop_unused_throttled_resources deletes throttled resources whose interval passed long ago.
--
-- It finds them as drop_unused_timeouts does.
create or replace function lock.drop_unused_throttled_resources(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    before   constant timestamp := lock_internal.unused_before(drop_unused_throttled_resources.unused_for, drop_unused_throttled_resources.max);
    dropped  bigint;
begin
    delete from lock.throttled_resource
    where throttled_resource.resource_id = any(array(
        select oldest.resource_id
        from lock.throttled_resource as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.last_locked) + oldest.throttle_interval < before
        order by oldest.unused_since
        limit drop_unused_throttled_resources.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_throttled_resources(interval, integer) is
    'For the schema''s owner. Deletes at most max throttled resources whose last interval, or making when they were never locked, ended at least unused_for ago, longest first, and returns how many; call it again until it returns 0. '
    'Never one that is denied now, never waits. A dropped one must be made again: until then locking it is an error (P0002). Times are kept to the hour, so one can stay up to an hour longer. '
    'Errors: 22004, 22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/throttle/force_release_throttled_resource.sql
-- +goose StatementBegin
-- force_release_throttled_resource lets a resource be locked at once, and records who did so and why.
create or replace function lock.force_release_throttled_resource(
    resource_id  text,
    reason       text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  jsonb;
begin
    perform lock_internal.check_id(force_release_throttled_resource.resource_id, 'resource_id');
    perform lock_internal.check_text(force_release_throttled_resource.reason, 'reason');
    select to_jsonb(held) into previous
    from lock.throttled_resource as held
    where held.resource_id = force_release_throttled_resource.resource_id
      and lock_internal.utc(held.last_locked) + held.throttle_interval >= lock_internal.utc(clock_timestamp())
    for no key update;
    if not found then
        perform from lock.throttled_resource where throttled_resource.resource_id = force_release_throttled_resource.resource_id;
        if found then
            return false;
        end if;
        raise exception 'throttled resource "%" was never created', force_release_throttled_resource.resource_id
            using errcode = 'no_data_found',
                  hint = 'select resource_id from lock.throttled_resource lists what there is.';
    end if;
    update lock.throttled_resource
    set last_locked = '-infinity', last_locker_details = ''
    where throttled_resource.resource_id = force_release_throttled_resource.resource_id;
    perform lock_internal.record_forced_release('throttle', force_release_throttled_resource.resource_id, force_release_throttled_resource.reason, previous);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_throttled_resource(text, text) is
    'For the schema''s owner. Lets a resource be locked at once and returns true; false when its interval has passed anyway. lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'Waits for a transaction that has just locked it. Errors: 22004, 22023 bad arguments, P0002 never created, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/throttle/lock_throttled_resource.sql
-- +goose StatementBegin
-- lock_throttled_resource returns true when the resource was not granted within its interval, and never waits to say so.
--
-- The update takes the row only when its interval has passed and nobody else has it (skip locked): one that another open
-- transaction has granted, or is granting, is a denial as well, whether that transaction commits or not. The look that follows
-- only tells a denial from a resource that is unknown. The sum is made in UTC, so that days and months do not depend on the
-- session's time zone. A time that lies far in the future is brought back to now as acquire_timeout does.
create or replace function lock.lock_throttled_resource(
    resource_id  text,
    details      text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
    ahead      boolean;
begin
    if (
        octet_length(lock_throttled_resource.resource_id) between 1 and 1024
        and octet_length(lock_throttled_resource.details) <= 1024
        and ltrim(lock_throttled_resource.details, E' \t\n\x0b\f\r') <> ''
        and not pg_is_in_recovery()
    ) is not true then
        perform lock_internal.check_primary();
        perform lock_internal.check_id(lock_throttled_resource.resource_id, 'resource_id');
        perform lock_internal.check_text(lock_throttled_resource.details, 'details');
    end if;
    update lock.throttled_resource
    set
        last_locked = right_now,
        last_locker_details = lock_throttled_resource.details,
        unused_since = lock_internal.full_hour(lock_internal.utc(right_now) + throttled_resource.throttle_interval)
    where throttled_resource.resource_id = (
        select ready.resource_id
        from lock.throttled_resource as ready
        where ready.resource_id = lock_throttled_resource.resource_id
          and lock_internal.utc(ready.last_locked) + ready.throttle_interval < lock_internal.utc(right_now)
        for no key update skip locked
    );
    if found then
        return true;
    end if;
    select throttled_resource.last_locked > right_now into ahead
    from lock.throttled_resource
    where throttled_resource.resource_id = lock_throttled_resource.resource_id;
    if not found then
        raise exception 'throttled resource "%" was never created', lock_throttled_resource.resource_id
            using errcode = 'no_data_found',
                  hint = 'Create it once with lock.create_throttled_resource(resource_id, throttle_interval).';
    elsif ahead then
        update lock.throttled_resource
        set
            last_locked = clock_timestamp(),
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
-- +goose StatementEnd

comment on function lock.lock_throttled_resource(text, text) is
    'Grants a resource made by lock.create_throttled_resource (resource_id: 1 to 1024 bytes) at most once per its interval: true when last_locked + throttle_interval < now by the database''s clock, strictly and to the microsecond, and then stores now and details '
    '(who and why, 1 to 1024 bytes, not blank); else false. Never waits: a resource that an open transaction has just locked is denied at once, whether that transaction commits or not. '
    'The grant is part of the transaction: rolled back, it never was, so commit at once and work afterwards. A denial writes nothing. '
    'A stored time far in the future (more than the interval and a minute: the clock was set back) is denied and pulled back to now, the one denial that writes; so it is free again after one interval. '
    'Errors: 22004, 22023 bad arguments, P0002 never created, 25006 read-only or standby, 40001 under REPEATABLE READ and SERIALIZABLE. '
    'After the time-locked resources in PostgreSQL (for update skip locked).';

-- end of functions

select lock_internal.end_migration(20261101000600, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000600 needs 20261101000500, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000600, 20261101000500, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.throttled_resource_status, lock.throttled_resource}');
select lock_internal.refuse_loss('lock.throttled_resource_status', 'throttled', 'resources that are throttled');

-- functions of throttle: written by make migration, not by hand

-- gone: sql/functions/throttle/lock_throttled_resource.sql
drop function if exists lock.lock_throttled_resource(text, text);

-- gone: sql/functions/throttle/force_release_throttled_resource.sql
drop function if exists lock.force_release_throttled_resource(text, text);

-- gone: sql/functions/throttle/drop_unused_throttled_resources.sql
drop function if exists lock.drop_unused_throttled_resources(interval, integer);

-- gone: sql/functions/throttle/create_throttled_resource.sql
drop function if exists lock.create_throttled_resource(text, interval);

-- end of functions

drop view if exists lock.throttled_resource_status;
drop table if exists lock.throttled_resource;

select lock_internal.end_migration(20261101000600, 'down');
