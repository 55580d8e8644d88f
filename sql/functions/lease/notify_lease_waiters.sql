-- notify_lease_waiters notifies channel lock_lease at commit.
--
-- A notification makes every commit of the server queue behind one lock, hence only for a lease that is marked as awaited.
create or replace function lock_internal.notify_lease_waiters(
    name  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('yb_enable_listen_notify', true) is distinct from 'off' then
        perform pg_notify('lock_lease', notify_lease_waiters.name);
    end if;
end;
$$;
