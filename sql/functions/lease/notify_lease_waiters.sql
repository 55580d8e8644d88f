-- notify_lease_waiters notifies channel lock_lease at commit, and takes away the mark that asked for it.
--
-- A notification makes every commit of the server queue behind one lock, hence only for a name that is marked as awaited.
-- Nobody is missed: await_lease sets the mark while it holds the name's row for update, and looks at the leases behind that lock;
-- who ends a lease reads the mark with a key share lock on the same row, taken after the lease's row went and kept until the
-- commit. So one of the two sees the other. Acquiring updates no key, and does not wait for a key share lock.
--
-- The mark goes with the notification, because everyone wakes and marks anew, unless that would mean waiting for somebody
-- at the gate: then the next release notifies once too often.
create or replace function lock.notify_lease_waiters(
    name  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('yb_enable_listen_notify', true) is distinct from 'off' then
        perform pg_notify('lock_lease', notify_lease_waiters.name);
    end if;
    update lock.lease_name
    set awaited = false
    where lease_name.name in (
        select marked.name
        from lock.lease_name as marked
        where marked.name = notify_lease_waiters.name
        for no key update skip locked
    );
end;
$$;

comment on function lock.notify_lease_waiters(text) is
    'Internal: notifies channel lock_lease, payload the name, and takes away the mark that asked for it.';

revoke all on function lock.notify_lease_waiters(text) from public;
