-- start_migration lets one migrator run at a time, refuses one that is not the owner, and stops one that fell behind.
--
-- The goose CLI takes no lock: two runs read the same list of pending migrations, and both apply it. The advisory lock makes
-- them take turns, migration by migration, and every migration may be applied twice. Anybody who may connect can hold that
-- lock, so the wait for it has an end. A migrator that is more than a migration behind would bring older functions back. One
-- that is not the owner would leave functions behind that run with its rights.
create or replace function lock_internal.start_migration(
    number     integer,
    direction  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    previous  constant text := current_setting('lock_timeout');
    stranger  text;
    latest    integer;
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
            perform set_config('lock_timeout', coalesce(nullif(previous, '0'), '1min'), true);
            perform pg_advisory_xact_lock(1819239275, 0);
            perform set_config('lock_timeout', previous, true);
        exception
            when lock_not_available then
                raise exception 'another session holds the lock of the migrators'
                    using errcode = 'lock_not_available',
                          hint = 'select pid from pg_locks where locktype = ''advisory'' and classid = 1819239275 says which. '
                              'Nothing was changed; run goose again.';
        end;
    end if;

    select max(migration.number) into latest from lock.migration;
    if latest not in (start_migration.number - 1, start_migration.number) then
        raise exception 'migration % cannot go % now: the schema is at %', start_migration.number, start_migration.direction, latest
            using errcode = 'object_in_use',
                  hint = 'Another migrator is at work on this database, or was. Nothing was changed; run goose again.';
    end if;
end;
$$;

comment on function lock_internal.start_migration(integer, text) is
    'The first call of every migration. Waits for other migrators for lock_timeout, or a minute where that is not set. '
    'Errors: 42501 not the owner, 55P03 another session holds the migrators'' lock, 55006 the schema is not where this migration starts.';

revoke all on function lock_internal.start_migration(integer, text) from public;
