-- start_migration lets one migrator run at a time. It refuses a migrator that is not the owner, and
-- stops one that fell behind or skips.
--
-- The goose CLI takes no lock. Two runs read the same list of pending migrations, and both apply
-- it. The advisory lock makes them take turns, migration by migration, and every migration may be
-- applied twice. Everybody who may connect can hold that lock, so the wait for it has an end.
--
-- A migration on its way down takes tables away, and whoever uses them then queues behind it. So it
-- does not wait for long for the transaction that is in its way, unless lock_timeout says how long.
--
-- A migrator that is more than a migration behind would bring older functions back. A migrator that
-- is not the owner would leave functions behind that run with its rights.
create or replace function lock_internal.start_migration(
    version    bigint,
    previous   bigint,
    direction  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    patience  constant text := current_setting('lock_timeout');
    stranger  text;
    latest    bigint;
begin
    select format('%s belongs to %s', checked.name, checked.owner)
    into stranger
    from (
        select 'schema ' || pg_namespace.nspname as name, pg_get_userbyid(pg_namespace.nspowner) as owner
        from pg_namespace
        where pg_namespace.nspname in ('lock', 'lock_internal')
        union all
        select 'table public.lock_goose_version', pg_get_userbyid(pg_class.relowner)
        from pg_class
        where pg_class.oid = to_regclass('public.lock_goose_version')
    ) as checked
    where checked.owner <> current_user
    limit 1;
    if found then
        raise exception '%, and this migrator is %', stranger, current_user
            using errcode = 'insufficient_privilege',
                  hint = 'Migrate as its owner, or drop it if it is nobody''s: what is in it would run with your rights.';
    end if;

    if version() not like '%-YB-%' then
        begin
            perform set_config('lock_timeout', coalesce(nullif(patience, '0'), '1min'), true);
            perform pg_advisory_xact_lock(1819239275, 0);
            perform set_config('lock_timeout', patience, true);
        exception
            when lock_not_available then
                raise exception 'another session holds the lock of the migrators'
                    using errcode = 'lock_not_available',
                          hint = 'select pid from pg_locks where locktype = ''advisory'' and classid = 1819239275 says which. '
                              'Nothing was changed; run goose again.';
        end;
        if start_migration.direction = 'down' and patience = '0' then
            perform set_config('lock_timeout', '2s', true);
        end if;
    end if;

    select coalesce(max(migration.version), 0) into latest from lock.migration;
    if latest < start_migration.previous then
        raise exception 'migration % needs %, which has not run in this database: is goose''s -table the one that it was migrated with?',
            start_migration.version, start_migration.previous
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Its name is public.lock_goose_version, unless you chose another. Nothing was changed.';
    elsif latest not in (start_migration.previous, start_migration.version) then
        raise exception 'migration % cannot go % now: the schema is at %', start_migration.version, start_migration.direction, latest
            using errcode = 'object_in_use',
                  hint = 'Another migrator is at work on this database, or was, or goose''s -table is not the one that it was '
                      'migrated with. Nothing was changed; run goose again.';
    end if;
end;
$$;
