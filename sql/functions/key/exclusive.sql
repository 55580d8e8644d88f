-- exclusive takes a key for this transaction alone; waits until every other holder has ended.
--
-- PostgreSQL puts the body into the caller's statement, so a lock that is free costs one try. hold_key does all the rest: it
-- waits, records the name, raises the errors, and is the row engine. A try does not overtake: the lock manager refuses it when
-- somebody who waits conflicts. What lock_internal.key_of does is written out here, because each call would cost planning.
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
    'Takes an exclusive lock on a key until the transaction ends or rolls back to an earlier savepoint. Waits for every other holder, shared or exclusive. '
    'Re-entrant. See what holders before did with a statement that follows, under READ COMMITTED: this one''s snapshot is from before the wait. Does not age: nobody can take it away. Errors: 22004 null, 22023 bad name, 25006 on a standby, 40P01 deadlock, 40001 (row engine under snapshot isolation: retry the transaction), 55P03 lock_timeout, 57014 statement_timeout; none leaves anything held. '
    'After F. Pachot, application locks in YugabyteDB; what its recipe gets wrong is in docs/key.md.';

revoke all on function lock.exclusive(bigint) from public;

create or replace function lock.exclusive(
    name  text
)
returns void
language sql
volatile
return case
    when lock_internal.is_advisory() and not pg_is_in_recovery() and octet_length(exclusive.name) between 1 and 1024
        and pg_try_advisory_xact_lock(hashtextextended(exclusive.name collate "C", 7813573190502540665))
    then null
    else lock_internal.hold_key(null, exclusive.name, false)
end;

comment on function lock.exclusive(text) is
    'As lock.exclusive(bigint), for lock.key(name); the name is shown by lock.locked_keys once somebody has waited for it.';

revoke all on function lock.exclusive(text) from public;
