-- +goose Up

-- The first migration cannot call lock.start_migration yet; this is the same, in one block.
-- +goose StatementBegin
do $$
declare
    latest  integer;
begin
    if version() not like '%-YB-%' then
        perform pg_advisory_xact_lock(1819239275, 0);
    end if;
    if exists (select from pg_namespace where pg_namespace.nspname = 'lock' and pg_namespace.nspowner <> current_user::regrole) then
        raise exception 'the schema lock belongs to another role'
            using errcode = 'insufficient_privilege',
                  hint = 'Migrate as its owner, or drop it if it is nobody''s: what is in it already would run with your rights.';
    end if;
    if to_regclass('lock.migration') is not null then
        select max(migration.number) into latest from lock.migration;
        if latest > 1 then
            raise exception 'migration 1 cannot go up now: the schema is at %', latest
                using errcode = 'object_in_use',
                      hint = 'Another migrator is at work on this database, or was. Nothing was changed; run goose again.';
        end if;
    end if;
end;
$$;
-- +goose StatementEnd

create schema if not exists lock;

comment on schema lock is
    'Distributed locks, throttles, task capture and a request queue. \df+ lock.* is the manual.';

create table if not exists lock.migration (
    number      integer      not null,
    applied_at  timestamptz  not null default clock_timestamp(),
    constraint migration_pkey primary key (number)
);

comment on table lock.migration is
    'The migrations that this schema has been through, kept by the migrations themselves: goose''s own table is named by its user.';

create table if not exists lock.chosen_engine (
    engine  text collate "C"  not null,
    constraint chosen_engine_pkey primary key (engine),
    constraint chosen_engine_known check (engine in ('advisory', 'row'))
);

comment on table lock.chosen_engine is
    'What key locks are made of here; one row, written by the first migration, never to be changed. Read it by lock.engine().';

-- +goose StatementBegin
do $$
declare
    wanted  text := nullif(current_setting('lock.engine', true), '');
begin
    if exists (select from lock.chosen_engine) then
        return;
    end if;
    wanted := coalesce(wanted, case when version() like '%-YB-%' then 'row' else 'advisory' end);
    if wanted not in ('advisory', 'row') then
        raise exception 'lock.engine is %, and must be advisory or row', wanted
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave it unset: PostgreSQL then gets advisory, and YugabyteDB row.';
    elsif wanted = 'advisory' and version() like '%-YB-%' then
        raise exception 'the advisory engine is for PostgreSQL'
            using errcode = 'feature_not_supported',
                  hint = 'Leave lock.engine unset: YugabyteDB then gets row.';
    end if;
    insert into lock.chosen_engine (engine) values (wanted) on conflict do nothing;
end;
$$;
-- +goose StatementEnd

-- The advisory engine's directory is worthless after a crash, hence unlogged; the row engine's rows are the locks.
-- +goose StatementBegin
do $$
begin
    if (select chosen_engine.engine from lock.chosen_engine) = 'advisory' and to_regclass('lock.locked_keys') is null then
        create unlogged table lock.locked_keys (
            key   bigint       not null,
            name  text,
            ts    timestamptz  not null default clock_timestamp(),
            constraint locked_keys_pkey primary key (key)
        );
    end if;
end;
$$;
-- +goose StatementEnd

create table if not exists lock.locked_keys (
    key   bigint       not null,
    name  text,
    ts    timestamptz  not null default clock_timestamp(),
    constraint locked_keys_pkey primary key (key)
);

comment on table lock.locked_keys is
    'Every key that was locked and is not yet forgotten by lock.unlock or lock.vacuum. The lock itself on the row engine, a directory '
    'of names on the advisory engine.';

comment on column lock.locked_keys.name is
    'The name that was locked first, for a key that was locked by name.';

comment on column lock.locked_keys.ts is
    'When the key was locked for the first time since it was last forgotten.';

-- functions: written by make migration, not by hand

