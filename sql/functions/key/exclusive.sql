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

comment on function lock.exclusive(text) is
    'As lock.exclusive(bigint), for lock.key(name). lock.locked_keys shows the name while '
    'a transaction waits for it. On the advisory engine the waiter''s application_name has it, '
    'which every role of the server sees.';
