-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000700 needs 20261101000630, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000700, 20261101000630, 'up');
end;
$$;
-- +goose StatementEnd

create table if not exists lock.lease (
    name         text collate "C"  not null,
    token        bigint            not null,
    owner        text              not null,
    acquired_at  timestamptz       not null,
    renewed_at   timestamptz       not null,
    expires_at   timestamptz       not null,
    awaited      boolean           not null default false,
    constraint lease_pkey primary key (name, token)
);

comment on table lock.lease is
    'The leases that were granted and not released. One that has expired stays until its permit '
    'is needed. Its row is the fence: lock.assert_lease shares it, and all that ends the lease '
    'deletes it. lock.lease_holder shows the live ones.';

comment on column lock.lease.token is
    'Greater than the token of every lease granted on the name before.';

comment on column lock.lease.owner is
    'The holder, for people to read. The token proves a holder.';

comment on column lock.lease.renewed_at is
    'When expires_at was last set.';

comment on column lock.lease.awaited is
    'A caller waits in lock.await_lease for its end, so its release sends a notification.';

create table if not exists lock.lease_name (
    name        text collate "C"  not null,
    token       bigint            not null,
    granted_at  timestamptz       not null,
    constraint lease_name_pkey primary key (name)
);

comment on table lock.lease_name is
    'Every name that ever had a lease, until lock.drop_unused_leases forgets it, and the greatest '
    'token given on it. Its row is the gate of all callers that acquire the name.';

create table if not exists lock.lease_floor (
    only_row  boolean  not null default true,
    token     bigint   not null,
    constraint lease_floor_pkey primary key (only_row),
    constraint lease_floor_only_row check (only_row)
);

comment on table lock.lease_floor is
    'One row: the greatest token of any name that was forgotten. New names start above it.';

insert into lock.lease_floor (token) values (0) on conflict do nothing;

create or replace view lock.lease_holder with (security_barrier) as
select
    lease.name,
    lease.token,
    lease.owner,
    lease.acquired_at,
    lease.renewed_at,
    lease.expires_at,
    (lease.expires_at - clock_timestamp())::interval as expires_in
from lock.lease
where lease.expires_at > clock_timestamp();

comment on view lock.lease_holder is
    'The live leases: the holder of each permit of a name, and for how long if it is not renewed.';

-- functions of lease: written by make migration, not by hand

-- file: sql/functions/lease/add_lease_name.sql
-- +goose StatementBegin
-- add_lease_name makes the row of a new name. It returns the first token, which no lease on this
-- name ever had.
--
-- lock.drop_unused_leases forgets names, and keeps in lock.lease_floor the greatest token of any of
-- them. This function shares that row until the transaction ends, so nobody raises the floor after
-- it was read here. Under REPEATABLE READ a floor that is newer than the snapshot is 40001. Both
-- functions take the floor before the names: no deadlock.
create or replace function lock_internal.add_lease_name(
    name  text
)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    first  bigint;
begin
    select lease_floor.token + 1 into strict first
    from lock.lease_floor
    where lease_floor.only_row
    for share;
    insert into lock.lease_name (name, token, granted_at)
    values (add_lease_name.name, first, clock_timestamp())
    on conflict on constraint lease_name_pkey do update
    set token = lease_name.token + 1,
        granted_at = clock_timestamp()
    returning lease_name.token into first;
    return first;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/lease/acquire_lease.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

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

