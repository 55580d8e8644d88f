-- record_key enters a key that is held into the directory of the advisory engine, and never waits to do so.
--
-- The caller holds the key. An exclusive holder is alone; among sharers the one that gets the second advisory lock
-- records, and the others go on. What could still be in the way is a row that this snapshot cannot see: then the key stays
-- unlisted until it is locked again. Nothing here decides who holds what.
create or replace function lock_internal.record_key(
    key     bigint,
    name    text,
    shared  boolean
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1ms'
as $$
begin
    -- 1819239275 is 'lock' in ASCII: the two-number space is apart from the keys'. This lock also tells lock.activity that
    -- the key is ours while its row cannot be seen yet, or is never written.
    if not pg_try_advisory_xact_lock(1819239275, hashint8(record_key.key)) and record_key.shared
        or current_setting('transaction_read_only')::boolean
    then
        return;
    end if;
    begin
        insert into lock.locked_keys (key, name, ts)
        values (record_key.key, record_key.name, clock_timestamp())
        on conflict do nothing;
    exception
        when lock_not_available or serialization_failure then
            null;
    end;
end;
$$;

comment on function lock_internal.record_key(bigint, text, boolean) is
    'Enters a key that is held into lock.locked_keys, or leaves it when that would wait.';

revoke all on function lock_internal.record_key(bigint, text, boolean) from public;
