-- vacuum forgets every key that nobody holds or waits for.
--
-- A key that is taken at the very moment may lose its row: on the advisory engine it is then held and unlisted until it is
-- locked again; on the row engine its taker finds the row gone and inserts it again. Exclusion is never touched.
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
    with idle as materialized (
        select locked_keys.key
        from lock.locked_keys
        where lock.engine() = 'row'
           or not exists (
                select
                from pg_locks
                where pg_locks.locktype = 'advisory'
                  and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
                  and pg_locks.objsubid = 1
                  and lock.advisory_key((pg_locks.classid::bigint << 32) | pg_locks.objid::bigint) = locked_keys.key
           )
        for update of locked_keys skip locked
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
    'Forgets every key that nobody holds or waits for, and returns how many. Never waits, never frees a lock. One statement over '
    'lock.locked_keys: run it from cron when keys come and go by the thousand, and not at all for a fixed set of keys. '
    'Errors: 25006 read-only, 40001 under REPEATABLE READ when the directory changed since the snapshot.';

revoke all on function lock.vacuum() from public;
