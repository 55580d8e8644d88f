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

comment on function lock.force_release_lease(text, bigint, text) is
    'For operators. Takes a live lease (see lock.lease_holder) from its holder and returns true; '
    'false when there is no such live lease. lock.forced_release records the operator, the reason '
    '(1 to 1024 bytes) and the lease with its token. From its commit on lock.assert_lease and '
    'lock.renew_lease refuse the token. Waits for transactions that have asserted it, so that '
    'none of them commits later. Errors: 22004 null, 22023 bad name or reason, 40001 under '
    'REPEATABLE READ and SERIALIZABLE when the lease was renewed or lost, or a waiter marked it, '
    'after the snapshot, 25006 read-only.';
