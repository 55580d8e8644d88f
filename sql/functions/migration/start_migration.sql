-- start_migration lets one migrator at a time pass, and stops one that fell behind before it brings back older text.
--
-- The goose CLI takes no lock: two runs read the same list of pending migrations, and both apply it. The advisory lock makes
-- them take turns, migration by migration, and every migration may be applied twice. One that is more than a migration behind
-- would replace newer functions by older ones, and is refused.
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
    latest  integer;
begin
    if version() not like '%-YB-%' then
        perform pg_advisory_xact_lock(1819239275, 0);
    end if;
    select max(migration.number) into latest from lock.migration;
    if start_migration.direction = 'up' and latest not in (start_migration.number - 1, start_migration.number)
        or start_migration.direction = 'down' and latest not in (start_migration.number - 1, start_migration.number)
    then
        raise exception 'migration % cannot go % now: the schema is at %', start_migration.number, start_migration.direction, latest
            using errcode = 'object_in_use',
                  hint = 'Another migrator is at work on this database, or was. Nothing was changed; run goose again.';
    end if;
end;
$$;

comment on function lock_internal.start_migration(integer, text) is
    'The first statement of every migration but the first.';

revoke all on function lock_internal.start_migration(integer, text) from public;
