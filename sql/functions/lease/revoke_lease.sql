-- revoke_lease takes a lease from its holder and records who did it, when and why; false when there is no such lease.
create or replace function lock.revoke_lease(
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
    gone  lock.lease;
begin
    perform lock_internal.check_token(revoke_lease.name, revoke_lease.token);
    perform lock_internal.check_text(revoke_lease.reason, 'reason');
    delete from lock.lease
    where lease.name = revoke_lease.name
      and lease.token = revoke_lease.token
      and lease.expires_at > clock_timestamp()
    returning lease.* into gone;
    if not found then
        return false;
    end if;
    insert into lock.lease_revocation (name, token, owner, revoked_by, revoked_at, reason)
    values (gone.name, gone.token, gone.owner, session_user, clock_timestamp(), revoke_lease.reason);
    if gone.awaited then
        perform lock_internal.notify_lease_waiters(gone.name);
    end if;
    return true;
end;
$$;

comment on function lock.revoke_lease(text, bigint, text) is
    'For the schema''s owner. Takes a live lease (see lock.lease_holder) from its holder and records it in lock.lease_revocation with the session''s user, the '
    'time and reason. From its commit on lock.assert_lease and lock.renew_lease refuse the token; it waits for transactions that have '
    'asserted it, so that none of them commits later. Returns false when there is no such live lease. Errors: 22004 null, 22023 bad name or reason, '
    '40001 under REPEATABLE READ and SERIALIZABLE when the lease was renewed or lost, or somebody began to wait for it, after the snapshot, 25006 read-only.';

revoke all on function lock.revoke_lease(text, bigint, text) from public;
