-- uncontended says whether this transaction is the only open one that is at work on an id, so that a plain update of its row does not wait.
--
-- It tries an advisory lock that the transaction keeps, one of 1024: few enough for the server's lock table, however many ids a
-- transaction touches. So false may also mean that another id of the same bucket is at work, and who then goes on without it is not seen
-- by the next who asks: this is a hint, and the row's own lock decides. It is worth having because an update that waits and then finds the
-- row changed has locked it all the same. YugabyteDB's updates do not, and its advisory locks are slow: always true.
create or replace function lock_internal.uncontended(
    id  text
)
returns boolean
language sql
volatile
as $$
    select lock_internal.is_yugabyte() or pg_try_advisory_xact_lock(1819240299, hashtext(uncontended.id) & 1023);
$$;

comment on function lock_internal.uncontended(text) is
    'Whether no other open transaction is at work on this id, as far as advisory locks tell. Never waits.';

revoke all on function lock_internal.uncontended(text) from public;
