-- +goose Up
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(2, 'up');

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

-- functions of key: written by make migration, not by hand

-- file: sql/functions/key/add_key.sql
-- +goose StatementBegin
-- add_key makes sure that a key has a row to lock on the row engine; false: somebody's uncommitted row is in the way.
--
-- YugabyteDB inserts outside the transaction, so that nobody ever waits for an uncommitted row there: not a second sharer of
-- a new key, and not a try. That may happen more than once when a conflict restarts the statement, and is idempotent.
-- Such a write waits for every transaction that is in its way, this one included: so a key that this transaction has forgotten,
-- and any key under SERIALIZABLE, where looking for the row has locked its absence, is inserted inside the transaction.
-- PostgreSQL has no such writes: there the insert waits for the other's transaction, or with nowait for 1 ms.
create or replace function lock_internal.add_key(
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

comment on function lock_internal.add_key(bigint, text, boolean) is
    'Makes sure that a key has a row to lock; false when an uncommitted row of somebody else is in the way.';

revoke all on function lock_internal.add_key(bigint, text, boolean) from public;

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
create or replace function lock_internal.hold_row(
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
            or not lock_internal.add_key(hold_row.key, hold_row.name, hold_row.wait is not null)
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

comment on function lock_internal.hold_row(bigint, text, boolean, interval) is
    'Takes a key on the row engine; wait null waits for ever, zero never.';

revoke all on function lock_internal.hold_row(bigint, text, boolean, interval) from public;

-- file: sql/functions/key/record_key.sql
-- +goose StatementBegin
-- record_key enters a key that is held into the directory of the advisory engine, and never waits to do so.
--
-- The caller holds the key. An exclusive holder is alone; among sharers the one that gets the second advisory lock
-- records, and the others go on. What could still be in the way is a row that this snapshot cannot see: then the key stays
-- unlisted until it is locked again. Nothing here decides who holds what.
create or replace function lock_internal.record_key(
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

comment on function lock_internal.record_key(bigint, text, boolean) is
    'Enters a key that is held into lock.locked_keys, or leaves it when that would wait.';

revoke all on function lock_internal.record_key(bigint, text, boolean) from public;

-- file: sql/functions/key/hold_advisory.sql
-- +goose StatementBegin
-- hold_advisory takes a key's advisory lock until the transaction ends; wait null waits for ever, zero never.
--
-- Who can interleave: nobody inside the lock. PostgreSQL's lock manager grants, queues first come first served, finds
-- deadlocks (40P01) and releases at the end of the transaction or at a rollback to an earlier savepoint, under every
-- isolation level. The directory row is written only after the lock is held.
create or replace function lock_internal.hold_advisory(
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
    perform lock_internal.check_primary();

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
            perform set_config('lock_timeout', lock_internal.milliseconds(hold_advisory.wait)::text, true);
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
        perform lock_internal.record_key(hold_advisory.key, hold_advisory.name, hold_advisory.shared);
    end if;
    return held;
end;
$$;
-- +goose StatementEnd

comment on function lock_internal.hold_advisory(bigint, text, boolean, interval) is
    'Takes a key on the advisory engine; wait null waits for ever, zero never.';

revoke all on function lock_internal.hold_advisory(bigint, text, boolean, interval) from public;

-- file: sql/functions/key/hold_key.sql
-- +goose StatementBegin
-- hold_key takes a key until the transaction ends, on whichever engine this database has; wait null waits for ever.
--
-- A name that lock_internal.hash refuses comes here with a null key.
create or replace function lock_internal.hold_key(
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
            perform lock_internal.check_id(hold_key.name, 'name');
        end if;
        raise exception 'key must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a bigint, or a name of 1 to 1024 bytes.';
    end if;
    if hold_key.wait <> interval '0' then
        perform lock_internal.check_interval(hold_key.wait, 'wait', true);
    end if;

    if lock.engine() = 'row' then
        return lock_internal.hold_row(hold_key.key, hold_key.name, hold_key.shared, hold_key.wait);
    end if;
    return lock_internal.hold_advisory(hold_key.key, hold_key.name, hold_key.shared, hold_key.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock_internal.hold_key(bigint, text, boolean, interval) is
    'Takes a key until the transaction ends; wait null waits for ever, zero never.';

revoke all on function lock_internal.hold_key(bigint, text, boolean, interval) from public;

-- file: sql/functions/key/hash.sql
-- +goose StatementBegin
-- hash is the key of a name, or null for a name that is null, empty or longer than 1024 bytes.
--
-- Stable, because convert_to is: only so is it inlined. The result is the same everywhere, and lock.key says so.
create or replace function lock_internal.hash(
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

comment on function lock_internal.hash(text) is
    'The first 8 bytes of sha256 of a name, or null where lock_internal.check_id would refuse the name.';

revoke all on function lock_internal.hash(text) from public;

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
    hash  constant bigint := lock_internal.hash(key.name);
begin
    if hash is null then
        perform lock_internal.check_id(key.name, 'name');
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
    perform lock_internal.hold_key(exclusive.key, null, false, null);
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
    name_key  constant bigint := lock_internal.hash(exclusive.name);
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = name_key;
        if found then
            return;
        end if;
    end if;
    perform lock_internal.hold_key(name_key, exclusive.name, false, null);
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
        perform lock_internal.hold_key(next_key, next_name, false, null);
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
    perform lock_internal.hold_key(shared.key, null, true, null);
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
    name_key  constant bigint := lock_internal.hash(shared.name);
begin
    if lock.engine() = 'advisory' and not pg_is_in_recovery() then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(locked_keys.key))
        from lock.locked_keys
        where locked_keys.key = name_key;
        if found then
            return;
        end if;
    end if;
    perform lock_internal.hold_key(name_key, shared.name, true, null);
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
        perform lock_internal.check_interval(try_exclusive.wait, 'wait', true);
    end if;
    return lock_internal.hold_key(try_exclusive.key, null, false, try_exclusive.wait);
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
    name_key  constant bigint := lock_internal.hash(try_exclusive.name);
begin
    if try_exclusive.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock(lock.advisory_key(name_key)) then
            return false;
        end if;
    elsif try_exclusive.wait is null then
        perform lock_internal.check_interval(try_exclusive.wait, 'wait', true);
    end if;
    return lock_internal.hold_key(name_key, try_exclusive.name, false, try_exclusive.wait);
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
        perform lock_internal.check_interval(try_shared.wait, 'wait', true);
    end if;
    return lock_internal.hold_key(try_shared.key, null, true, try_shared.wait);
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
    name_key  constant bigint := lock_internal.hash(try_shared.name);
begin
    if try_shared.wait = interval '0' and lock.engine() = 'advisory' and not pg_is_in_recovery() then
        if not pg_try_advisory_xact_lock_shared(lock.advisory_key(name_key)) then
            return false;
        end if;
    elsif try_shared.wait is null then
        perform lock_internal.check_interval(try_shared.wait, 'wait', true);
    end if;
    return lock_internal.hold_key(name_key, try_shared.name, true, try_shared.wait);
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
        perform lock_internal.hold_key(null, null, false, null);
    end if;
    if lock.engine() = 'advisory' then
        perform lock_internal.check_primary();
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
    perform lock_internal.check_primary();
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

-- end of functions

select lock_internal.end_migration(2, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
select lock_internal.start_migration(2, 'down');

-- functions of key: written by make migration, not by hand

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

-- gone: sql/functions/key/exclusive_all.sql
drop function if exists lock.exclusive_all(text[]);

-- gone: sql/functions/key/exclusive.sql
drop function if exists lock.exclusive(bigint);
drop function if exists lock.exclusive(text);

-- gone: sql/functions/key/key.sql
drop function if exists lock.key(text);

-- gone: sql/functions/key/hash.sql
drop function if exists lock_internal.hash(text);

-- gone: sql/functions/key/hold_key.sql
drop function if exists lock_internal.hold_key(bigint, text, boolean, interval);

-- gone: sql/functions/key/hold_advisory.sql
drop function if exists lock_internal.hold_advisory(bigint, text, boolean, interval);

-- gone: sql/functions/key/record_key.sql
drop function if exists lock_internal.record_key(bigint, text, boolean);

-- gone: sql/functions/key/hold_row.sql
drop function if exists lock_internal.hold_row(bigint, text, boolean, interval);

-- gone: sql/functions/key/advisory_key.sql
drop function if exists lock.advisory_key(bigint);

-- gone: sql/functions/key/add_key.sql
drop function if exists lock_internal.add_key(bigint, text, boolean);

-- end of functions

drop table if exists lock.locked_keys;

select lock_internal.end_migration(2, 'down');
