-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000200 needs 20261101000100, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000200, 20261101000100, 'up');
end;
$$;
-- +goose StatementEnd

-- The row engine's locks. On the advisory engine a view takes its place below.
create table if not exists lock.locked_keys (
    key   bigint       not null,
    name  text,
    ts    timestamptz  not null default clock_timestamp(),
    constraint locked_keys_pkey primary key (key)
);

-- functions of key: written by make migration, not by hand

-- file: sql/functions/key/advisory_key.sql
-- +goose StatementBegin
-- advisory_key maps a key to the advisory lock that stands for it, and back: it is its own inverse.
--
-- The constant is 'lock.key' in ASCII. It keeps keys away from a program's own advisory locks on
-- small numbers.
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
    'The advisory lock that stands for a key. It is its own inverse: given an advisory lock of '
    'pg_locks, it returns the key. Null for null.';

-- file: sql/functions/key/add_key.sql
-- +goose StatementBegin
-- add_key makes sure that a key has a row to lock on the row engine; false when another
-- transaction's uncommitted row is in the way.
--
-- YugabyteDB inserts outside the transaction, so that nobody ever waits for an uncommitted row
-- there. That goes for a second sharer of a new key, and for a try. A conflict that restarts the
-- statement may repeat the insert, which is idempotent.
--
-- Such a write waits for every transaction that is in its way, this one included. So two kinds of
-- keys are inserted inside the transaction: one that this transaction has forgotten, and any key
-- under SERIALIZABLE. There the look for the row has locked its absence.
--
-- PostgreSQL has no such writes. There whoever inserts a key has its advisory lock until the
-- transaction ends, so the insert itself never waits. It looks for the row behind that lock: a row
-- that is there may be one that somebody is about to delete. A try takes no lock_timeout: one that
-- fires when a second wait follows is reported as a cancel (57014).
create or replace function lock_internal.add_key(
    key     bigint,
    name    text,
    nowait  boolean
)
returns boolean
language plpgsql
volatile
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
    elsif current_setting('yb_disable_transactional_writes', true) is null then
        if not add_key.nowait then
            perform pg_advisory_xact_lock(lock.advisory_key(add_key.key));
        elsif not pg_try_advisory_xact_lock(lock.advisory_key(add_key.key)) then
            return false;
        end if;
        perform from lock.locked_keys where locked_keys.key = add_key.key;
        if found then
            return true;
        end if;
    end if;
    insert into lock.locked_keys (key, name, ts)
    values (add_key.key, add_key.name, clock_timestamp())
    on conflict do nothing;
    return true;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/key/key_of.sql
-- +goose StatementBegin
-- key_of is the key that is meant by a number, or by a name of 1 to 1024 bytes. When both are
-- given, the name counts.
--
-- The advisory lock of a name is its hash with our constant as the seed. So it is not what a
-- program's own hashtextextended(name, 0) gives. The key is what lock.advisory_key makes of that.
-- Bytes are hashed, whatever the collation.
create or replace function lock_internal.key_of(
    key   bigint,
    name  text
)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if key_of.name is not null then
        perform lock_internal.check_id(key_of.name, 'name');
        return lock.advisory_key(hashtextextended(key_of.name collate "C", 7813573190502540665));
    elsif key_of.key is null then
        raise exception 'key must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a bigint, or a name of 1 to 1024 bytes.';
    end if;
    return key_of.key;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/key/hold_row.sql
