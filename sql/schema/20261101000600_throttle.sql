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
    previously_locked    timestamptz       not null default '-infinity',
    permits              integer           not null default 1,
    constraint throttled_resource_pkey primary key (resource_id),
    constraint throttled_resource_permits_range check (permits between 1 and 100),
    constraint positive_delays_only check (throttle_interval > interval '0'),
    constraint empty_rules check (
        last_locked = '-infinity' and last_locker_details = ''
        or last_locked <> '-infinity' and length(trim(last_locker_details)) > 0
    )
) with (fillfactor = 80);

create index if not exists throttled_resource_unused_since_idx on lock.throttled_resource (unused_since asc);

create table if not exists lock.throttled_permit (
    resource_id          text collate "C"  not null,
    permit               integer           not null,
    throttle_interval    interval          not null,
    last_locked          timestamptz       not null default '-infinity',
    last_locker_details  text              not null default '',
    previously_locked    timestamptz       not null default '-infinity',
    constraint throttled_permit_pkey primary key (resource_id, permit)
) with (fillfactor = 80);

comment on table lock.throttled_resource is
    'Resources that are granted a number of times per interval. lock.throttled_resource_status is the view for everybody.';

comment on column lock.throttled_resource.last_locked is
    'When it was last granted; -infinity: never, released by force, or there are several permits: see lock.throttled_permit.';

comment on column lock.throttled_resource.last_locker_details is
    'The caller that locked it last, and why; empty when last_locked is -infinity.';

comment on column lock.throttled_resource.unused_since is
    'The hour, in UTC, in which the last interval ends, or in which it was made.';

comment on column lock.throttled_resource.previously_locked is
    'The grant before the last, or a later time if that may stand for one that is forgotten. '
    'Permits that are added count from it.';

comment on table lock.throttled_permit is
    'The permits of those throttled resources that have several: each is granted at most once per interval.';

comment on column lock.throttled_permit.throttle_interval is
    'As in lock.throttled_resource, read under the lock of the permit''s own row.';

comment on column lock.throttled_permit.last_locked is
    'When it was last granted, or a later time if that may stand for a grant that is forgotten; -infinity: never, or released by force.';

comment on column lock.throttled_permit.previously_locked is
    'As in lock.throttled_resource.';

create or replace view lock.throttled_resource_status with (security_barrier) as
with clock as materialized (
    select clock_timestamp() as right_now
)
select
    granted.resource_id,
    granted.throttle_interval,
    granted.last_locked,
    granted.last_locker_details,
    granted.free_at,
    granted.free_at >= granted.right_now as throttled,
    case when granted.free_at >= granted.right_now then granted.free_at - granted.right_now else interval '0' end as free_in,
    granted.last_locked > granted.right_now as clock_was_set_back,
    granted.permits,
    granted.permits_left,
    granted.next_permit_at
from (
    select
        permit.resource_id,
        permit.throttle_interval,
        permit.permits,
        permit.right_now,
        max(permit.last_locked)::timestamptz as last_locked,
        ((array_agg(permit.last_locker_details order by permit.last_locked desc))[1])::text as last_locker_details,
        min(permit.free_at)::timestamptz as free_at,
        (count(*) filter (where permit.free_at < permit.right_now))::integer as permits_left,
        (min(permit.free_at) filter (where permit.free_at >= permit.right_now))::timestamptz as next_permit_at
    from (
        select
            throttled_resource.resource_id,
            throttled_resource.throttle_interval,
            throttled_resource.permits,
            clock.right_now,
            coalesce(throttled_permit.last_locked, throttled_resource.last_locked) as last_locked,
            coalesce(throttled_permit.last_locker_details, throttled_resource.last_locker_details) as last_locker_details,
            ((coalesce(throttled_permit.last_locked, throttled_resource.last_locked) at time zone 'UTC' + throttled_resource.throttle_interval)
                at time zone 'UTC')::timestamptz as free_at
        from lock.throttled_resource
        cross join clock
        left join lock.throttled_permit
            on throttled_permit.resource_id = throttled_resource.resource_id
            and throttled_resource.permits > 1
    ) as permit
    group by permit.resource_id, permit.throttle_interval, permit.permits, permit.right_now
) as granted;

comment on view lock.throttled_resource_status is
    'Why and until when each resource is throttled: the details of the last locker, the time of '
    'the next grant (after free_at) and the time until then (free_in). clock_was_set_back: its '
    'time lies in the future. permits_left: how many grants can be had now. next_permit_at: when '
    'there will be one more; null when all are left.';