-- file: sql/functions/rule/check_id.sql
-- +goose StatementBegin
-- check_id refuses an id, name or owner that is null, empty or longer than 1024 bytes.
create or replace function lock.check_id(
    value  text,
    what   text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null then
        raise exception '% must not be null', what
            using errcode = 'null_value_not_allowed',
                  hint = format('Pass a text of 1 to 1024 bytes as %s.', what);
    elsif value = '' then
        raise exception '% must not be empty', what
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass a text of 1 to 1024 bytes as %s.', what);
    elsif octet_length(value) > 1024 then
        raise exception '% is % bytes long, and at most 1024 are allowed', what, octet_length(value)
            using errcode = 'invalid_parameter_value',
                  hint = 'Use a shorter text, for example encode(sha256(convert_to(id, ''UTF8'')), ''hex'').';
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.check_id(text, text) is
    'Internal: refuses an id, name or owner that is null (22004), empty or longer than 1024 bytes (22023).';

revoke all on function lock.check_id(text, text) from public;

-- file: sql/functions/rule/check_interval.sql
-- +goose StatementBegin
-- check_interval refuses an interval that is null, infinite, zero, negative or over 100 years, and, where a fixed length is needed, months.
create or replace function lock.check_interval(
    value  interval,
    what   text,
    fixed  boolean
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null then
        raise exception '% must not be null', what
            using errcode = 'null_value_not_allowed',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif not isfinite(value) then
        raise exception '% must be finite, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif fixed and extract(year from value) * 12 + extract(month from value) <> 0 then
        raise exception '% must have a fixed length, and % contains months', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Months and years differ in length: use days, hours or seconds.';
    elsif value <= interval '0' then
        raise exception '% must be positive, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif value > interval '36525 days' or timestamp '2000-01-01' + value > timestamp '2100-01-01' then
        raise exception '% must be at most 36525 days (100 years), not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass a shorter interval.';
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.check_interval(interval, text, boolean) is
    'Internal: refuses an interval that is null (22004), infinite, zero, negative, over 36525 days (100 years), or, when fixed, has months (22023).';

revoke all on function lock.check_interval(interval, text, boolean) from public;

-- file: sql/functions/rule/check_max.sql
-- +goose StatementBegin
-- check_max refuses a limit that is null or below 1.
create or replace function lock.check_max(
    max  integer
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_max.max is null then
        raise exception 'max must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass how many one call may take at most.';
    elsif check_max.max < 1 then
        raise exception 'max must be at least 1, not %', check_max.max
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass how many one call may take at most.';
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.check_max(integer) is
    'Internal: refuses a limit that is null (22004) or below 1 (22023).';

revoke all on function lock.check_max(integer) from public;

-- file: sql/functions/rule/check_primary.sql
-- +goose StatementBegin
-- check_primary refuses to work on a standby, where a lock would exclude nobody.
create or replace function lock.check_primary()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_is_in_recovery() then
        raise exception 'a lock on a standby would exclude nobody'
            using errcode = 'read_only_sql_transaction',
                  hint = 'Connect to the primary, for example with target_session_attrs=read-write.';
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.check_primary() is
    'Internal: refuses to work on a standby (25006).';

revoke all on function lock.check_primary() from public;

-- file: sql/functions/rule/milliseconds.sql
-- +goose StatementBegin
-- milliseconds turns a wait into what lock_timeout takes: rounded up, at least 1, at most its greatest value (24.8 days).
create or replace function lock.milliseconds(
    wait  interval
)
returns integer
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select greatest(1, least(2147483647, ceil(extract(epoch from milliseconds.wait) * 1000)))::integer;
$$;
-- +goose StatementEnd

comment on function lock.milliseconds(interval) is
    'Internal: a wait in milliseconds, rounded up, between 1 and 2147483647.';

revoke all on function lock.milliseconds(interval) from public;

-- file: sql/functions/activity/grant_to.sql
-- +goose StatementBegin
-- grant_to gives a role every public function and view of the schema, and no table.
create or replace function lock.grant_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    granted_function  regprocedure;
    granted_view      regclass;
begin
    if grant_to.role is null then
        raise exception 'role must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the name of a role.';
    elsif not exists (
        select
        from pg_roles
        where pg_roles.rolname = grant_to.role
    ) then
        raise exception 'role "%" does not exist', grant_to.role
            using errcode = 'undefined_object',
                  hint = 'Pass the name of a role; what is for everybody (public) is granted function by function.';
    end if;
    execute format('grant usage on schema lock to %I', grant_to.role);
    for granted_function in
        select granted_functions from lock.granted_functions()
    loop
        execute format('grant execute on function %s to %I', granted_function, grant_to.role);
    end loop;
    for granted_view in
        select granted_views from lock.granted_views()
    loop
        execute format('grant select on %s to %I', granted_view, grant_to.role);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.grant_to(name) is
    'Operators: gives a role every function and view that is not for the owner alone, and no table. Migrations that come later extend it by themselves. Run it as the owner of the schema. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';

revoke all on function lock.grant_to(name) from public;

-- file: sql/functions/activity/granted_functions.sql
-- +goose StatementBegin
-- granted_functions lists what grant_to gives: every function of the schema whose comment does not set it apart.
--
-- A comment that starts with 'Internal:' or 'Operators:' keeps it to the owner.
create or replace function lock.granted_functions()
returns setof regprocedure
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_proc.oid::regprocedure
    from pg_proc
    where pg_proc.pronamespace = 'lock'::regnamespace
      and pg_proc.prorettype <> 'trigger'::regtype
      and coalesce(obj_description(pg_proc.oid, 'pg_proc'), '') !~ '^(Internal|Operators):'
    order by 1;
$$;
-- +goose StatementEnd

comment on function lock.granted_functions() is
    'Internal: every function that lock.grant_to gives.';

revoke all on function lock.granted_functions() from public;

-- file: sql/functions/activity/granted_views.sql
-- +goose StatementBegin
-- granted_views lists what grant_to gives: every view of the schema whose comment does not set it apart.
--
-- A comment that starts with 'Internal:' or 'Operators:' keeps it to the owner.
create or replace function lock.granted_views()
returns setof regclass
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_class.oid::regclass
    from pg_class
    where pg_class.relnamespace = 'lock'::regnamespace
      and pg_class.relkind = 'v'
      and coalesce(obj_description(pg_class.oid, 'pg_class'), '') !~ '^(Internal|Operators):'
    order by 1;
$$;
-- +goose StatementEnd

comment on function lock.granted_views() is
    'Internal: every view that lock.grant_to gives.';

revoke all on function lock.granted_views() from public;

-- file: sql/functions/activity/revoke_from.sql
-- +goose StatementBegin
-- revoke_from takes back everything that a role has in the schema.
create or replace function lock.revoke_from(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    granted_function  regprocedure;
    granted_view      regclass;
begin
    if revoke_from.role is null then
        raise exception 'role must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the name of a role.';
    end if;
    execute format('revoke usage on schema lock from %I', revoke_from.role);
    for granted_function in
        select granted_functions from lock.granted_functions()
    loop
        execute format('revoke execute on function %s from %I', granted_function, revoke_from.role);
    end loop;
    for granted_view in
        select granted_views from lock.granted_views()
    loop
        execute format('revoke select on %s from %I', granted_view, revoke_from.role);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.revoke_from(name) is
    'Operators: takes back everything that lock.grant_to gave a role. Grants are taken back at once, locks that are held go on until their transactions end. Run it as the owner of the schema. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';

revoke all on function lock.revoke_from(name) from public;

-- file: sql/functions/key/add_key.sql
-- +goose StatementBegin
-- add_key makes sure that a key has a row to lock on the row engine; false: somebody's uncommitted row is in the way.
--
-- YugabyteDB inserts outside the transaction, so that nobody ever waits for an uncommitted row there: not a second sharer of
-- a new key, and not a try. That may happen more than once when a conflict restarts the statement, and is idempotent.
-- Such a write waits for every transaction that is in its way, this one included: so a key that this transaction has forgotten,
-- and any key under SERIALIZABLE, where looking for the row has locked its absence, is inserted inside the transaction.
-- PostgreSQL has no such writes: there the insert waits for the other's transaction, or with nowait for 1 ms.
create or replace function lock.add_key(
    key     bigint,
    name    text,
    nowait  boolean
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  text;
begin
    if current_setting('yb_disable_transactional_writes', true) is not null
        and current_setting('transaction_isolation') <> 'serializable'
        and add_key.key::text <> all (string_to_array(coalesce(current_setting('lock.forgotten', true), ''), ' '))
    then
        previous := current_setting('yb_disable_transactional_writes');
        perform set_config('yb_disable_transactional_writes', 'on', true);
        insert into lock.locked_keys (key, name, ts)
        values (add_key.key, add_key.name, clock_timestamp())
        on conflict do nothing;
        perform set_config('yb_disable_transactional_writes', previous, true);
        return true;
    elsif not add_key.nowait then
        insert into lock.locked_keys (key, name, ts)
        values (add_key.key, add_key.name, clock_timestamp())
        on conflict do nothing;
        return true;
    end if;

    begin
        previous := current_setting('lock_timeout');
        perform set_config('lock_timeout', '1ms', true);
        insert into lock.locked_keys (key, name, ts)
        values (add_key.key, add_key.name, clock_timestamp())
        on conflict do nothing;
        perform set_config('lock_timeout', previous, true);
        return true;
    exception
        when lock_not_available then
            return false;
    end;
end;
$$;
-- +goose StatementEnd

comment on function lock.add_key(bigint, text, boolean) is
    'Internal: makes sure that a key has a row to lock; false when an uncommitted row of somebody else is in the way.';

revoke all on function lock.add_key(bigint, text, boolean) from public;

-- file: sql/functions/key/advisory_key.sql
-- +goose StatementBegin
-- advisory_key maps a key to the advisory lock that stands for it, and back: it is its own inverse.
--
-- The constant is 'lock.key' in ASCII. It keeps keys away from a program's own advisory locks on small numbers.
create or replace function lock.advisory_key(
    key  bigint
)
returns bigint
language sql
immutable
parallel safe
as $$
    select advisory_key.key operator(pg_catalog.#) 7813573190502540665;
$$;
-- +goose StatementEnd

comment on function lock.advisory_key(bigint) is
    'The advisory lock that stands for a key, and the key that an advisory lock of pg_locks stands for: it is its own inverse. Null for null.';

revoke all on function lock.advisory_key(bigint) from public;

-- file: sql/functions/key/engine.sql
-- +goose StatementBegin
-- engine says what a key lock is made of in this database: 'advisory' (PostgreSQL) or 'row' (YugabyteDB).
--
-- Declared immutable so that a plan folds it into a constant. That is sound because lock.chosen_engine is written once,
-- by the first migration, before any function that asks exists.
create or replace function lock.engine()
returns text
language sql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select chosen_engine.engine from lock.chosen_engine;
$$;
-- +goose StatementEnd

comment on function lock.engine() is
    'What a key lock is made of in this database: advisory (PostgreSQL) or row (YugabyteDB). Chosen once, by the first migration.';

revoke all on function lock.engine() from public;

-- file: sql/functions/key/exclusive.sql
-- +goose StatementBegin
-- exclusive takes a key for this transaction alone; waits until every other holder has ended.
--
-- The first statement is the whole cost for a known key on the advisory engine: the lock is taken in the target list of the
-- directory's row, so it is held exactly when a row was found. Everything else, new keys included, goes through hold_key.
create or replace function lock.exclusive(
    key  bigint
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = exclusive.key;
        if found then
            return;
        end if;
    end if;
    perform lock.hold_key(exclusive.key, null, false, null);
end;
$$;
-- +goose StatementEnd

comment on function lock.exclusive(bigint) is
    'Takes an exclusive lock on a key until the transaction ends or rolls back to an earlier savepoint. Waits for every other holder, shared or exclusive. '
    'Re-entrant. See what holders before did with a statement that follows, under READ COMMITTED: this one''s snapshot is from before the wait. Does not age: nobody can take it away. Errors: 22004 null, 22023 bad name, 25006 on a standby, 40P01 deadlock, 40001 (row engine under snapshot isolation: retry the transaction), 55P03 lock_timeout, 57014 statement_timeout; none leaves anything held. '
    'After F. Pachot, application locks in YugabyteDB; what its recipe gets wrong is in docs/key.md.';

revoke all on function lock.exclusive(bigint) from public;

-- +goose StatementBegin
create or replace function lock.exclusive(
    name  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name_key  constant bigint := lock.hash(exclusive.name);
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = name_key;
        if found then
            return;
        end if;
    end if;
    perform lock.hold_key(name_key, exclusive.name, false, null);
end;
$$;
-- +goose StatementEnd

comment on function lock.exclusive(text) is
    'As lock.exclusive(bigint), for lock.key(name); the name is kept in lock.locked_keys.';

revoke all on function lock.exclusive(text) from public;

-- file: sql/functions/key/exclusive_all.sql
-- +goose StatementBegin
-- exclusive_all takes several names, each exclusively, in one global order: ascending key.
--
-- Any set of transactions whose only key locks come from one call of exclusive_all each cannot deadlock, whatever the order
-- of their arrays, because all walk the same order.
create or replace function lock.exclusive_all(
    names  text[]
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    next_key   bigint;
    next_name  text;
begin
    if exclusive_all.names is null then
        raise exception 'names must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass an array of names; an empty one locks nothing.';
    end if;
    for next_key, next_name in
        select lock.key(wanted.name), min(wanted.name)
        from unnest(exclusive_all.names) as wanted (name)
        group by 1
        order by 1
    loop
        perform lock.hold_key(next_key, next_name, false, null);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.exclusive_all(text[]) is
    'Takes an exclusive lock on every name, in one global order, so that its callers never deadlock with each other, whatever the '
    'order of their arrays (one call a transaction; a second call, or other locks held before, can deadlock: 40P01). Waits as '
    'lock.exclusive does. Duplicates count once, an empty array locks nothing. On the advisory engine every key takes a slot of the '
    'shared lock table until the transaction ends: 53200 with a hint when max_locks_per_transaction is too small for them. '
    'Errors: 22004 null array or element, 22023 bad name, and those of lock.exclusive.';

revoke all on function lock.exclusive_all(text[]) from public;

-- file: sql/functions/key/hash.sql
-- +goose StatementBegin
-- hash is the key of a name, or null for a name that is null, empty or longer than 1024 bytes.
--
-- Stable, because convert_to is: only so is it inlined. The result is the same everywhere, and lock.key says so.
create or replace function lock.hash(
    name  text
)
returns bigint
language sql
stable
parallel safe
as $$
    select case
        when octet_length(hash.name) between 1 and 1024
        then ('x' || encode(substr(sha256(convert_to(hash.name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
    end;
$$;
-- +goose StatementEnd

comment on function lock.hash(text) is
    'Internal: the first 8 bytes of sha256 of a name, or null where lock.check_id would refuse the name.';

revoke all on function lock.hash(text) from public;

-- file: sql/functions/key/hold_advisory.sql
-- +goose StatementBegin
-- hold_advisory takes a key's advisory lock until the transaction ends; wait null waits for ever, zero never.
--
-- Who can interleave: nobody inside the lock. PostgreSQL's lock manager grants, queues first come first served, finds
-- deadlocks (40P01) and releases at the end of the transaction or at a rollback to an earlier savepoint, under every
-- isolation level. The directory row is written only after the lock is held.
create or replace function lock.hold_advisory(
    key     bigint,
    name    text,
    shared  boolean,
    wait    interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    slot      constant bigint := lock.advisory_key(hold_advisory.key);
    held      boolean := false;
    previous  text;
begin
    perform lock.check_primary();

    if hold_advisory.wait is null and hold_advisory.shared then
        perform pg_advisory_xact_lock_shared(slot);
        held := true;
    elsif hold_advisory.wait is null then
        perform pg_advisory_xact_lock(slot);
        held := true;
    elsif hold_advisory.shared then
        held := pg_try_advisory_xact_lock_shared(slot);
    else
        held := pg_try_advisory_xact_lock(slot);
    end if;

    if not held and hold_advisory.wait > interval '0' then
        -- The block is a subtransaction: when the wait ends without the lock, its rollback also puts lock_timeout back.
        begin
            previous := current_setting('lock_timeout');
            perform set_config('lock_timeout', lock.milliseconds(hold_advisory.wait)::text, true);
            if hold_advisory.shared then
                perform pg_advisory_xact_lock_shared(slot);
            else
                perform pg_advisory_xact_lock(slot);
            end if;
            perform set_config('lock_timeout', previous, true);
            held := true;
        exception
            when lock_not_available then
                held := false;
        end;
    end if;

    if held and not exists (select from lock.locked_keys where locked_keys.key = hold_advisory.key) then
        perform lock.record_key(hold_advisory.key, hold_advisory.name, hold_advisory.shared);
    end if;
    return held;
end;
$$;
-- +goose StatementEnd

comment on function lock.hold_advisory(bigint, text, boolean, interval) is
    'Internal: takes a key on the advisory engine; wait null waits for ever, zero never.';

revoke all on function lock.hold_advisory(bigint, text, boolean, interval) from public;

-- file: sql/functions/key/hold_key.sql
-- +goose StatementBegin
-- hold_key takes a key until the transaction ends, on whichever engine this database has; wait null waits for ever.
--
-- A name that lock.hash refuses comes here with a null key.
create or replace function lock.hold_key(
    key     bigint,
    name    text,
    shared  boolean,
    wait    interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if hold_key.key is null then
        if hold_key.name is not null then
            perform lock.check_id(hold_key.name, 'name');
        end if;
        raise exception 'key must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a bigint, or a name of 1 to 1024 bytes.';
    end if;
    if hold_key.wait <> interval '0' then
        perform lock.check_interval(hold_key.wait, 'wait', true);
    end if;

    if lock.engine() = 'row' then
        return lock.hold_row(hold_key.key, hold_key.name, hold_key.shared, hold_key.wait);
    end if;
    return lock.hold_advisory(hold_key.key, hold_key.name, hold_key.shared, hold_key.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock.hold_key(bigint, text, boolean, interval) is
    'Internal: takes a key until the transaction ends; wait null waits for ever, zero never.';

revoke all on function lock.hold_key(bigint, text, boolean, interval) from public;

-- file: sql/functions/key/hold_row.sql
-- +goose StatementBegin
-- hold_row takes a key by locking its row until the transaction ends; wait null waits for ever, zero never.
--
-- Who can interleave: between any two statements here another transaction may insert the row, lock it, or delete it
-- (unlock, vacuum). So a lock counts only when a statement really returned a locked row; a select that waited for a row
-- and then found it deleted returns none, and the loop starts again. Two that insert the same key at once are decided by
-- the primary key. READ COMMITTED takes a new snapshot per statement, so the loop sees what it waited for. Under REPEATABLE
-- READ and SERIALIZABLE PostgreSQL raises 40001 by itself where the row changed; YugabyteDB may instead go on not seeing it,
-- hence the bound.
create or replace function lock.hold_row(
    key     bigint,
    name    text,
    shared  boolean,
    wait    interval
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    deadline  constant timestamptz := clock_timestamp() + hold_row.wait;
    absent    integer := 0;
begin
    loop
        if hold_row.wait is null and hold_row.shared then
            perform from lock.locked_keys where locked_keys.key = hold_row.key for share;
        elsif hold_row.wait is null then
            perform from lock.locked_keys where locked_keys.key = hold_row.key for update;
        elsif hold_row.shared then
            perform from lock.locked_keys where locked_keys.key = hold_row.key for share skip locked;
        else
            perform from lock.locked_keys where locked_keys.key = hold_row.key for update skip locked;
        end if;
        if found then
            return true;
        end if;

        if hold_row.wait is not null and exists (select from lock.locked_keys where locked_keys.key = hold_row.key)
            or not lock.add_key(hold_row.key, hold_row.name, hold_row.wait is not null)
        then
            -- Somebody else has it.
            exit when clock_timestamp() >= deadline;
            perform pg_sleep(least(0.01, extract(epoch from deadline - clock_timestamp())));
        else
            absent := absent + 1;
            if absent > 100 then
                raise exception 'could not lock key %: its row keeps disappearing or cannot be seen', hold_row.key
                    using errcode = 'serialization_failure',
                          hint = 'Retry the transaction.';
            end if;
        end if;
    end loop;
    return false;
end;
$$;
-- +goose StatementEnd

comment on function lock.hold_row(bigint, text, boolean, interval) is
    'Internal: takes a key on the row engine; wait null waits for ever, zero never.';

revoke all on function lock.hold_row(bigint, text, boolean, interval) from public;

-- file: sql/functions/key/key.sql
-- +goose StatementBegin
-- key turns a name into the bigint that is locked for it: the first 8 bytes of its sha256, the same on every server.
create or replace function lock.key(
    name  text
)
returns bigint
language plpgsql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    hash  constant bigint := lock.hash(key.name);
begin
    if hash is null then
        perform lock.check_id(key.name, 'name');
    end if;
    return hash;
end;
$$;
-- +goose StatementEnd

comment on function lock.key(text) is
    'The bigint that is locked for a name: the first 8 bytes of sha256 of its UTF-8 bytes, the same on every server. '
    'Two of 100 million names share a key with a probability below one in a thousand; they then exclude each other, which is safe. '
    'Errors: 22004 null, 22023 empty or longer than 1024 bytes.';

revoke all on function lock.key(text) from public;

-- file: sql/functions/key/record_key.sql
-- +goose StatementBegin
-- record_key enters a key that is held into the directory of the advisory engine, and never waits to do so.
--
-- The caller holds the key. An exclusive holder is alone; among sharers the one that gets the second advisory lock
-- records, and the others go on. What could still be in the way is a row that this snapshot cannot see: then the key stays
-- unlisted until it is locked again. Nothing here decides who holds what.
create or replace function lock.record_key(
    key     bigint,
    name    text,
    shared  boolean
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1ms'
as $$
begin
    -- 1819239275 is 'lock' in ASCII: the two-number space is apart from the keys'. This lock also tells lock.activity that
    -- the key is ours while its row cannot be seen yet, or is never written.
    if not pg_try_advisory_xact_lock(1819239275, hashint8(record_key.key)) and record_key.shared
        or current_setting('transaction_read_only')::boolean
    then
        return;
    end if;
    begin
        insert into lock.locked_keys (key, name, ts)
        values (record_key.key, record_key.name, clock_timestamp())
        on conflict do nothing;
    exception
        when lock_not_available or serialization_failure then
            null;
    end;
end;
$$;
-- +goose StatementEnd

comment on function lock.record_key(bigint, text, boolean) is
    'Internal: enters a key that is held into lock.locked_keys, or leaves it when that would wait.';

revoke all on function lock.record_key(bigint, text, boolean) from public;

-- file: sql/functions/key/shared.sql
-- +goose StatementBegin
-- shared takes a key together with other sharers, until the transaction ends; waits for an exclusive holder.
--
-- The first statement is the whole cost for a known key on the advisory engine: the lock is taken in the target list of the
-- directory's row, so it is held exactly when a row was found. Everything else, new keys included, goes through hold_key.
create or replace function lock.shared(
    key  bigint
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = shared.key;
        if found then
            return;
        end if;
    end if;
    perform lock.hold_key(shared.key, null, true, null);
end;
$$;
-- +goose StatementEnd

comment on function lock.shared(bigint) is
    'Takes a shared lock on a key until the transaction ends or rolls back to an earlier savepoint. Sharers do not wait for each other; they wait for an exclusive holder, and it for them. '
    'Re-entrant. Does not age: nobody can take it away. Errors: 22004 null, 22023 bad name, 25006 on a standby, 40P01 deadlock, 40001 (row engine under snapshot isolation: retry the transaction), 55P03 lock_timeout, 57014 statement_timeout; none leaves anything held. '
    'After F. Pachot, application locks in YugabyteDB; what its recipe gets wrong is in docs/key.md.';

revoke all on function lock.shared(bigint) from public;

-- +goose StatementBegin
create or replace function lock.shared(
    name  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name_key  constant bigint := lock.hash(shared.name);
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = name_key;
        if found then
            return;
        end if;
    end if;
    perform lock.hold_key(name_key, shared.name, true, null);
end;
$$;
-- +goose StatementEnd

comment on function lock.shared(text) is
    'As lock.shared(bigint), for lock.key(name); the name is kept in lock.locked_keys.';

revoke all on function lock.shared(text) from public;

-- file: sql/functions/key/try_exclusive.sql
-- +goose StatementBegin
-- try_exclusive takes a key as exclusive does, or answers false when that would take longer than wait.
--
-- A denial on the advisory engine touches no table.
create or replace function lock.try_exclusive(
    key   bigint,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if try_exclusive.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock(lock.advisory_key(try_exclusive.key)) then
            return false;
        end if;
    elsif try_exclusive.wait is null then
        perform lock.check_interval(try_exclusive.wait, 'wait', true);
    end if;
    return lock.hold_key(try_exclusive.key, null, false, try_exclusive.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock.try_exclusive(bigint, interval) is
    'Takes a key as lock.exclusive does and returns true, or returns false when somebody else still has it after wait (default 0: at once; '
    'milliseconds, at most 24.8 days). While it waits, wait stands in for lock_timeout; statement_timeout goes on counting. '
    'On the row engine a wait asks again every 10 ms instead of queueing. '
    'Errors: 22004 null, 22023 bad name, or a wait that is negative, infinite or has months, 25006 on a standby, 40P01 deadlock, '
    '40001 (row engine under snapshot isolation), 57014 statement_timeout.';

revoke all on function lock.try_exclusive(bigint, interval) from public;

-- +goose StatementBegin
create or replace function lock.try_exclusive(
    name  text,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name_key  constant bigint := lock.hash(try_exclusive.name);
begin
    if try_exclusive.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock(lock.advisory_key(name_key)) then
            return false;
        end if;
    elsif try_exclusive.wait is null then
        perform lock.check_interval(try_exclusive.wait, 'wait', true);
    end if;
    return lock.hold_key(name_key, try_exclusive.name, false, try_exclusive.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock.try_exclusive(text, interval) is
    'As lock.try_exclusive(bigint, interval), for lock.key(name); the name is kept in lock.locked_keys.';

revoke all on function lock.try_exclusive(text, interval) from public;

-- file: sql/functions/key/try_shared.sql
-- +goose StatementBegin
-- try_shared takes a key as shared does, or answers false when that would take longer than wait.
--
-- A denial on the advisory engine touches no table.
create or replace function lock.try_shared(
    key   bigint,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if try_shared.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock_shared(lock.advisory_key(try_shared.key)) then
            return false;
        end if;
    elsif try_shared.wait is null then
        perform lock.check_interval(try_shared.wait, 'wait', true);
    end if;
    return lock.hold_key(try_shared.key, null, true, try_shared.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock.try_shared(bigint, interval) is
    'Takes a key as lock.shared does and returns true, or returns false when somebody else still has it after wait (default 0: at once; '
    'milliseconds, at most 24.8 days). While it waits, wait stands in for lock_timeout; statement_timeout goes on counting. '
    'On the row engine a wait asks again every 10 ms instead of queueing. '
    'Errors: 22004 null, 22023 bad name, or a wait that is negative, infinite or has months, 25006 on a standby, 40P01 deadlock, '
    '40001 (row engine under snapshot isolation), 57014 statement_timeout.';

revoke all on function lock.try_shared(bigint, interval) from public;

-- +goose StatementBegin
create or replace function lock.try_shared(
    name  text,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name_key  constant bigint := lock.hash(try_shared.name);
begin
    if try_shared.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock_shared(lock.advisory_key(name_key)) then
            return false;
        end if;
    elsif try_shared.wait is null then
        perform lock.check_interval(try_shared.wait, 'wait', true);
    end if;
    return lock.hold_key(name_key, try_shared.name, true, try_shared.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock.try_shared(text, interval) is
    'As lock.try_shared(bigint, interval), for lock.key(name); the name is kept in lock.locked_keys.';

revoke all on function lock.try_shared(text, interval) from public;

-- file: sql/functions/key/unlock.sql
-- +goose StatementBegin
-- unlock forgets a key: its row goes when the transaction commits. The lock itself ends with the transaction.
--
-- It never waits. On both engines it needs what an exclusive holder has, so a row that others rely on stays. A waiter of the
-- row engine that finds the row gone inserts it again and goes on waiting for that one: see hold_row.
create or replace function lock.unlock(
    key  bigint
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if unlock.key is null then
        perform lock.hold_key(null, null, false, null);
    end if;
    if lock.engine() = 'advisory' then
        perform lock.check_primary();
        if not pg_try_advisory_xact_lock(lock.advisory_key(unlock.key)) then
            return false;
        end if;
    end if;
    delete from lock.locked_keys
    where locked_keys.key in (
        select forgotten.key
        from lock.locked_keys as forgotten
        where forgotten.key = unlock.key
        for update skip locked
    );
    if not found then
        return false;
    end if;
    if current_setting('yb_disable_transactional_writes', true) is not null then
        perform set_config('lock.forgotten', concat_ws(' ', current_setting('lock.forgotten', true), unlock.key), true);
    end if;
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.unlock(bigint) is
    'Forgets a key; call it by the exclusive holder. Returns true when its row of lock.locked_keys goes with this transaction''s commit, '
    'false when it is not known or another transaction holds it (or, for a sharer before PostgreSQL 17, waits for it). The lock itself ends with the transaction, not here, and calling unlock '
    'takes it exclusively until then. Never waits. Errors: 22004 null, 22023 bad name, 25006 read-only.';

revoke all on function lock.unlock(bigint) from public;

-- +goose StatementBegin
create or replace function lock.unlock(
    name  text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return lock.unlock(lock.key(unlock.name));
end;
$$;
-- +goose StatementEnd

comment on function lock.unlock(text) is
    'As lock.unlock(bigint), for lock.key(name).';

revoke all on function lock.unlock(text) from public;

-- file: sql/functions/key/vacuum.sql
-- +goose StatementBegin
-- vacuum forgets every key that nobody holds or waits for.
--
-- A key that is taken at the very moment may lose its row: on the advisory engine it is then held and unlisted until it is
-- locked again; on the row engine its taker finds the row gone and inserts it again. Exclusion is never touched.
create or replace function lock.vacuum()
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    forgotten  bigint;
    keys       text;
begin
    perform lock.check_primary();
    with idle as materialized (
        select locked_keys.key
        from lock.locked_keys
        where lock.engine() = 'row'
           or not exists (
                select
                from pg_locks
                where pg_locks.locktype = 'advisory'
                  and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
                  and pg_locks.objsubid = 1
                  and lock.advisory_key((pg_locks.classid::bigint << 32) | pg_locks.objid::bigint) = locked_keys.key
           )
        for update of locked_keys skip locked
    ),
    gone as (
        delete from lock.locked_keys
        using idle
        where locked_keys.key = idle.key
        returning locked_keys.key
    )
    select
        count(*),
        string_agg(gone.key::text, ' ') filter (where current_setting('yb_disable_transactional_writes', true) is not null)
    into forgotten, keys
    from gone;
    if keys is not null then
        perform set_config('lock.forgotten', concat_ws(' ', current_setting('lock.forgotten', true), keys), true);
    end if;
    return forgotten;
end;
$$;
-- +goose StatementEnd

comment on function lock.vacuum() is
    'Forgets every key that nobody holds or waits for, and returns how many. Never waits, never frees a lock. One statement over '
    'lock.locked_keys: run it from cron when keys come and go by the thousand, and not at all for a fixed set of keys. '
    'Errors: 25006 read-only, 40001 under REPEATABLE READ when the directory changed since the snapshot.';

revoke all on function lock.vacuum() from public;

-- file: sql/functions/migration/end_migration.sql
-- +goose StatementBegin
-- end_migration notes that a migration is done, and gives every role that has the functions what came with it.
create or replace function lock.end_migration(
    number     integer,
    direction  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    grantee  name;
begin
    if end_migration.direction = 'up' then
        insert into lock.migration (number)
        values (end_migration.number)
        on conflict do nothing;
    else
        delete from lock.migration
        where migration.number = end_migration.number;
    end if;

    for grantee in
        select pg_roles.rolname
        from pg_proc
        cross join aclexplode(pg_proc.proacl) as item
        join pg_roles on pg_roles.oid = item.grantee
        where pg_proc.oid = 'lock.engine()'::regprocedure
          and item.grantee <> pg_proc.proowner
    loop
        perform lock.grant_to(grantee);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.end_migration(integer, text) is
    'Internal: the last statement of every migration.';

revoke all on function lock.end_migration(integer, text) from public;

-- file: sql/functions/migration/start_migration.sql
-- +goose StatementBegin
-- start_migration lets one migrator at a time pass, and stops one that fell behind before it brings back older text.
--
-- The goose CLI takes no lock: two runs read the same list of pending migrations, and both apply it. The advisory lock makes
-- them take turns, migration by migration, and every migration may be applied twice. One that is more than a migration behind
-- would replace newer functions by older ones, and is refused.
create or replace function lock.start_migration(
    number     integer,
    direction  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    latest  integer;
begin
    if version() not like '%-YB-%' then
        perform pg_advisory_xact_lock(1819239275, 0);
    end if;
    select max(migration.number) into latest from lock.migration;
    if start_migration.direction = 'up' and latest not in (start_migration.number - 1, start_migration.number)
        or start_migration.direction = 'down' and latest not in (start_migration.number - 1, start_migration.number)
    then
        raise exception 'migration % cannot go % now: the schema is at %', start_migration.number, start_migration.direction, latest
            using errcode = 'object_in_use',
                  hint = 'Another migrator is at work on this database, or was. Nothing was changed; run goose again.';
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock.start_migration(integer, text) is
    'Internal: the first statement of every migration but the first.';

revoke all on function lock.start_migration(integer, text) from public;

-- end of functions

select lock.end_migration(1, 'up');

-- +goose Down

-- +goose StatementBegin
do $$
declare
    latest  integer;
begin
    if version() not like '%-YB-%' then
        perform pg_advisory_xact_lock(1819239275, 0);
    end if;
    if to_regclass('lock.migration') is not null then
        select max(migration.number) into latest from lock.migration;
        if latest > 1 then
            raise exception 'migration 1 cannot go down now: the schema is at %', latest
                using errcode = 'object_in_use',
                      hint = 'Another migrator is at work on this database, or was. Nothing was changed; run goose again.';
        end if;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions: written by make migration, not by hand

-- gone: sql/functions/migration/start_migration.sql
drop function if exists lock.start_migration(integer, text);

-- gone: sql/functions/migration/end_migration.sql
drop function if exists lock.end_migration(integer, text);

-- gone: sql/functions/key/vacuum.sql
drop function if exists lock.vacuum();

-- gone: sql/functions/key/unlock.sql
drop function if exists lock.unlock(bigint);
drop function if exists lock.unlock(text);

-- gone: sql/functions/key/try_shared.sql
drop function if exists lock.try_shared(bigint, interval);
drop function if exists lock.try_shared(text, interval);

-- gone: sql/functions/key/try_exclusive.sql
drop function if exists lock.try_exclusive(bigint, interval);
drop function if exists lock.try_exclusive(text, interval);

-- gone: sql/functions/key/shared.sql
drop function if exists lock.shared(bigint);
drop function if exists lock.shared(text);

-- gone: sql/functions/key/record_key.sql
drop function if exists lock.record_key(bigint, text, boolean);

-- gone: sql/functions/key/key.sql
drop function if exists lock.key(text);

-- gone: sql/functions/key/hold_row.sql
drop function if exists lock.hold_row(bigint, text, boolean, interval);

-- gone: sql/functions/key/hold_key.sql
drop function if exists lock.hold_key(bigint, text, boolean, interval);

-- gone: sql/functions/key/hold_advisory.sql
drop function if exists lock.hold_advisory(bigint, text, boolean, interval);

-- gone: sql/functions/key/hash.sql
drop function if exists lock.hash(text);

-- gone: sql/functions/key/exclusive_all.sql
drop function if exists lock.exclusive_all(text[]);

-- gone: sql/functions/key/exclusive.sql
drop function if exists lock.exclusive(bigint);
drop function if exists lock.exclusive(text);

-- gone: sql/functions/key/engine.sql
drop function if exists lock.engine();

-- gone: sql/functions/key/advisory_key.sql
drop function if exists lock.advisory_key(bigint);

-- gone: sql/functions/key/add_key.sql
drop function if exists lock.add_key(bigint, text, boolean);

-- gone: sql/functions/activity/revoke_from.sql
drop function if exists lock.revoke_from(name);

-- gone: sql/functions/activity/granted_views.sql
drop function if exists lock.granted_views();

-- gone: sql/functions/activity/granted_functions.sql
drop function if exists lock.granted_functions();

-- gone: sql/functions/activity/grant_to.sql
drop function if exists lock.grant_to(name);

-- gone: sql/functions/rule/milliseconds.sql
drop function if exists lock.milliseconds(interval);

-- gone: sql/functions/rule/check_primary.sql
drop function if exists lock.check_primary();

-- gone: sql/functions/rule/check_max.sql
drop function if exists lock.check_max(integer);

-- gone: sql/functions/rule/check_interval.sql
drop function if exists lock.check_interval(interval, text, boolean);

-- gone: sql/functions/rule/check_id.sql
drop function if exists lock.check_id(text, text);

-- end of functions

drop table if exists lock.locked_keys;
drop table if exists lock.chosen_engine;
drop table if exists lock.migration;
drop schema if exists lock;
