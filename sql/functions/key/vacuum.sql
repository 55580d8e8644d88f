-- vacuum forgets what is kept of every key that nobody holds: on the advisory engine nothing is.
--
-- It never waits, and never touches exclusion. It may forget a key that is taken at the very
-- moment. Its taker finds the row gone and inserts it again.
create or replace function lock.vacuum()
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    forgotten  bigint;
    keys       text;
begin
    perform lock_internal.check_primary();
    if lock_internal.is_advisory() then
        return 0;
    end if;
    with idle as materialized (
        select locked_keys.key
        from lock.locked_keys
        for update skip locked
    ),
    gone as (
        delete from lock.locked_keys
        using idle
        where locked_keys.key = idle.key
        returning locked_keys.key
    )
    select
        count(*),
        string_agg(gone.key::text, ' ') filter (where current_setting('yb_disable_transactional_writes', true) is not null)
    into forgotten, keys
    from gone;
    if keys is not null then
        perform set_config('lock.forgotten', concat_ws(' ', current_setting('lock.forgotten', true), keys), true);
    end if;
    return forgotten;
end;
$$;

comment on function lock.vacuum() is
    'Forgets every key that nobody holds or waits for, and returns how many: rows of '
    'lock.locked_keys on the row engine. The advisory engine keeps nothing of a key, and it '
    'returns 0 there. It never waits and never frees a lock. On the row engine run it from cron '
    'when keys come and go by the thousand, and not at all for a fixed set of keys. Errors: 25006 '
    'on a standby (row engine: read-only), 40001 under REPEATABLE READ when something changed '
    'since the snapshot.';
