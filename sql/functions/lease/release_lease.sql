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

comment on function lock.release_lease(text, bigint) is
    'Gives a lease back and wakes the callers of lock.await_lease that wait for the name. Both '
    'happen at commit, so it may be the last statement of the work''s own transaction. Returns '
    'false when the lease was lost before: expired, or released. Waits for other transactions '
    'that called lock.assert_lease with the lease. Errors: 22004 null, 22023 bad name, 40001 '
    'under REPEATABLE READ and SERIALIZABLE when the lease was renewed or lost, or a waiter '
    'marked it, after the snapshot, 25006 read-only.';