-- functions of throttle: written by make migration, not by hand

-- file: sql/functions/throttle/create_throttled_resource.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

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

-- file: sql/functions/throttle/drop_unused_throttled_resources.sql
-- +goose StatementBegin
-- drop_unused_throttled_resources deletes throttled resources whose interval passed long ago.
--
-- It finds them as drop_unused_timeouts does, and drops one of several permits only when it could
-- lock them all.
create or replace function lock.drop_unused_throttled_resources(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    before   constant timestamp := lock_internal.unused_before(drop_unused_throttled_resources.unused_for, drop_unused_throttled_resources.max);
    unused   text[];
    dropped  bigint;
begin
    unused := array(
        select oldest.resource_id
        from lock.throttled_resource as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.last_locked) + oldest.throttle_interval < before
          and (
            oldest.permits = 1
            or not exists (
                select
                from lock.throttled_permit
                where throttled_permit.resource_id = oldest.resource_id
                  and lock_internal.utc(throttled_permit.last_locked) + throttled_permit.throttle_interval >= before
            )
          )
        order by oldest.unused_since
        limit drop_unused_throttled_resources.max
        for update skip locked
    );
    with locked as (
        select throttled_permit.resource_id
        from lock.throttled_permit
        where throttled_permit.resource_id = any(unused)
          and lock_internal.utc(throttled_permit.last_locked) + throttled_permit.throttle_interval < before
        for update skip locked
    )
    select array_agg(throttled_resource.resource_id) into unused
    from lock.throttled_resource
    left join (select locked.resource_id, count(*) as permits from locked group by locked.resource_id) as idle
        on idle.resource_id = throttled_resource.resource_id
    where throttled_resource.resource_id = any(unused)
      and (throttled_resource.permits = 1 or throttled_resource.permits = idle.permits);
    delete from lock.throttled_permit where throttled_permit.resource_id = any(unused);
    delete from lock.throttled_resource where throttled_resource.resource_id = any(unused);
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_throttled_resources(interval, integer) is
    'For operators. Deletes at most max throttled resources whose last interval, or making when '
    'they were never locked, ended at least unused_for ago. It deletes the longest unused first '
    'and returns how many; call it again until it returns 0. It never deletes one that is denied '
    'now, and never waits. A dropped one must be made again: until then locking it is an error '
    '(P0002). Times are kept to the hour, so one can stay up to an hour longer. Errors: 22004, '
    '22023 bad arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/throttle/force_release_throttled_resource.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.force_release_throttled_resource(text, text) is
    'For operators. Lets a resource be locked at once, with all its permits, and returns true; '
    'false when its interval has passed anyway, for every permit. lock.forced_release records the '
    'operator, the reason (1 to 1024 bytes) and what was stored. The call waits for a transaction '
    'that has just locked the resource. Errors: 22004, 22023 bad arguments, P0002 never created, '
    '25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE, 40P01 deadlock, 55P03 '
    'lock_timeout, 57014 statement_timeout.';

-- file: sql/functions/throttle/lock_throttled_permit.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- file: sql/functions/throttle/lock_throttled_resource.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

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
select lock_internal.refuse_dependents('{lock.throttled_resource_status, lock.throttled_permit, lock.throttled_resource}');
select lock_internal.refuse_loss('lock.throttled_resource_status', 'permits_left < permits', 'resources that were granted within their interval');

-- functions of throttle: written by make migration, not by hand

-- gone: sql/functions/throttle/lock_throttled_resource.sql
drop function if exists lock.lock_throttled_resource(text, text);

-- gone: sql/functions/throttle/lock_throttled_permit.sql
drop function if exists lock_internal.lock_throttled_permit(text, text, timestamp);

-- gone: sql/functions/throttle/force_release_throttled_resource.sql
drop function if exists lock.force_release_throttled_resource(text, text);

-- gone: sql/functions/throttle/drop_unused_throttled_resources.sql
drop function if exists lock.drop_unused_throttled_resources(interval, integer);

-- gone: sql/functions/throttle/create_throttled_resource.sql
drop function if exists lock.create_throttled_resource(text, interval, integer);

-- end of functions

drop view if exists lock.throttled_resource_status;
drop table if exists lock.throttled_permit;
drop table if exists lock.throttled_resource;

select lock_internal.end_migration(20261101000600, 'down');