-- +goose StatementBegin
-- hold_row takes a key by locking its row until the transaction ends. With wait null it waits for
-- ever, with zero never.
--
-- Between any two statements here another transaction may insert the row, lock it, or delete it
-- (unlock, vacuum). So a lock counts only when a statement really returned a locked row. A select
-- that waited for a row and then found it deleted returns none, and the loop starts again. The
-- primary key decides between two that insert the same key at once.
--
-- READ COMMITTED takes a new snapshot per statement, so the loop sees what it waited for. Under
-- REPEATABLE READ and SERIALIZABLE PostgreSQL raises 40001 by itself where the row changed.
-- YugabyteDB may instead go on not seeing it, hence the bound.
create or replace function lock_internal.hold_row(
    key     bigint,
    name    text,
    shared  boolean,
    wait    interval
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
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
            -- Another transaction has it.
            exit when clock_timestamp() >= deadline;
            perform pg_sleep(least(0.01, extract(epoch from deadline - clock_timestamp())));
        else
            absent := absent + 1;
            if absent > 100 then
                perform lock_internal.give_up('key', hold_row.key::text);
            end if;
        end if;
    end loop;
    return false;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/key/hold_key.sql
-- +goose StatementBegin
-- hold_key takes a key until the transaction ends, and waits for it as long as it takes.
--
-- Every role that was granted may call it, with any arguments. It does what lock.exclusive and
-- lock.shared do.
--
-- On the advisory engine PostgreSQL's lock manager decides everything: which callers wait, in which
-- order, and which one is the victim of a deadlock. While it waits, the session shows the name in
-- its application_name, where lock.locked_keys finds it. A wait that fails takes its transaction or
-- subtransaction with it, and so the setting. The client hears nothing of it: the server reports
-- settings between statements, and then this one is what it was.
--
-- application_name holds 63 printable ASCII characters. The name goes first, and what was there is
-- cut to the rest. What does not fit, or is not ASCII, is shown as its beginning and three dots.
create or replace function lock_internal.hold_key(
    key     bigint,
    name    text,
    shared  boolean
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted    bigint := hold_key.key;
    previous  constant text := current_setting('application_name');
    shown     text := regexp_replace(hold_key.name collate "C", '[^ -~]', '?', 'g');
begin
    if hold_key.name is not null or hold_key.key is null then
        wanted := lock_internal.key_of(hold_key.key, hold_key.name);
    end if;
    if not lock_internal.is_advisory() then
        perform lock_internal.hold_row(wanted, hold_key.name, hold_key.shared, null);
        return;
    end if;
    if pg_is_in_recovery() then
        perform lock_internal.check_primary();
    end if;
    if hold_key.name is not null then
        if shown <> hold_key.name collate "C" or length(shown) > 52 then
            shown := left(shown, 49) || '...';
        end if;
        perform set_config('application_name', concat(left(previous, 52 - length(shown)), ' waits for ', shown), true);
    end if;
    if hold_key.shared then
        perform pg_advisory_xact_lock_shared(lock.advisory_key(wanted));
    else
        perform pg_advisory_xact_lock(lock.advisory_key(wanted));
    end if;
    if hold_key.name is not null then
        perform set_config('application_name', previous, true);
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/key/key.sql
-- +goose StatementBegin
-- key turns a name into the bigint that is locked for it.
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
begin
    return lock_internal.key_of(null, key.name);
end;
$$;
-- +goose StatementEnd

comment on function lock.key(text) is
    'The bigint that is locked for a name: a 64-bit hash of its bytes. It stays the same as long '
    'as the database keeps its encoding. Two of 100 million names share a key with a probability '
    'below one in a thousand. They then exclude each other, which is safe. Errors: 22004 null, '
    '22023 empty or longer than 1024 bytes.';

-- file: sql/functions/key/exclusive.sql
-- exclusive takes a key for this transaction alone. It waits until every other holder has ended.
--
-- A lock that is free costs one try. hold_key does all the rest: it waits, shows the name, raises
-- the errors, and is the row engine. A try does not overtake: the lock manager refuses it when a
-- waiter conflicts.
--
-- Neither form switches to another role or search_path, which would cost more than the lock.
-- PostgreSQL puts the text of the first into the caller's statement, and plans it with each
-- statement that is not prepared. To plan the second's longer text would cost more than a call. So
-- it is PL/pgSQL, and names everything with its schema: the caller's search_path is in force.
create or replace function lock.exclusive(
    key  bigint
)
returns void
language sql
volatile
return case
    when lock_internal.is_advisory() and not pg_is_in_recovery()
        and pg_try_advisory_xact_lock(exclusive.key # 7813573190502540665)
    then null
    else lock_internal.hold_key(exclusive.key, null, false)
end;

comment on function lock.exclusive(bigint) is
    'Takes an exclusive lock on a key until the transaction ends or rolls back to an earlier '
    'savepoint. It waits for every other holder, shared or exclusive, and is re-entrant. Under '
    'READ COMMITTED, read what holders before did with a statement that follows: the snapshot of '
    'this one is from before the wait. The lock does not age: nobody can take it away. Errors: '
    '22004 null, 22023 bad name, 25006 on a standby, 40P01 deadlock, 40001 (row engine under '
    'snapshot isolation: retry the transaction), 55P03 lock_timeout, 57014 statement_timeout; '
    'none leaves anything held. After F. Pachot, application locks in YugabyteDB; docs/key.md '
    'says what its recipe gets wrong.';

-- +goose StatementBegin
create or replace function lock.exclusive(
    name  text
)
returns void
language plpgsql
volatile
as $$
begin
    if lock_internal.is_advisory() and not pg_catalog.pg_is_in_recovery()
        and pg_catalog.octet_length(exclusive.name) operator(pg_catalog.>=) 1
        and pg_catalog.octet_length(exclusive.name) operator(pg_catalog.<=) 1024
        and pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(exclusive.name collate pg_catalog."C", 7813573190502540665))
    then
        return;
    end if;
    perform lock_internal.hold_key(null, exclusive.name, false);
end;
$$;
-- +goose StatementEnd

comment on function lock.exclusive(text) is
    'As lock.exclusive(bigint), for lock.key(name). lock.locked_keys shows the name while '
    'a transaction waits for it. On the advisory engine the waiter''s application_name has it, '
    'which every role of the server sees.';

-- file: sql/functions/key/exclusive_all.sql
-- +goose StatementBegin
-- exclusive_all takes several names, each exclusively, in one global order: ascending key.
--
-- Consider transactions whose only key locks come from one call of exclusive_all each. They cannot
-- deadlock, whatever the order of their arrays, because all take the keys in the same order.
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
    next_name  text;
begin
    if exclusive_all.names is null then
        raise exception 'names must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass an array of names; an empty one locks nothing.';
    end if;
    for next_name in
        select min(wanted.name)
        from unnest(exclusive_all.names) as wanted (name)
        group by lock.key(wanted.name)
        order by lock.key(wanted.name)
    loop
        perform lock.exclusive(next_name);
    end loop;
end;
$$;
-- +goose StatementEnd

comment on function lock.exclusive_all(text[]) is
    'Takes an exclusive lock on every name, in one global order. So its callers never deadlock '
    'with each other, whatever the order of their arrays. That holds for one call a transaction: '
    'a second call, or other locks held before, can deadlock (40P01). Waits as lock.exclusive '
    'does. Duplicates count once, and an empty array locks nothing. On the advisory engine every '
    'key takes a slot of the shared lock table until the transaction ends. When '
    'max_locks_per_transaction is too small for them, that is 53200 with a hint. Errors: 22004 '
    'null array or element, 22023 bad name, and those of lock.exclusive.';

-- file: sql/functions/key/shared.sql
-- shared takes a key together with other sharers, until the transaction ends. It waits for an
-- exclusive holder.
--
-- It is built as lock.exclusive is.
create or replace function lock.shared(
    key  bigint
)
returns void
language sql
volatile
return case
    when lock_internal.is_advisory() and not pg_is_in_recovery()
        and pg_try_advisory_xact_lock_shared(shared.key # 7813573190502540665)
    then null
    else lock_internal.hold_key(shared.key, null, true)
end;

comment on function lock.shared(bigint) is
    'Takes a shared lock on a key until the transaction ends or rolls back to an earlier '
    'savepoint. Sharers do not wait for each other. They wait for an exclusive holder, and it '
    'waits for them. It is re-entrant and does not age: nobody can take it away. Errors: those of '
    'lock.exclusive(bigint). After F. Pachot, application locks in YugabyteDB; docs/key.md says '
    'what its recipe gets wrong.';

-- +goose StatementBegin
create or replace function lock.shared(
    name  text
)
returns void
language plpgsql
volatile
as $$
begin
    if lock_internal.is_advisory() and not pg_catalog.pg_is_in_recovery()
        and pg_catalog.octet_length(shared.name) operator(pg_catalog.>=) 1
        and pg_catalog.octet_length(shared.name) operator(pg_catalog.<=) 1024
        and pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended(shared.name collate pg_catalog."C", 7813573190502540665))
    then
        return;
    end if;
    perform lock_internal.hold_key(null, shared.name, true);
end;
$$;
-- +goose StatementEnd

comment on function lock.shared(text) is
    'As lock.shared(bigint), for lock.key(name). lock.exclusive(text) says who sees '
    'the name.';

-- file: sql/functions/key/try_key.sql
-- +goose StatementBegin
-- try_key takes a key as hold_key does, and answers false when that would take longer than wait.
--
-- Every role that was granted may call it, with any arguments.
create or replace function lock_internal.try_key(
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
    wanted    constant bigint := lock_internal.key_of(try_key.key, try_key.name);
    previous  constant text := current_setting('lock_timeout');
begin
    if try_key.wait is distinct from interval '0' then
        perform lock_internal.check_interval(try_key.wait, 'wait', true);
    end if;
    if not lock_internal.is_advisory() then
        return lock_internal.hold_row(wanted, try_key.name, try_key.shared, try_key.wait);
    end if;
    perform lock_internal.check_primary();
    if try_key.shared and pg_try_advisory_xact_lock_shared(lock.advisory_key(wanted))
        or not try_key.shared and pg_try_advisory_xact_lock(lock.advisory_key(wanted))
    then
        return true;
    elsif try_key.wait = interval '0' then
        return false;
    end if;

    -- The block is a subtransaction: when the wait ends without the lock, its rollback also puts
    -- lock_timeout back.
    begin
        perform set_config('lock_timeout', least(ceil(extract(epoch from try_key.wait) * 1000), 2147483647)::text, true);
        perform lock_internal.hold_key(try_key.key, try_key.name, try_key.shared);
        perform set_config('lock_timeout', previous, true);
        return true;
    exception
        when lock_not_available then
            return false;
    end;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/key/try_all.sql
-- +goose StatementBegin
-- try_all takes a set of keys, exclusive and shared ones, or takes none when that would take longer
-- than wait.
--
-- It walks the global order of exclusive_all, ascending key. So callers of the two that hold no key
-- before cannot deadlock. The block is a subtransaction. When one key cannot be had, its rollback
-- lets go of those that came before. The error that ends it has a code that nothing else raises.
create or replace function lock.try_all(
    exclusive_names  text[] default '{}',
    exclusive_keys   bigint[] default '{}',
    shared_names     text[] default '{}',
    shared_keys      bigint[] default '{}',
    wait             interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    deadline  timestamptz;
    wanted    record;
begin
    if try_all.exclusive_names is null or try_all.exclusive_keys is null or try_all.shared_names is null or try_all.shared_keys is null then
        raise exception 'names and keys must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass arrays; an empty one locks nothing.';
    elsif try_all.wait is distinct from interval '0' then
        perform lock_internal.check_interval(try_all.wait, 'wait', true);
    end if;
    deadline := clock_timestamp() + try_all.wait;
    for wanted in
        select asked.key, min(asked.name) as name, bool_and(asked.shared) as shared
        from (
            select lock.key(named.name) as key, named.name collate "C" as name, false as shared
            from unnest(try_all.exclusive_names) as named (name)
            union all
            select lock_internal.key_of(numbered.key, null), null, false
            from unnest(try_all.exclusive_keys) as numbered (key)
            union all
            select lock.key(named.name), named.name collate "C", true
            from unnest(try_all.shared_names) as named (name)
            union all
            select lock_internal.key_of(numbered.key, null), null, true
            from unnest(try_all.shared_keys) as numbered (key)
        ) as asked
        group by asked.key
        order by asked.key
    loop
        if not lock_internal.try_key(wanted.key, wanted.name, wanted.shared, greatest(deadline - clock_timestamp(), interval '0')) then
            raise exception using errcode = 'LK000';
        end if;
    end loop;
    return true;
exception
    when sqlstate 'LK000' then
        return false;
end;
$$;
-- +goose StatementEnd

comment on function lock.try_all(text[], bigint[], text[], bigint[], interval) is
    'Takes a set of keys by name and by number, exclusive and shared ones, until the transaction '
    'ends, and returns true. Returns false when not all could be had within wait, and then holds '
    'what it held before and nothing more. wait is for the whole set (default 0: at once; '
    'milliseconds, at most 24.8 days). A key that is asked for several times counts once, and '
    'exclusively when it is asked for so. An empty set is true. All callers of it and of '
    'lock.exclusive_all take their keys in one global order. With one call a transaction they '
    'never deadlock with each other, whatever the order of their arrays. It is re-entrant. But '
    'keys that the transaction held before are outside that order, and so is a shared one that '
    'becomes exclusive. Then it can meet a deadlock. That ends with 40P01, or with false when '
    'wait ends first (on the row engine: always). While it waits, wait stands in for '
    'lock_timeout; statement_timeout goes on counting. Errors: 22004 null array, element or wait, '
    '22023 bad name, or a wait that is negative, infinite or has months, 53200 as '
    'lock.exclusive_all, and those of lock.try_exclusive.';

-- file: sql/functions/key/try_exclusive.sql
-- try_exclusive takes a key as exclusive does, or answers false when that would take longer than
-- wait.
--
-- It is built as lock.exclusive is: a try that does not wait touches no table, granted or denied.
-- try_key answers where the case is null: on the row engine, on a standby, with a wait, and with a
-- bad argument.
create or replace function lock.try_exclusive(
    key   bigint,
    wait  interval default '0'
)
returns boolean
language sql
volatile
return coalesce(
    case
        when lock_internal.is_advisory() and try_exclusive.wait = '0' and not pg_is_in_recovery()
        then pg_try_advisory_xact_lock(try_exclusive.key # 7813573190502540665)
    end,
    lock_internal.try_key(try_exclusive.key, null, false, try_exclusive.wait)
);

comment on function lock.try_exclusive(bigint, interval) is
    'Takes a key as lock.exclusive does and returns true. Returns false when another transaction '
    'still has it after wait (default 0: at once; milliseconds, at most 24.8 days). While it '
    'waits, wait stands in for lock_timeout; statement_timeout goes on counting. On the row '
    'engine a wait asks again every 10 ms instead of queueing. Errors: 22004 null, 22023 bad '
    'name, or a wait that is negative, infinite or has months, 25006 on a standby, 40P01 '
    'deadlock, 40001 (row engine under snapshot isolation), 57014 statement_timeout.';

-- +goose StatementBegin
create or replace function lock.try_exclusive(
    name  text,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
as $$
begin
    if lock_internal.is_advisory() and not pg_catalog.pg_is_in_recovery()
        and try_exclusive.wait operator(pg_catalog.=) '0'::pg_catalog.interval
        and pg_catalog.octet_length(try_exclusive.name) operator(pg_catalog.>=) 1
        and pg_catalog.octet_length(try_exclusive.name) operator(pg_catalog.<=) 1024
    then
        return pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(try_exclusive.name collate pg_catalog."C", 7813573190502540665));
    end if;
    return lock_internal.try_key(null, try_exclusive.name, false, try_exclusive.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock.try_exclusive(text, interval) is
    'As lock.try_exclusive(bigint, interval), for lock.key(name). lock.exclusive(text) says '
    'who sees the name.';

-- file: sql/functions/key/try_shared.sql
-- try_shared takes a key as shared does, or answers false when that would take longer than wait.
--
-- It is built as lock.try_exclusive is.
create or replace function lock.try_shared(
    key   bigint,
    wait  interval default '0'
)
returns boolean
language sql
volatile
return coalesce(
    case
        when lock_internal.is_advisory() and try_shared.wait = '0' and not pg_is_in_recovery()
        then pg_try_advisory_xact_lock_shared(try_shared.key # 7813573190502540665)
    end,
    lock_internal.try_key(try_shared.key, null, true, try_shared.wait)
);

comment on function lock.try_shared(bigint, interval) is
    'Takes a key as lock.shared does and returns true, or returns false when another transaction '
    'still has it after wait. lock.try_exclusive(bigint, interval) describes wait and the errors.';

-- +goose StatementBegin
create or replace function lock.try_shared(
    name  text,
    wait  interval default '0'
)
returns boolean
language plpgsql
volatile
as $$
begin
    if lock_internal.is_advisory() and not pg_catalog.pg_is_in_recovery()
        and try_shared.wait operator(pg_catalog.=) '0'::pg_catalog.interval
        and pg_catalog.octet_length(try_shared.name) operator(pg_catalog.>=) 1
        and pg_catalog.octet_length(try_shared.name) operator(pg_catalog.<=) 1024
    then
        return pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended(try_shared.name collate pg_catalog."C", 7813573190502540665));
    end if;
    return lock_internal.try_key(null, try_shared.name, true, try_shared.wait);
end;
$$;
-- +goose StatementEnd

comment on function lock.try_shared(text, interval) is
    'As lock.try_shared(bigint, interval), for lock.key(name). lock.exclusive(text) says '
    'who sees the name.';

-- file: sql/functions/key/unlock.sql
-- +goose StatementBegin
-- unlock forgets what is kept of a key, when the transaction commits. The lock itself ends with the
-- transaction.
--
-- It never waits. On both engines it needs what an exclusive holder has, so a row that others have
-- locked stays. A waiter may find the row gone. It inserts the row again and goes on waiting for
-- that one: see hold_row. The advisory engine keeps nothing.
create or replace function lock.unlock(
    key  bigint
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted  constant bigint := lock_internal.key_of(unlock.key, null);
begin
    if lock_internal.is_advisory() then
        perform lock_internal.check_primary();
        return pg_try_advisory_xact_lock(lock.advisory_key(wanted));
    end if;
    delete from lock.locked_keys
    where locked_keys.key in (
        select forgotten.key
        from lock.locked_keys as forgotten
        where forgotten.key = wanted
        for update skip locked
    );
    if not found then
        return false;
    end if;
    if current_setting('yb_disable_transactional_writes', true) is not null then
        perform set_config('lock.forgotten', concat_ws(' ', current_setting('lock.forgotten', true), wanted), true);
    end if;
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.unlock(bigint) is
    'Forgets a key; the exclusive holder calls it. Returns true when nothing of the key is kept '
    'after this transaction''s commit. That is its row of lock.locked_keys on the row engine; the '
    'advisory engine keeps nothing of any key. Returns false when another transaction holds the '
    'key, and on the row engine when the key is not known. Before PostgreSQL 17 a sharer gets '
    'false, too, while another transaction waits for the key. The lock itself ends with the '
    'transaction, not here; calling unlock takes it exclusively until then. It never waits. '
    'Errors: 22004 null, 22023 bad name, 25006 on a standby (row engine: read-only).';

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

-- file: sql/functions/key/vacuum.sql
-- +goose StatementBegin
-- vacuum forgets what is kept of every key that nobody holds: on the advisory engine nothing is.
--
-- It never waits, and never touches exclusion. It may forget a key that is taken at the very
-- moment. Its taker finds the row gone and inserts it again.
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
    if lock_internal.is_advisory() then
        return 0;
    end if;
    with idle as materialized (
        select locked_keys.key
        from lock.locked_keys
        for update skip locked
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
    'Forgets every key that nobody holds or waits for, and returns how many: rows of '
    'lock.locked_keys on the row engine. The advisory engine keeps nothing of a key, and it '
    'returns 0 there. It never waits and never frees a lock. On the row engine run it from cron '
    'when keys come and go by the thousand, and not at all for a fixed set of keys. Errors: 25006 '
    'on a standby (row engine: read-only), 40001 under REPEATABLE READ when something changed '
    'since the snapshot.';

-- end of functions

-- The numbers left out are those whose upper half is that of a small number. These are a program's
-- own locks. A key of ours is among them with odds of one in two thousand millions.
-- +goose StatementBegin
do $$
begin
    if not lock_internal.is_advisory() then
        comment on table lock.locked_keys is
            'Every key that was locked and that lock.unlock or lock.vacuum has not yet forgotten: '
            'the lock itself. key; name: the one that was locked first; ts: when that was.';
    else
        if exists (select from pg_class where pg_class.oid = 'lock.locked_keys'::regclass and pg_class.relkind = 'r') then
            drop table lock.locked_keys;
        end if;
        create or replace view lock.locked_keys with (security_barrier) as
        select
            held.key,
            coalesce(
                min(held.shown) filter (where lock.advisory_key(hashtextextended(held.shown collate "C", lock.advisory_key(0))) = held.key),
                min(held.shown) filter (where held.shown like '%...')
            ) as name,
            min(held.since) filter (where held.granted) as ts
        from (
            select
                lock.advisory_key((pg_locks.classid::bigint << 32) | pg_locks.objid::bigint) as key,
                pg_locks.granted,
                pg_stat_activity.xact_start as since,
                case when not pg_locks.granted then substring(pg_stat_activity.application_name from ' waits for (.+)$') end as shown
            from pg_locks
            left join pg_stat_activity on pg_stat_activity.pid = pg_locks.pid
            where pg_locks.locktype = 'advisory'
              and pg_locks.objsubid = 1
              and pg_locks.classid::bigint not in (0, 4294967295)
              and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
        ) as held
        group by held.key
        having bool_or(held.granted);
        comment on view lock.locked_keys is
            'Every key that is held now. name: shown while somebody waits for the key by name, '
            'as its beginning and three dots where it is not ASCII or longer than 52 bytes. ts: '
            'when the oldest transaction that holds it began; null where PostgreSQL does not show '
            'it. A name is the one whose key this is. A beginning is what the waiter says. A '
            'program''s own advisory locks are told from keys by their number. Numbers below '
            '2^32, positive or negative, are left out; others look like keys.';
    end if;
end;
$$;
-- +goose StatementEnd

select lock_internal.end_migration(20261101000200, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000200 needs 20261101000100, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000200, 20261101000100, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.locked_keys}');

-- +goose StatementBegin
do $$
begin
    if lock_internal.is_advisory() then
        drop view if exists lock.locked_keys;
    end if;
end;
$$;
-- +goose StatementEnd

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

-- gone: sql/functions/key/try_all.sql
drop function if exists lock.try_all(text[], bigint[], text[], bigint[], interval);

-- gone: sql/functions/key/try_key.sql
drop function if exists lock_internal.try_key(bigint, text, boolean, interval);

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

-- gone: sql/functions/key/hold_key.sql
drop function if exists lock_internal.hold_key(bigint, text, boolean);

-- gone: sql/functions/key/hold_row.sql
drop function if exists lock_internal.hold_row(bigint, text, boolean, interval);

-- gone: sql/functions/key/key_of.sql
drop function if exists lock_internal.key_of(bigint, text);

-- gone: sql/functions/key/add_key.sql
drop function if exists lock_internal.add_key(bigint, text, boolean);

-- gone: sql/functions/key/advisory_key.sql
drop function if exists lock.advisory_key(bigint);

-- end of functions

drop table if exists lock.locked_keys;

select lock_internal.end_migration(20261101000200, 'down');
