-- check says in one row each what is wrong with this server, as this session sees it, for the locks of this schema.
create or replace function lock.check()
returns setof lock.finding
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query select * from lock_internal.findings(version());
end;
$$;

comment on function lock.check() is
    'What is wrong with this server for the locks of this schema, one row per finding; no row: nothing. Severity error: something will not '
    'work; warning: it works with a limit that the finding names; notice: good to know. Settings are read as this session has them, so '
    'ask as the role, and through the pooler, that will work. Works on PostgreSQL and YugabyteDB, and on a standby; writes nothing, and reads lock.task to its end.';
