-- vacuum forgets what is kept of every key that nobody holds.
--
-- It never waits, and never touches exclusion. It may forget a key that is taken at the very
-- moment. On the advisory engine that key then has no name until somebody waits for it again. On
-- the row engine its taker finds the row gone and inserts it again.
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
        with idle as materialized (
            select key_name.key, key_name.ts
            from lock.key_name
            where key_name.key not in (select locked_keys.key from lock.locked_keys)
            for update of key_name skip locked
        ),
        gone as (
            delete from lock.key_name
            using idle
            where (key_name.key, key_name.ts) = (idle.key, idle.ts)
            returning key_name.key
        )
        select count(distinct gone.key) into forgotten from gone;
        return forgotten;
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
    'Forgets every key that nobody holds or waits for, and returns how many. These are rows of '
    'lock.locked_keys on the row engine, and recorded names on the advisory engine. It never '
    'waits and never frees a lock. Run it from cron when keys come and go by the thousand, and '
    'not at all for a fixed set of keys. Errors: 25006 read-only, 40001 under REPEATABLE READ '
    'when something changed since the snapshot.';
