-- check returns one row for each thing that is wrong with this server for the locks of this schema.
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
    'What is wrong with this server for the locks of this schema, one row per finding; no row: '
    'nothing. Severity error: something will not work. Severity warning: it works with a limit '
    'that the finding names. Severity notice: good to know. It reads settings as this session has '
    'them: call it as the role, and through the pooler, that will work. Works on PostgreSQL and '
    'YugabyteDB, and on a standby. Writes nothing, and costs milliseconds.';
