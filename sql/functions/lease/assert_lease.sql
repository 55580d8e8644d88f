-- assert_lease stops a transaction whose lease is lost. It keeps the lease from being given to
-- another caller before the transaction ends.
--
-- The fence is the lock on the lease's row. It is the weakest lock that a delete must wait for, so
-- renewals pass while it is held. Takeover and release, by force or not, delete the row. When this
-- asserts first, they come after this transaction's end. When they delete first, this waits for
-- that transaction's end and finds nothing. The time is read once the lock is held. An asserted
-- lease may run out before the commit: nobody gets it sooner.
--
-- Under REPEATABLE READ a row that looks expired may have been renewed since the snapshot. The
-- second lock tells (40001). A token that the snapshot's counter has not reached was granted after
-- the snapshot: 40001, too.
create or replace function lock.assert_lease(
    name   text,
    token  bigint
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    expires_at  timestamptz;
begin
    select lease.expires_at into expires_at
    from lock.lease
    where lease.name = assert_lease.name
      and lease.token = assert_lease.token
    for key share;
    if expires_at > clock_timestamp() then
        return;
    end if;
    perform lock_internal.check_token(assert_lease.name, assert_lease.token);
    if expires_at is not null then
        select lease.expires_at into expires_at
        from lock.lease
        where lease.name = assert_lease.name
          and lease.token = assert_lease.token
        for no key update;
        if expires_at > clock_timestamp() then
            return;
        end if;
    elsif current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
        and assert_lease.token > coalesce((
            select lease_name.token
            from lock.lease_name
            where lease_name.name = assert_lease.name
        ), (select lease_floor.token from lock.lease_floor where lease_floor.only_row))
    then
        raise exception 'lease % with token % is newer than this transaction''s snapshot, or never was', assert_lease.name, assert_lease.token
            using errcode = 'serialization_failure',
                  hint = 'Begin the transaction after the lease was acquired.';
    end if;
    raise exception 'lease % with token % is lost', assert_lease.name, assert_lease.token
        using errcode = 'LK001',
              detail = coalesce(
                  'It expired at ' || expires_at || '.',
                  (
                      select format('%s released it by force at %s: %s', forced_release.released_by, forced_release.released_at, forced_release.reason)
                      from lock.forced_release
                      where forced_release.id = assert_lease.name
                        and forced_release.kind = 'lease'
                        and forced_release.previous -> 'token' = to_jsonb(assert_lease.token)
                  ),
                  'It was released, taken over after it had expired, or never granted.'
              ),
              hint = 'Roll back and stop: another may hold the name by now.';
end;
$$;

comment on function lock.assert_lease(text, bigint) is
    'A fence: call it in the transaction that writes what the lease protects. It raises LK001 '
    'when the lease is lost: expired, released (by force or not), or never granted. Otherwise '
    'nobody gets the lease''s permit until the transaction ends, even when the lease expires '
    'before that. So a holder commits nothing after its successor was granted. Waits only for a '
    'transaction that is releasing or taking over this lease. Errors: 22004 null, 22023 bad name, '
    'LK001 lost, 40001 under REPEATABLE READ and SERIALIZABLE when the lease went or came after '
    'the snapshot, 25006 read-only.';