-- file: sql/functions/lease/check_token.sql
-- +goose StatementBegin
-- check_token refuses a name or token that is null, and a name that no lease can have.
create or replace function lock_internal.check_token(
    name   text,
    token  bigint
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(check_token.name, 'name');
    if check_token.token is null then
        raise exception 'token must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the token that lock.acquire_lease returned.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/lease/assert_lease.sql
-- +goose StatementBegin
-- assert_lease stops a transaction whose lease is lost. It keeps the lease from being given to
-- another caller before the transaction ends.
--
-- The fence is the lock on the lease's row. It is the weakest lock that a delete must wait for, so
-- renewals pass while it is held. Takeover and release, by force or not, delete the row. When this
-- asserts first, they come after this transaction's end. When they delete first, this waits for
-- that transaction's end and finds nothing. The time is read once the lock is held. An asserted
-- lease may run out before the commit: nobody gets it sooner.
--
-- Under REPEATABLE READ a row that looks expired may have been renewed since the snapshot. The
-- second lock tells (40001). A token that the snapshot's counter has not reached was granted after
-- the snapshot: 40001, too.
create or replace function lock.assert_lease(
    name   text,
    token  bigint
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    expires_at  timestamptz;
begin
    select lease.expires_at into expires_at
    from lock.lease
    where lease.name = assert_lease.name
      and lease.token = assert_lease.token
    for key share;
    if expires_at > clock_timestamp() then
        return;
    end if;
    perform lock_internal.check_token(assert_lease.name, assert_lease.token);
    if expires_at is not null then
        select lease.expires_at into expires_at
        from lock.lease
        where lease.name = assert_lease.name
          and lease.token = assert_lease.token
        for no key update;
        if expires_at > clock_timestamp() then
            return;
        end if;
    elsif current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
        and assert_lease.token > coalesce((
            select lease_name.token
            from lock.lease_name
            where lease_name.name = assert_lease.name
        ), (select lease_floor.token from lock.lease_floor where lease_floor.only_row))
    then
        raise exception 'lease % with token % is newer than this transaction''s snapshot, or never was', assert_lease.name, assert_lease.token
            using errcode = 'serialization_failure',
                  hint = 'Begin the transaction after the lease was acquired.';
    end if;
    raise exception 'lease % with token % is lost', assert_lease.name, assert_lease.token
        using errcode = 'LK001',
              detail = coalesce(
                  'It expired at ' || expires_at || '.',
                  (
                      select format('%s released it by force at %s: %s', forced_release.released_by, forced_release.released_at, forced_release.reason)
                      from lock.forced_release
                      where forced_release.id = assert_lease.name
                        and forced_release.kind = 'lease'
                        and forced_release.previous -> 'token' = to_jsonb(assert_lease.token)
                  ),
                  'It was released, taken over after it had expired, or never granted.'
              ),
              hint = 'Roll back and stop: another may hold the name by now.';
end;
$$;
-- +goose StatementEnd

comment on function lock.assert_lease(text, bigint) is
    'A fence: call it in the transaction that writes what the lease protects. It raises LK001 '
    'when the lease is lost: expired, released (by force or not), or never granted. Otherwise '
    'nobody gets the lease''s permit until the transaction ends, even when the lease expires '
    'before that. So a holder commits nothing after its successor was granted. Waits only for a '
    'transaction that is releasing or taking over this lease. Errors: 22004 null, 22023 bad name, '
    'LK001 lost, 40001 under REPEATABLE READ and SERIALIZABLE when the lease went or came after '
    'the snapshot, 25006 read-only.';

-- file: sql/functions/lease/await_lease.sql
-- +goose StatementBegin
-- await_lease acquires a lease, or says how long to sleep before the next call. It leaves marks
-- that make releases notify.
--
-- The row that it returns is the lease that was granted, or has token 0 and describes the lease
-- whose end frees a permit. With more leases than permits that is not the first to end. When that
-- lease had run out before the call asked, a transaction that asserted it is still open. Nobody can
-- say for how long, so the answer is to come back in a ttl, 5 seconds at most.
--
-- All leases on the name are marked, on one snapshot. As long as each of these is there, no permit
-- is free. A caller that ends one of them sees its mark, or deleted it before it was marked; then
-- there is nothing to mark. When other callers have marked them all, the call writes nothing and
-- does not wait.
--
-- It may wait for a transaction that is ending a lease. It does so only when every lease has to go
-- (permits is 1) and one lease alone is not marked. So it does not oversleep another permit. It has
-- no other lease's row locked, so a caller that ends two leases in a transaction cannot deadlock
-- with it. Leases that it could not mark otherwise are left to its next call, soon.
create or replace function lock.await_lease(
    name     text,
    owner    text,
    ttl      interval,
    permits  integer  default 1
)
returns setof lock.lease_holder
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    answer  record;
    asked   timestamptz;
    again   boolean := false;
    silent  bigint[];
    marked  bigint;
begin
    loop
        asked := clock_timestamp();
        select lease.name, lease.token, lease.owner, lease.acquired_at, lease.renewed_at, lease.expires_at, await_lease.ttl as expires_in
        into answer
        from lock.acquire_lease(await_lease.name, await_lease.owner, await_lease.ttl, await_lease.permits) as lease;
        if found then
            return next answer;
            return;
        end if;

        select
            lease.name, 0, lease.owner, lease.acquired_at, lease.renewed_at, lease.expires_at,
            lease.expires_at - clock_timestamp(),
            array(
                select other.token
                from lock.lease as other
                where other.name = await_lease.name
                  and not other.awaited
            )
        into
            answer.name, answer.token, answer.owner, answer.acquired_at, answer.renewed_at, answer.expires_at,
            answer.expires_in,
            silent
        from lock.lease
        where lease.name = await_lease.name
        order by lease.expires_at desc, lease.token desc
        offset await_lease.permits - 1
        limit 1;
        continue when not found or answer.expires_in <= interval '0' and answer.expires_at > asked;
        -- The lease that denied this call may have gone since. The next round takes over this one.
        if answer.expires_in <= interval '0' and not again then
            again := true;
            continue;
        end if;

        if answer.expires_in <= interval '0' then
            answer.expires_in := least(await_lease.ttl, interval '5 seconds');
        end if;
        if silent <> '{}' then
            update lock.lease
            set awaited = true
            where lease.name = await_lease.name
              and lease.token = any(array(
                select free.token
                from lock.lease as free
                where free.name = await_lease.name
                  and free.token = any(silent)
                  and not free.awaited
                for no key update skip locked
              ));
            get diagnostics marked = row_count;
            if marked = 0 and await_lease.permits = 1 and cardinality(silent) = 1 then
                update lock.lease
                set awaited = true
                where lease.name = await_lease.name
                  and lease.token = silent[1];
                continue when not found;
                marked := 1;
                answer.expires_in := greatest(least(answer.expires_in, answer.expires_at - clock_timestamp()), interval '0');
            end if;
            if marked < cardinality(silent) then
                answer.expires_in := least(answer.expires_in, interval '100 milliseconds');
            end if;
        end if;
        return next answer;
        return;
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.await_lease(text, text, interval, integer) is
    'Acquires a lease as lock.acquire_lease does, or says how long to sleep. Returns one row. It '
    'is the lease that was granted, or has token 0 with the holder, expiry and expires_in of '
    'another lease: the one whose end would free a permit. Sleep for expires_in, or until a '
    'notification on channel lock_lease whose payload is the name. Then call it again. Listen '
    'before the first call. A release, by force or not, notifies only because of this call. Where '
    'notifications do not arrive, sleeping is enough. Call it outside a transaction block. Until '
    'its transaction ends, nobody can release or renew the leases on the name. It waits for '
    'transactions that are about to do so. Errors: as lock.acquire_lease.';

-- file: sql/functions/lease/drop_unused_leases.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.drop_unused_leases(interval, integer) is
    'For operators. Forgets up to max names (default 10000) that have no lease, and had none '
    'granted for unused_for; returns how many. Leases that expired so long ago go, too. New names '
    'start with a token above that of every forgotten one. It reads the tables from end to end. '
    'Run it from cron when names come and go by the thousand, until it returns 0. New names wait '
    'while it runs. Errors: 22004 null, 22023 bad interval or max below 1, 40001 under REPEATABLE '
    'READ and SERIALIZABLE, 25006 read-only.';

-- file: sql/functions/lease/force_release_lease.sql
-- +goose StatementBegin
-- force_release_lease takes a live lease from its holder, and records the operator and the reason;
-- false when there is no such lease.
create or replace function lock.force_release_lease(
    name    text,
    token   bigint,
    reason  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    previous  lock.lease;
begin
    perform lock_internal.check_token(force_release_lease.name, force_release_lease.token);
    perform lock_internal.check_text(force_release_lease.reason, 'reason');
    delete from lock.lease
    where lease.name = force_release_lease.name
      and lease.token = force_release_lease.token
      and lease.expires_at > clock_timestamp()
    returning lease.* into previous;
    if not found then
        return false;
    end if;
    perform lock_internal.record_forced_release('lease', previous.name, force_release_lease.reason, to_jsonb(previous));
    if previous.awaited and current_setting('yb_enable_listen_notify', true) is distinct from 'off' then
        perform pg_notify('lock_lease', previous.name);
    end if;
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_lease(text, bigint, text) is
    'For operators. Takes a live lease (see lock.lease_holder) from its holder and returns true; '
    'false when there is no such live lease. lock.forced_release records the operator, the reason '
    '(1 to 1024 bytes) and the lease with its token. From its commit on lock.assert_lease and '
    'lock.renew_lease refuse the token. Waits for transactions that have asserted it, so that '
    'none of them commits later. Errors: 22004 null, 22023 bad name or reason, 40001 under '
    'REPEATABLE READ and SERIALIZABLE when the lease was renewed or lost, or a waiter marked it, '
    'after the snapshot, 25006 read-only.';

-- file: sql/functions/lease/raise_floor.sql
-- +goose StatementBegin
-- raise_floor lets a second row of lock.lease_floor raise the first, as when the data of another
-- database are restored into one that has been migrated.
create or replace function lock_internal.raise_floor()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    update lock.lease_floor
    set token = greatest(lease_floor.token, new.token)
    where lease_floor.only_row;
    if found then
        return null;
    end if;
    return new;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/lease/release_lease.sql
-- +goose StatementBegin
-- release_lease gives a lease back before it ends; false when it had been lost already.
--
-- To delete the row, it needs the row exclusively. It waits for transactions that have asserted the
-- lease. It also waits for one that is about to mark the row as awaited, and then finds the mark.
-- Only a marked lease is worth a notification: a notification makes every commit of the server
-- queue behind one lock.
create or replace function lock.release_lease(
    name   text,
    token  bigint
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    live     boolean;
    awaited  boolean;
begin
    delete from lock.lease
    where lease.name = release_lease.name
      and lease.token = release_lease.token
    returning lease.expires_at > clock_timestamp(), lease.awaited into live, awaited;
    if not found then
        perform lock_internal.check_token(release_lease.name, release_lease.token);
        return false;
    end if;
    if awaited and current_setting('yb_enable_listen_notify', true) is distinct from 'off' then
        perform pg_notify('lock_lease', release_lease.name);
    end if;
    return live;
end;
$$;
-- +goose StatementEnd

comment on function lock.release_lease(text, bigint) is
    'Gives a lease back and wakes the callers of lock.await_lease that wait for the name. Both '
    'happen at commit, so it may be the last statement of the work''s own transaction. Returns '
    'false when the lease was lost before: expired, or released. Waits for other transactions '
    'that called lock.assert_lease with the lease. Errors: 22004 null, 22023 bad name, 40001 '
    'under REPEATABLE READ and SERIALIZABLE when the lease was renewed or lost, or a waiter '
    'marked it, after the snapshot, 25006 read-only.';

-- file: sql/functions/lease/renew_lease.sql
-- +goose StatementBegin
-- renew_lease lets a live lease end ttl from now; false when the lease is lost. No renewal brings
-- it back.
--
-- It changes no key, so it does not wait for transactions that have asserted the lease (for key
-- share), nor they for it. The time is read again once the row is locked: a lease that ran out
-- during a wait is lost like any other.
create or replace function lock.renew_lease(
    name   text,
    token  bigint,
    ttl    interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    expires_at  timestamptz;
begin
    perform lock_internal.check_token(renew_lease.name, renew_lease.token);
    perform lock_internal.check_interval(renew_lease.ttl, 'ttl', true);
    select lease.expires_at into expires_at
    from lock.lease
    where lease.name = renew_lease.name
      and lease.token = renew_lease.token
      and lease.expires_at > clock_timestamp()
    for no key update;
    if not found or expires_at <= clock_timestamp() then
        return false;
    end if;
    update lock.lease
    set renewed_at = moment.now,
        expires_at = (moment.now at time zone 'UTC' + renew_lease.ttl) at time zone 'UTC'
    from (select clock_timestamp() as now) as moment
    where lease.name = renew_lease.name
      and lease.token = renew_lease.token;
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.renew_lease(text, bigint, interval) is
    'Lets a lease end ttl from now, which may be sooner than before. Returns false when the lease '
    'is lost: expired (even when nobody else has it yet), or released. A lost lease never comes '
    'back. Does not wait for transactions that called lock.assert_lease. Errors: 22004 null, '
    '22023 bad name or ttl, 40001 under REPEATABLE READ and SERIALIZABLE when it was renewed or '
    'lost, or a waiter marked it, after the snapshot, 25006 read-only.';

-- end of functions

create or replace trigger lease_floor_raise
    before insert on lock.lease_floor
    for each row execute function lock_internal.raise_floor();

select lock_internal.end_migration(20261101000700, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000700 needs 20261101000630, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000700, 20261101000630, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.lease_holder, lock.lease_floor, lock.lease_name, lock.lease}');
select lock_internal.refuse_loss('lock.lease', 'expires_at > clock_timestamp()', 'leases that are held');

-- +goose StatementBegin
do $$
begin
    if to_regclass('lock.lease_floor') is not null then
        drop trigger if exists lease_floor_raise on lock.lease_floor;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions of lease: written by make migration, not by hand

-- gone: sql/functions/lease/renew_lease.sql
drop function if exists lock.renew_lease(text, bigint, interval);

-- gone: sql/functions/lease/release_lease.sql
drop function if exists lock.release_lease(text, bigint);

-- gone: sql/functions/lease/raise_floor.sql
drop function if exists lock_internal.raise_floor();

-- gone: sql/functions/lease/force_release_lease.sql
drop function if exists lock.force_release_lease(text, bigint, text);

-- gone: sql/functions/lease/drop_unused_leases.sql
drop function if exists lock.drop_unused_leases(interval, integer);

-- gone: sql/functions/lease/await_lease.sql
drop function if exists lock.await_lease(text, text, interval, integer);

-- gone: sql/functions/lease/assert_lease.sql
drop function if exists lock.assert_lease(text, bigint);

-- gone: sql/functions/lease/check_token.sql
drop function if exists lock_internal.check_token(text, bigint);

-- gone: sql/functions/lease/acquire_lease.sql
drop function if exists lock.acquire_lease(text, text, interval, integer);

-- gone: sql/functions/lease/add_lease_name.sql
drop function if exists lock_internal.add_lease_name(text);

-- end of functions

drop view if exists lock.lease_holder;
drop table if exists lock.lease_floor;
drop table if exists lock.lease_name;
drop table if exists lock.lease;

select lock_internal.end_migration(20261101000700, 'down');
