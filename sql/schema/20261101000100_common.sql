-- +goose Up
set local search_path = pg_catalog, pg_temp;

-- lock_internal.start_migration may not be there yet. Nothing is looked up by name before the wait
-- for another migrator: what was not found then would be taken for missing after it.
-- +goose StatementBegin
do $$
begin
    if version() not like '%-YB-%' then
        if current_setting('lock_timeout') = '0' then
            set local lock_timeout = '1min';
        end if;
        perform pg_advisory_xact_lock(1819239275, 0);
    end if;
    if exists (
        select
        from pg_namespace
        where pg_namespace.nspname in ('lock', 'lock_internal')
          and pg_get_userbyid(pg_namespace.nspowner) <> current_user
    ) or exists (
        select
        from pg_class
        where pg_class.oid = to_regclass('public.lock_goose_version')
          and pg_get_userbyid(pg_class.relowner) <> current_user
    ) then
        raise exception 'schema lock, lock_internal or table public.lock_goose_version belongs to another role than %', current_user
            using errcode = 'insufficient_privilege',
                  hint = 'Migrate as its owner, or drop it if it is nobody''s: what is in it would run with your rights.';
    elsif to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is not null then
        perform lock_internal.start_migration(20261101000100, 0, 'up');
    end if;
end;
$$;
-- +goose StatementEnd

-- goose prints the statement that failed before the error, so the message stands at its beginning.
-- Every table of goose's has these columns. Its own one is looked for in the search_path, which is
-- pinned above.
-- +goose StatementBegin
do $$
declare
    refusal constant text := 'goose needs -table public.lock_goose_version, because goose_db_version is for an application''s own migrations';
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null
        and (
            select bool_and(pg_class.relname = 'goose_db_version')
            from pg_attribute
            join pg_class on pg_class.oid = pg_attribute.attrelid
            where pg_attribute.attname = 'is_applied'
              and pg_class.relkind = 'r'
        )
    then
        raise exception using message = refusal, errcode = 'object_not_in_prerequisite_state';
    end if;
end;
$$;
-- +goose StatementEnd

create schema if not exists lock;
create schema if not exists lock_internal;

comment on schema lock is
    'Distributed locks, throttles, task capture and a request queue. select lock.help() prints '
    'the manual.';

comment on schema lock_internal is
    'What the functions of schema lock are made of: nobody needs to call it.';

create table if not exists lock.migration (
    version     bigint       not null,
    applied_at  timestamptz  not null default clock_timestamp(),
    constraint migration_pkey primary key (version)
);

comment on table lock.migration is
    'The migrations that this schema has been through. The migrations themselves keep it, because '
    'a user may name goose''s own table.';

-- What key locks are made of here is chosen once. Nothing changes it afterwards, and this
-- migration, applied again, does not.
-- +goose StatementBegin
do $$
declare
    wanted  text := nullif(current_setting('lock.engine', true), '');
begin
    if to_regprocedure('lock_internal.is_advisory()') is not null then
        return;
    end if;
    wanted := coalesce(wanted, case when version() like '%-YB-%' then 'row' else 'advisory' end);
    if wanted not in ('advisory', 'row') then
        raise exception 'lock.engine is %, and must be advisory or row', wanted
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave it unset: PostgreSQL then gets advisory, and YugabyteDB row.';
    elsif wanted = 'advisory' and version() like '%-YB-%' then
        raise exception 'the advisory engine is for PostgreSQL'
            using errcode = 'feature_not_supported',
                  hint = 'Leave lock.engine unset: YugabyteDB then gets row.';
    end if;
    if wanted = 'advisory' then
        create function lock_internal.is_advisory() returns boolean language sql stable parallel safe return true;
    else
        create function lock_internal.is_advisory() returns boolean language sql stable parallel safe return false;
    end if;
end;
$$;
-- +goose StatementEnd

comment on function lock_internal.is_advisory() is
    'Whether a key lock is an advisory lock here, and not a row. Written by the first migration, never to be changed.';

revoke all on function lock_internal.is_advisory() from public;

create table if not exists lock.forced_release (
    release_id   bigint            not null generated always as identity,
    kind         text              not null,
    id           text collate "C"  not null,
    reason       text              not null,
    released_by  text              not null,
    released_at  timestamptz       not null default clock_timestamp(),
    previous     jsonb             not null,
    constraint forced_release_pkey primary key (release_id)
);

create index if not exists forced_release_id_idx on lock.forced_release (id);

comment on table lock.forced_release is
    'Every lock that an operator took from its holder, and what operators did from the console. '
    'Only its owner deletes from it, by hand.';

comment on column lock.forced_release.kind is
    'mutex, timeout, time_slot, throttle, rate_limit or lease. For what the console did besides: '
    'task or request; then id is the queue, or queue and id.';

comment on column lock.forced_release.released_by is
    'The role that logged in (session_user).';

comment on column lock.forced_release.previous is
    'The row as it was: the holder, since when, until when. From the console: also what was done, '
    'as action.';

create table if not exists lock.granted_role (
    role   name              not null,
    level  text collate "C"  not null,
    constraint granted_role_pkey primary key (role, level),
    constraint granted_role_level check (level in ('application', 'monitor', 'operator', 'tracking'))
);

comment on table lock.granted_role is
    'Who was granted what, by lock.grant_to (application) and its like. It alone says so: rights '
    'that came another way are taken again. Its owner writes it through these functions.';

create table if not exists lock.finding (
    severity  text              not null,
    subject   text collate "C"  not null,
    finding   text collate "C"  not null,
    remedy    text              not null,
    constraint finding_pkey primary key (subject, finding)
);

comment on table lock.finding is
    'The row type of what lock.check() answers. Always empty.';

-- functions of common, migration, admin: written by make migration, not by hand

-- file: sql/functions/admin/actual_rights.sql
-- +goose StatementBegin
-- actual_rights lists every right on both schemas that somebody else than the owner has, as
-- lock_internal.wanted_rights does.
--
-- A right that may be passed on, and one to a single column, is never wanted. PUBLIC has what a
-- missing ACL says.
create or replace function lock_internal.actual_rights()
returns table (
    grantee    text,
    object     text,
    privilege  text
)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select
        case when given.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(given.grantee)) end,
        owned.object,
        given.privilege_type || owned.of || case when given.is_grantable then ' WITH GRANT OPTION' else '' end
    from (
        select 'schema ' || pg_namespace.nspname as object, '' as of, pg_namespace.nspacl as acl, pg_namespace.nspowner as owner
        from pg_namespace
        where pg_namespace.nspname in ('lock', 'lock_internal')
        union all
        select case pg_class.relkind when 'S' then 'sequence ' else 'table ' end || pg_class.oid::regclass, '', pg_class.relacl, pg_class.relowner
        from pg_class
        where pg_class.relnamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
        union all
        select 'table ' || pg_class.oid::regclass, format(' (%s)', pg_attribute.attname), pg_attribute.attacl, pg_class.relowner
        from pg_class
        join pg_attribute on pg_attribute.attrelid = pg_class.oid
        where pg_class.relnamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
        union all
        select 'function ' || pg_proc.oid::regprocedure, '', coalesce(pg_proc.proacl, acldefault('f', pg_proc.proowner)), pg_proc.proowner
        from pg_proc
        where pg_proc.pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
    ) as owned
    cross join aclexplode(owned.acl) as given
    where given.grantee <> owned.owner;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/engine.sql
-- engine says what a key lock is made of in this database: 'advisory' (PostgreSQL) or 'row'
-- (YugabyteDB).
--
-- lock_internal.is_advisory() makes the choice. The first migration writes that function, so it is
-- in no file. Both functions are stable and not immutable. A planner puts a stable function's text
-- in its place, but calls an immutable one.
create or replace function lock.engine()
returns text
language sql
stable
parallel safe
return case when lock_internal.is_advisory() then 'advisory' else 'row' end;

comment on function lock.engine() is
    'What a key lock is made of in this database: advisory (PostgreSQL) or row (YugabyteDB). The '
    'first migration chooses it, once.';

-- file: sql/functions/admin/some_of.sql
-- +goose StatementBegin
-- some_of writes out the first ten of a list, and how many more there are.
create or replace function lock_internal.some_of(
    items  text[]
)
returns text
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select array_to_string(items[:10], ', ') || case when cardinality(items) > 10 then format(' and %s more', cardinality(items) - 10) else '' end;
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/wanted_rights.sql
-- +goose StatementBegin
-- wanted_rights lists every right on both schemas that a call of lock.grant_to and its like gave:
-- one row for each role of lock.granted_role, object and privilege.
--
-- This is the one list of who may do what. A function of schema lock that is not named here is for
-- applications. The internal ones are those that functions and views call with the caller's rights.
create or replace function lock_internal.wanted_rights()
returns table (
    grantee    text,
    object     text,
    privilege  text
)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    with relation as (
        select pg_class.oid, pg_class.relkind = 'v' as is_view
        from pg_class
        where pg_class.relnamespace = 'lock'::regnamespace
          and pg_class.relkind in ('r', 'v')
    ),
    function as (
        select
            pg_proc.oid,
            pg_proc.proname as name,
            pg_proc.pronamespace = 'lock_internal'::regnamespace as internal,
            pg_proc.prorettype = 'trigger'::regtype as tracks,
            pg_proc.proname = any (array['grant_to', 'grant_monitor_to', 'grant_operator_to', 'grant_tracking_to', 'revoke_from']) as owns,
            pg_proc.proname ~ '^(force_release_|drop_unused_|purge_)'
                or pg_proc.proname = any (array['cancel_request', 'clean', 'pause_queue', 'record_action', 'resume_queue']) as operates,
            pg_proc.proname = any (array['delete_task', 'retry_request', 'retry_task', 'retry_tasks', 'set_status', 'set_statuses', 'vacuum']) as repairs,
            pg_proc.proname = any (array[
                'advisory_key', 'check', 'engine', 'get_task', 'help', 'key', 'list_tasks', 'queue_sizes', 'request_history', 'who'
            ]) as looks
        from pg_proc
        where pg_proc.pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)
    )
    select quote_ident(granted_role.role), may.object, may.privilege
    from lock.granted_role
    join pg_roles on pg_roles.rolname = granted_role.role
    join pg_namespace on pg_namespace.nspname = 'lock' and pg_namespace.nspowner <> pg_roles.oid
    cross join lateral (
        select 'schema ' || schema, 'USAGE'
        from unnest(array['lock', 'lock_internal']) as schema
        where granted_role.level <> 'tracking'
        union all
        select 'table ' || relation.oid::regclass, 'SELECT'
        from relation
        where granted_role.level in ('monitor', 'operator')
           or granted_role.level = 'application' and relation.is_view
        union all
        select 'function ' || function.oid::regprocedure, 'EXECUTE'
        from function
        where case granted_role.level
            when 'tracking' then function.tracks and not function.internal
            when 'application' then not function.internal and not function.tracks and not function.owns and not function.operates
                or function.internal and function.name = any (array['hold_key', 'is_advisory', 'row_at', 'try_key', 'waiters'])
            else not function.internal and (function.looks or granted_role.level = 'operator' and (function.operates or function.repairs))
                or function.internal and function.name = any (array['entity_number', 'is_advisory', 'row_at', 'waiters'])
        end
    ) as may (object, privilege);
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/findings.sql
-- +goose StatementBegin
-- findings judges this session's settings as those of a server of the given version.
--
-- The version is an argument so that tests elsewhere can ask about YugabyteDB. The body is long
-- because it is one list, with a row for each thing that can be wrong.
create or replace function lock_internal.findings(
    version  text
)
returns setof lock.finding
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    yugabyte   constant boolean := findings.version like '%-YB-%';
    release    constant integer[] := regexp_match(findings.version, '-YB-([0-9]+)[.]([0-9]+)')::integer[];
    engine     constant text := lock.engine();
    isolation  constant text := current_setting('default_transaction_isolation');
    effective  text := isolation;
    advisory   boolean := true;
    forgotten  text;
    uncleaned  text;
    standby    boolean := false;
    reader     constant regproc := to_regproc('pg_catalog.yb_get_effective_transaction_isolation_level');
begin
    if yugabyte and current_setting('yb_enable_read_committed_isolation', true) = 'off' and isolation = 'read committed' then
        effective := 'repeatable read';
    end if;
    if reader is not null then
        execute format('select %s()', reader) into effective;
    end if;
    if to_regproc('lock_internal.forgotten_tasks') is not null then
        execute 'select lock_internal.forgotten_tasks()' into forgotten;
    end if;
    if to_regproc('lock_internal.uncleaned') is not null then
        execute 'select lock_internal.uncleaned()' into uncleaned;
    end if;
    if yugabyte then
        begin
            perform pg_try_advisory_xact_lock_shared(1819239275, 1);
        exception
            when feature_not_supported then
                advisory := false;
        end;
    else
        -- A standby is connected to no database. Everybody may see that it is there, and that a
        -- slot waits for one.
        standby := exists (
            select
            from pg_stat_replication
            join pg_stat_activity on pg_stat_activity.pid = pg_stat_replication.pid
            where pg_stat_activity.datid is null
              and pg_stat_replication.application_name not in ('pg_basebackup', 'pg_receivewal')
        ) or exists (
            select
            from pg_replication_slots
            where pg_replication_slots.slot_type = 'physical'
              and not pg_replication_slots.temporary
              and not pg_replication_slots.active
        );
    end if;

    return query
    select
        'error',
        'rights',
        format('%s has %s on %s', odd.grantee, lower(odd.privilege), lock_internal.some_of(array_agg(odd.object order by odd.object))),
        'No call of lock.grant_to and its like gave this. Such a call, lock.revoke_from and every migration take it away. '
            'Look where it came from: alter default privileges, a restore without ACLs, or a hand.'
    from (
        select actual.grantee, actual.privilege, actual.object
        from lock_internal.actual_rights() as actual
        except
        select wanted.grantee, wanted.privilege, wanted.object
        from lock_internal.wanted_rights() as wanted
    ) as odd
    group by odd.grantee, odd.privilege, split_part(odd.object, ' ', 1), split_part(odd.object, '.', 1);
    return query
    select
        'error',
        'rights',
        format('%s was granted, and lacks %s', lacking.grantee, lock_internal.some_of(array_agg(lower(lacking.privilege) || ' on ' || lacking.object order by lacking.object))),
        'A restore or a hand took it. Call lock.grant_to for any role again: it sets the rights of all roles.'
    from (
        select wanted.grantee, wanted.privilege, wanted.object
        from lock_internal.wanted_rights() as wanted
        except
        select actual.grantee, actual.privilege, actual.object
        from lock_internal.actual_rights() as actual
    ) as lacking
    group by lacking.grantee;
    return query
    select
        'warning',
        'rights',
        format('role "%s" was granted, and is gone', granted_role.role),
        'The next migration or grant forgets it. Until then another role of its name would be granted in its place.'
    from lock.granted_role
    where granted_role.role not in (select pg_roles.rolname from pg_roles);
    return query
    select
        candidate.severity,
        candidate.subject,
        candidate.finding,
        candidate.remedy
    from (
        values
            (not yugabyte and current_setting('server_version_num')::integer < 140000,
             'error', 'version', 'PostgreSQL is older than 14',
             'Upgrade: 14 is the oldest that is tested.'),
            (yugabyte and release < array[2025, 1],
             'error', 'version', 'YugabyteDB is older than 2025.1',
             'Upgrade: 2025.1 is the first that is PostgreSQL 15 inside.'),
            (pg_is_in_recovery(),
             'error', 'standby', 'this is a standby: a lock here would exclude nobody (25006)',
             'Connect to the primary, for example with target_session_attrs=read-write.'),
            (yugabyte and engine = 'advisory',
             'error', 'engine', 'the first migration ran on PostgreSQL and chose the advisory engine, and this is YugabyteDB',
             'Run the migrations in a new database here instead of restoring schema lock_internal from a dump.'),
            (not yugabyte and engine = 'row',
             'warning', 'engine', 'the row engine on PostgreSQL: a second sharer of a new key waits for the first, and a lock costs a write',
             'Migrate a new database with lock.engine unset.'),
            (not pg_is_in_recovery() and current_setting('default_transaction_read_only')::boolean,
             'error', 'default_transaction_read_only', 'transactions are read-only: a call that stores a grant fails (25006)',
             'Set it off for the role that works, or begin read write.'),
            (not yugabyte and effective <> 'read committed',
             'warning', 'default_transaction_isolation', 'transactions are ' || effective || ': calls may fail with 40001 where READ COMMITTED would wait',
             'Use READ COMMITTED, or retry the transaction on 40001 and 40P01.'),
            (yugabyte and effective = 'repeatable read',
             'warning', 'isolation', 'transactions run under snapshot isolation: calls may fail with 40001, and a try may wait for a key that is newer than its snapshot',
             'Use READ COMMITTED and start the tservers with yb_enable_read_committed_isolation=true, or retry the transaction on 40001 and 40P01.'),
            (yugabyte and effective = 'serializable',
             'warning', 'isolation', 'transactions are serializable: skip locked blocks, so that calls wait that promise not to',
             'Use READ COMMITTED.'),
            (yugabyte and coalesce(current_setting('yb_disable_transactional_writes', true), 'off') = 'on',
             'error', 'yb_disable_transactional_writes', 'writes happen outside their transaction: a rollback does not release what this session takes',
             'Set it off.'),
            (yugabyte and coalesce(current_setting('yb_explicit_row_lock_skip_locked_max_read_ahead', true), '1') <> '1',
             'warning', 'yb_explicit_row_lock_skip_locked_max_read_ahead', 'skip locked reads ahead and locks rows that it does not return: others find less than there is',
             'Set it to 1.'),
            (yugabyte and coalesce(current_setting('yb_max_query_layer_retries', true), '60') = '0',
             'warning', 'yb_max_query_layer_retries', 'the server does not retry a statement by itself: every conflict is a 40001',
             'Set it to its default of 60, or retry the transaction on 40001 and 40P01.'),
            (yugabyte and current_setting('statement_timeout') = '0',
             'warning', 'statement_timeout', 'nothing bounds a wait: lock_timeout does not apply to rows here, and one kind of wait is seen by no deadlock detector',
             'Set statement_timeout for the role that works.'),
            (yugabyte and current_setting('yb_enable_listen_notify', true) is null,
             'warning', 'notifications', 'this version ignores LISTEN and NOTIFY: workers find work by polling alone',
             'Upgrade to 2025.2.3 or later, or poll as often as you can wait.'),
            (yugabyte and current_setting('yb_enable_listen_notify', true) = 'off',
             'warning', 'notifications', 'LISTEN and NOTIFY are off (0A000): workers find work by polling alone',
             'Start masters and tservers with ysql_yb_enable_listen_notify=true, or poll as often as you can wait.'),
            (not advisory,
             'notice', 'advisory locks', 'this server has no advisory locks (0A000): migrators cannot take turns by a session lock',
             'Run one migrator at a time.'),
            (not yugabyte and not current_setting('fsync')::boolean,
             'error', 'fsync', 'fsync is off: a crash may undo what was granted, or lose the database',
             'Set fsync on.'),
            (not yugabyte and current_setting('synchronous_commit') = 'off',
             'warning', 'synchronous_commit', 'commits are not waited for: after a crash of the server the last grants of every durable kind may be gone, and be given again',
             'Set it on for the role that works.'),
            (standby and not pg_is_in_recovery() and (current_setting('synchronous_standby_names') = '' or current_setting('synchronous_commit') = 'local'),
             'warning', 'synchronous_standby_names', 'there are standbys, and commits wait for none of them: one that is promoted may give the last grants of every durable kind again',
             'Set synchronous_standby_names, and synchronous_commit neither off nor local; or never promote such a standby (docs/failover.md).'),
            (forgotten is not null,
             'warning', 'tasks', forgotten,
             'Give tasks a timeout. Put back what a dead worker left: lock.set_status(id, ''new'', queue_id => ...); lock.list_tasks shows it.'),
            (uncleaned is not null,
             'notice', 'history', uncleaned,
             'Call lock.clean() once a day, as an operator, until every kind says less than max.'),
            (engine = 'advisory' and current_setting('max_locks_per_transaction')::integer < 64,
             'warning', 'max_locks_per_transaction', 'the shared lock table is smaller than by default: many keys at once fail with 53200',
             'Set it to 64 or more, and restart.'),
            (current_setting('idle_in_transaction_session_timeout') = '0',
             'notice', 'idle_in_transaction_session_timeout', 'a client that hangs in a transaction keeps its locks for ever',
             'Set it to the longest pause that your programs make inside a transaction.')
    ) as candidate (applies, severity, subject, finding, remedy)
    where candidate.applies;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/check.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

comment on function lock.check() is
    'What is wrong with this server for the locks of this schema, one row per finding; no row: '
    'nothing. Severity error: something will not work. Severity warning: it works with a limit '
    'that the finding names. Severity notice: good to know. It reads settings as this session has '
    'them: call it as the role, and through the pooler, that will work. Works on PostgreSQL and '
    'YugabyteDB, and on a standby. Writes nothing, and costs milliseconds.';

-- file: sql/functions/admin/check_role.sql
-- +goose StatementBegin
-- check_role refuses a role that is null or does not exist.
create or replace function lock_internal.check_role(
    role  name
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_role.role is null then
        raise exception 'role must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the name of a role.';
    elsif not exists (
        select
        from pg_roles
        where pg_roles.rolname = check_role.role
    ) then
        raise exception 'role "%" does not exist', check_role.role
            using errcode = 'undefined_object',
                  hint = 'Pass the name of a role. To give everybody (public) a function, grant that function.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/set_rights.sql
-- +goose StatementBegin
-- set_rights makes every role's rights on both schemas what lock_internal.wanted_rights says, and
-- so takes from everybody what default privileges, a restore without ACLs or a hand gave.
--
-- A role that is gone is forgotten first: another of its name would have its rights.
create or replace function lock_internal.set_rights()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    forgotten  name;
    wrong      record;
begin
    for forgotten in
        delete from lock.granted_role
        where granted_role.role not in (select pg_roles.rolname from pg_roles)
        returning granted_role.role
    loop
        raise warning 'role "%" is gone, and so is what it was granted on schema lock', forgotten;
    end loop;
    for wrong in
        select distinct actual.grantee, actual.object
        from lock_internal.actual_rights() as actual
        where (actual.grantee, actual.object, actual.privilege) not in (
            select wanted.grantee, wanted.object, wanted.privilege
            from lock_internal.wanted_rights() as wanted
        )
    loop
        execute format('revoke all on %s from %s cascade', wrong.object, wrong.grantee);
    end loop;
    for wrong in
        select wanted.grantee, wanted.object, wanted.privilege
        from lock_internal.wanted_rights() as wanted
        except
        select actual.grantee, actual.object, actual.privilege
        from lock_internal.actual_rights() as actual
    loop
        execute format('grant %s on %s to %s', wrong.privilege, wrong.object, wrong.grantee);
    end loop;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/grant_role.sql
-- +goose StatementBegin
-- grant_role writes down that a role is granted a level, and makes all rights what is written.
create or replace function lock_internal.grant_role(
    role   name,
    level  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_role(grant_role.role);
    insert into lock.granted_role (role, level)
    values (grant_role.role, grant_role.level)
    on conflict do nothing;
    perform lock_internal.set_rights();
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/grant_monitor_to.sql
-- +goose StatementBegin
-- grant_monitor_to lets a role see everything of the schema and change nothing.
create or replace function lock.grant_monitor_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_monitor_to.role, 'monitor');
end;
$$;
-- +goose StatementEnd

comment on function lock.grant_monitor_to(name) is
    'For the schema''s owner. Lets a role look and nothing else. It is for the console, '
    'dashboards and people on call. The role may read every table and view of the schema, '
    'payloads included. It may call the functions that only look, such as lock.who, lock.check '
    'and lock.help. It can change nothing, and take no lock that others wait for. The queries of '
    'other roles'' sessions show to members of pg_monitor only. A superuser gives that: grant '
    'pg_monitor to role. Everybody loses every right on the schema that no such call gave. '
    'lock.revoke_from takes it back. Later migrations extend it by themselves. A role that has '
    'another grant keeps it. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';

-- file: sql/functions/admin/grant_operator_to.sql
-- +goose StatementBegin
-- grant_operator_to lets a role see everything of the schema, and do what operators do.
create or replace function lock.grant_operator_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_operator_to.role, 'operator');
end;
$$;
-- +goose StatementEnd

comment on function lock.grant_operator_to(name) is
    'For the schema''s owner. Lets a role do what people do in an incident, or to keep house. It '
    'may do what lock.grant_monitor_to allows. Besides it may release by force, cancel, pause, '
    'resume, retry, put tasks back, purge, and drop what is unused. It takes no lock, captures '
    'nothing, and writes to no table itself. To end sessions it needs pg_signal_backend, which a '
    'superuser gives. Everybody loses every right on the schema that no such call gave. '
    'lock.revoke_from takes it back. Later migrations extend it by themselves. A role that has '
    'another grant keeps it. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';

-- file: sql/functions/admin/grant_to.sql
-- +goose StatementBegin
-- grant_to gives a role every function and view that programs use, and no table.
create or replace function lock.grant_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_to.role, 'application');
end;
$$;
-- +goose StatementEnd

comment on function lock.grant_to(name) is
    'For the schema''s owner, who must call it. Makes a role an application: it may call every '
    'function that programs use, and read the views. It may touch no table, and do nothing that '
    'is for operators (lock.grant_operator_to) or the owner. Everybody else loses every right on '
    'the schema that no such call gave. Later migrations extend it by themselves. '
    'lock.revoke_from takes it back. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';

-- file: sql/functions/admin/grant_tracking_to.sql
-- +goose StatementBegin
-- grant_tracking_to lets a role's tables be tracked by lock.track_changes.
create or replace function lock.grant_tracking_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_tracking_to.role, 'tracking');
end;
$$;
-- +goose StatementEnd

comment on function lock.grant_tracking_to(name) is
    'For the schema''s owner. Lets the tables that a role owns be tracked: see '
    'lock.track_changes. Such a role can put any update request into any queue, by a trigger that '
    'it makes itself. It gets no other right. Everybody loses every right on the schema that no '
    'such call gave. lock.revoke_from takes it back. Errors: 22004 null, 42704 unknown role, '
    '42501 not the owner.';

-- file: sql/functions/admin/wrap.sql
-- +goose StatementBegin
-- wrap breaks a text at spaces into lines of at most 80 characters; all but the first are indented.
create or replace function lock_internal.wrap(
    paragraph  text,
    first      integer,
    others     integer
)
returns setof text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    line  text := repeat(' ', first);
    word  text;
begin
    foreach word in array string_to_array(btrim(regexp_replace(paragraph, '[[:space:]]+', ' ', 'g')), ' ') loop
        if btrim(line) <> '' and length(line) + 1 + length(word) > 80 then
            return next line;
            line := repeat(' ', others);
        end if;
        line := line || case when btrim(line) = '' then '' else ' ' end || word;
        while length(line) > 80 loop
            return next left(line, 80);
            line := repeat(' ', others) || substr(line, 81);
        end loop;
    end loop;
    return next rtrim(line);
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/manual.sql
-- +goose StatementBegin
-- manual returns what lock.help prints of one name, or of all names when it is null: signatures and
-- comments.
create or replace function lock_internal.manual(
    name  text
)
returns setof text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    entry      record;
    paragraph  text;
    previous   text := '';
begin
    for entry in
        select
            pg_proc.proname::text as name,
            format(
                'lock.%s(%s) returns %s', pg_proc.proname, pg_get_function_arguments(pg_proc.oid), pg_get_function_result(pg_proc.oid)
            ) as signature,
            obj_description(pg_proc.oid, 'pg_proc') as comment
        from pg_proc
        where pg_proc.pronamespace = 'lock'::regnamespace
          and pg_proc.prorettype <> 'trigger'::regtype
        union all
        select
            pg_class.relname::text,
            format('view lock.%s (%s)', pg_class.relname, (
                select string_agg(format('%s %s', attname, format_type(atttypid, atttypmod)), ', ' order by attnum)
                from pg_attribute
                where attrelid = pg_class.oid and attnum > 0 and not attisdropped
            )),
            obj_description(pg_class.oid, 'pg_class')
        from pg_class
        where pg_class.relnamespace = 'lock'::regnamespace
          and pg_class.relkind = 'v'
        order by 1, 2
    loop
        continue when manual.name <> entry.name;
        if previous <> '' then
            return next '';
        end if;
        previous := entry.name;
        return query select lock_internal.wrap(entry.signature, 0, 8);
        foreach paragraph in array string_to_array(coalesce(entry.comment, ''), E'\n') loop
            return query select lock_internal.wrap(paragraph, 4, 4);
        end loop;
    end loop;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/check_id.sql
-- +goose StatementBegin
-- check_id refuses an id, name or owner that is null, empty or longer than 1024 bytes.
create or replace function lock_internal.check_id(
    value  text,
    what   text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null then
        raise exception '% must not be null', what
            using errcode = 'null_value_not_allowed',
                  hint = format('Pass a text of 1 to 1024 bytes as %s.', what);
    elsif value = '' then
        raise exception '% must not be empty', what
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass a text of 1 to 1024 bytes as %s.', what);
    elsif octet_length(value) > 1024 then
        raise exception '% is % bytes long, and at most 1024 are allowed', what, octet_length(value)
            using errcode = 'invalid_parameter_value',
                  hint = 'Use a shorter text, for example encode(sha256(convert_to(id, ''UTF8'')), ''hex'').';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/admin/help.sql
-- +goose StatementBegin
-- help prints the manual: the comments of all functions and views, in lines of at most 80
-- characters.
create or replace function lock.help()
returns setof text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query select lock_internal.manual(null);
end;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function lock.help(
    function  text
)
returns setof text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted  text;
    near    text;
begin
    perform lock_internal.check_id(help.function, 'function');
    wanted := regexp_replace(lower(btrim(help.function)), '^lock[.]|[(].*$', '', 'g');
    return query select lock_internal.manual(wanted);
    if found then
        return;
    end if;
    select string_agg(candidate.name, ', ' order by candidate.name)
    into near
    from (
        select pg_proc.proname::text as name
        from pg_proc
        where pg_proc.pronamespace = 'lock'::regnamespace
          and pg_proc.prorettype <> 'trigger'::regtype
        union
        select pg_class.relname
        from pg_class
        where pg_class.relnamespace = 'lock'::regnamespace
          and pg_class.relkind = 'v'
    ) as candidate
    where starts_with(candidate.name, left(wanted, 3))
       or exists (
            select
            from unnest(string_to_array(wanted, '_')) as word
            where length(word) > 2
              and strpos(candidate.name, rtrim(word, 's')) > 0
        );
    raise exception 'there is no function or view lock.%', left(wanted, 63)
        using errcode = 'no_data_found',
              hint = coalesce('Did you mean one of these: ' || near || '? ', '') || 'select lock.help() prints all of them.';
end;
$$;
-- +goose StatementEnd

comment on function lock.help() is
    'The manual: every function and view of schema lock with its comment, in lines of at most 80 '
    'characters. In psql, \pset format unaligned and \t print it bare. Reads the catalogue, '
    'writes nothing, and works on a standby.';

comment on function lock.help(text) is
    'The manual of one function, with all its overloads, or of one view, in lines of at most 80 '
    'characters. The name may have the schema in front, as in lock.capture. Errors: 22004 null, '
    '22023 empty or longer than 1024 bytes, P0002 no such name; the hint has names that are like '
    'it.';

-- file: sql/functions/admin/revoke_from.sql
-- +goose StatementBegin
-- revoke_from takes back everything that a role has in the schema.
create or replace function lock.revoke_from(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_role(revoke_from.role);
    delete from lock.granted_role
    where granted_role.role = revoke_from.role;
    perform lock_internal.set_rights();
end;
$$;
-- +goose StatementEnd

comment on function lock.revoke_from(name) is
    'For the schema''s owner, who must call it. Takes back everything that a role has on the '
    'schema: what lock.grant_to, lock.grant_monitor_to, lock.grant_operator_to and '
    'lock.grant_tracking_to gave, and anything else. It takes effect at once. Locks that are held '
    'go on until their transactions end. Everybody else loses every right on the schema that no '
    'such call gave. Errors: 22004 null, 42704 unknown role, 42501 not the owner.';

-- file: sql/functions/common/give_up.sql
-- +goose StatementBegin
-- give_up ends a loop that too many times found its row taken and then free again.
create or replace function lock_internal.give_up(
    kind  text,
    id    text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception '% "%" changed hands again and again, or is not visible to this transaction', kind, id
        using errcode = 'serialization_failure',
              hint = 'Retry the transaction.';
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/await_row.sql
-- +goose StatementBegin
-- await_row ends a round of a call that found its row free but held by another transaction.
--
-- In the first round the call's insert has waited for any transaction that makes, changes or
-- deletes the row. It does not wait for a transaction that has only locked the row. From the second
-- round on, this function waits for that one, too. The subtransaction's rollback lets go of the
-- row, so a losing caller keeps nobody from it afterwards.
create or replace function lock_internal.await_row(
    target     regclass,
    id_column  name,
    id         text,
    round      integer
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if await_row.round = 100 then
        perform lock_internal.give_up(await_row.target::text, await_row.id);
    elsif await_row.round > 1 then
        execute format('select from %s where %I = $1 for no key update', await_row.target, await_row.id_column)
        using await_row.id;
        raise exception 'the row is free'
            using errcode = 'LK003';
    end if;
exception
    when sqlstate 'LK003' then
        null;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/check_count.sql
-- +goose StatementBegin
-- check_count refuses a number of things that is null or below 1.
create or replace function lock_internal.check_count(
    value  integer,
    what   text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null then
        raise exception '% must not be null', what
            using errcode = 'null_value_not_allowed',
                  hint = format('Pass a number of at least 1 as %s.', what);
    elsif value < 1 then
        raise exception '% must be at least 1, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass a number of at least 1 as %s.', what);
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/check_interval.sql
-- +goose StatementBegin
-- check_interval refuses an interval that is null, infinite, or over 100 years.
--
-- It must be positive in every month. Where a fixed length is needed, it must not have months.
create or replace function lock_internal.check_interval(
    value  interval,
    what   text,
    fixed  boolean
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null then
        raise exception '% must not be null', what
            using errcode = 'null_value_not_allowed',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif not isfinite(value) then
        raise exception '% must be finite, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif fixed and extract(year from value) * 12 + extract(month from value) <> 0 then
        raise exception '% must have a fixed length, and % contains months', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Months and years differ in length: use days, hours or seconds.';
    elsif value <= interval '0' then
        raise exception '% must be positive, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass an interval such as ''15 seconds'' as %s.', what);
    elsif value > interval '36525 days' or timestamp '2000-01-01' + value > timestamp '2100-01-01' then
        raise exception '% must be at most 36525 days (100 years), not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass a shorter interval.';
    elsif timestamp '2001-02-01' + value <= timestamp '2001-02-01' then
        raise exception '% must be positive in every month, and % is not', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Do not mix positive months with negative days.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/check_primary.sql
-- +goose StatementBegin
-- check_primary refuses to work on a standby, where a lock would exclude nobody.
create or replace function lock_internal.check_primary()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_is_in_recovery() then
        raise exception 'a lock on a standby would exclude nobody'
            using errcode = 'read_only_sql_transaction',
                  hint = 'Connect to the primary, for example with target_session_attrs=read-write.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/is_yugabyte.sql
-- +goose StatementBegin
-- is_yugabyte says whether this server is YugabyteDB.
--
-- It is declared immutable so that a plan folds it into a constant. That is sound, because no
-- server changes what it is.
create or replace function lock_internal.is_yugabyte()
returns boolean
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select version() like '%-YB-%';
$$;
-- +goose StatementEnd

-- file: sql/functions/common/check_read_committed.sql
-- +goose StatementBegin
-- check_read_committed refuses a transaction whose statements do not see what was committed before
-- they began.
--
-- What is taken under a lock must be read on a snapshot that is newer than the lock.
create or replace function lock_internal.check_read_committed(
    what  text
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    isolation  text := current_setting('transaction_isolation');
begin
    if lock_internal.is_yugabyte() and to_regproc('yb_get_effective_transaction_isolation_level') is not null then
        execute format('select %s()', to_regproc('yb_get_effective_transaction_isolation_level')) into isolation;
    end if;
    if isolation not in ('read committed', 'read uncommitted') then
        raise exception '% are captured under READ COMMITTED, and this transaction is %', what, upper(isolation)
            using errcode = 'invalid_transaction_state',
                  hint = 'Begin it with: begin isolation level read committed. On YugabyteDB enable yb_enable_read_committed_isolation.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/check_text.sql
-- +goose StatementBegin
-- check_text refuses a text for people that is null, blank or longer than 1024 bytes.
create or replace function lock_internal.check_text(
    value  text,
    what   text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(value, what);
    if ltrim(value, E' \t\n\x0b\f\r') = '' then
        raise exception '% must not be blank', what
            using errcode = 'invalid_parameter_value',
                  hint = format('Say in %s who does it and why.', what);
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/check_writable.sql
-- +goose StatementBegin
-- check_writable refuses a call that could never be granted, as nothing can be stored. A denial
-- stores nothing: so without this check such a call would be denied.
create or replace function lock_internal.check_writable()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_primary();
    if current_setting('transaction_read_only')::boolean then
        raise exception 'a lock cannot be stored in a read-only transaction'
            using errcode = 'read_only_sql_transaction',
                  hint = 'Begin the transaction with read write, and look at default_transaction_read_only.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/full_hour.sql
-- +goose StatementBegin
-- full_hour is the start of an hour. The columns unused_since hold it, so that their indexes change
-- once an hour. It is cheaper than date_trunc.
create or replace function lock_internal.full_hour(
    at  timestamp
)
returns timestamp
language sql
immutable
parallel safe
as $$
    select date_bin(interval '1 hour', full_hour.at, timestamp 'epoch');
$$;
-- +goose StatementEnd

-- file: sql/functions/common/record_forced_release.sql
-- +goose StatementBegin
-- record_forced_release writes down which operator took a lock from its holder, why, and what was
-- taken.
create or replace function lock_internal.record_forced_release(
    kind      text,
    id        text,
    reason    text,
    previous  jsonb
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into lock.forced_release (kind, id, reason, released_by, previous)
    values (record_forced_release.kind, record_forced_release.id, record_forced_release.reason, session_user, record_forced_release.previous);
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/common/utc.sql
-- +goose StatementBegin
-- utc is a time as the clocks of UTC show it. An interval that is added to it depends on no
-- session's time zone.
--
-- It uses an offset of zero, because the name of a zone would be looked up at each call.
create or replace function lock_internal.utc(
    at  timestamptz
)
returns timestamp
language sql
immutable
parallel safe
as $$
    select utc.at at time zone interval '0';
$$;
-- +goose StatementEnd

-- file: sql/functions/common/unused_before.sql
-- +goose StatementBegin
-- unused_before checks the arguments of the functions that drop unused ids.
--
-- It returns, in UTC, the latest start of an hour all of which was over at least unused_for ago.
create or replace function lock_internal.unused_before(
    unused_for  interval,
    max         integer
)
returns timestamp
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_interval(unused_before.unused_for, 'unused_for', false);
    perform lock_internal.check_count(unused_before.max, 'max');
    return lock_internal.utc(clock_timestamp()) - unused_before.unused_for - interval '1 hour';
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/migration/end_migration.sql
-- +goose StatementBegin
-- end_migration notes that a migration is done, and gives every role what it was granted of that
-- which came with it, and nothing else.
create or replace function lock_internal.end_migration(
    version    bigint,
    direction  text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if end_migration.direction = 'up' then
        insert into lock.migration (version)
        values (end_migration.version)
        on conflict do nothing;
    else
        delete from lock.migration
        where migration.version = end_migration.version;
    end if;
    perform lock_internal.set_rights();
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/migration/keep_grant.sql
-- +goose StatementBegin
-- keep_grant leaves out a role that is granted already, as when the data of another database are
-- restored into one that has been migrated.
create or replace function lock_internal.keep_grant()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform
    from lock.granted_role
    where granted_role.role = new.role
      and granted_role.level = new.level;
    if found then
        return null;
    end if;
    return new;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/migration/keep_migration.sql
-- +goose StatementBegin
-- keep_migration leaves out a migration that is noted already, as when the data of another database
-- are restored into one that has been migrated.
create or replace function lock_internal.keep_migration()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform
    from lock.migration
    where migration.version = new.version;
    if found then
        return null;
    end if;
    return new;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/migration/refuse_dependents.sql
-- +goose StatementBegin
-- refuse_dependents stops a migration that goes down when an application's view is built on a
-- relation that it drops.
--
-- PostgreSQL would refuse the drop as well. It would name the view in a detail that goose does not
-- print.
create or replace function lock_internal.refuse_dependents(
    relations  text[]
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    dependents  text;
begin
    select string_agg(distinct format('%s is built on %s', pg_rewrite.ev_class::regclass, relation), '; ')
    into dependents
    from unnest(refuse_dependents.relations) as relation
    join pg_depend
      on pg_depend.refclassid = 'pg_class'::regclass
      and pg_depend.refobjid = to_regclass(relation)
      and pg_depend.classid = 'pg_rewrite'::regclass
    join pg_rewrite on pg_rewrite.oid = pg_depend.objid
    join pg_class on pg_class.oid = pg_rewrite.ev_class
    where pg_class.relnamespace <> 'lock'::regnamespace;
    if dependents is not null then
        raise exception '%', dependents
            using errcode = 'dependent_objects_still_exist',
                  hint = 'Drop the view, run goose down, and create the view again after the next goose up.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/migration/refuse_loss.sql
-- +goose StatementBegin
-- refuse_loss stops a migration that goes down over rows that somebody still needs, unless
-- lock.drop is 'everything'.
--
-- The exclusive lock comes first. Otherwise rows that an open transaction is about to add would be
-- dropped uncounted. So they would be under a snapshot that is older than the lock. goose prints
-- neither hints nor warnings: the error's message says it all, and the warning is for the server's
-- log.
create or replace function lock_internal.refuse_loss(
    relation   text,
    condition  text,
    what       text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    lost  bigint;
begin
    if to_regclass(refuse_loss.relation) is null then
        return;
    end if;
    if version() not like '%-YB-%' and refuse_loss.relation like 'lock.%' then
        if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
            raise exception E'goose down counts what it would drop under READ COMMITTED: run it with PGOPTIONS=\'-c default_transaction_isolation=read\\ committed\''
                using errcode = 'active_sql_transaction',
                      hint = 'In a DSN the setting is options=-c%20default_transaction_isolation%3Dread%5C%20committed.';
        end if;
        execute 'lock table ' || refuse_loss.relation || ' in access exclusive mode';
    end if;
    execute format('select count(*) from %s where %s', refuse_loss.relation, refuse_loss.condition) into lost;
    if lost = 0 then
        return;
    elsif current_setting('lock.drop', true) is distinct from 'everything' then
        raise exception 'goose down would drop what is needed: % % (%); run it with PGOPTIONS=''-c lock.drop=everything'' to drop it all the same',
            lost, refuse_loss.what, refuse_loss.relation
            using errcode = 'object_in_use',
                  hint = 'In a DSN the setting is options=-c%20lock.drop%3Deverything.';
    end if;
    raise warning 'goose down drops % % (%)', lost, refuse_loss.what, refuse_loss.relation;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/migration/start_migration.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- end of functions

create or replace trigger migration_keep
    before insert on lock.migration
    for each row execute function lock_internal.keep_migration();

create or replace trigger granted_role_keep
    before insert on lock.granted_role
    for each row execute function lock_internal.keep_grant();

-- The roles that had grants when the schema was last dropped have them again: see Down.
-- +goose StatementBegin
do $$
declare
    kept  constant jsonb := substring(
        obj_description(to_regclass('public.lock_goose_version'), 'pg_class') from '^Granted before the last Down: (.*)$'
    )::jsonb;
begin
    if kept is not null then
        insert into lock.granted_role (role, level)
        select granted.role, granted.level
        from jsonb_to_recordset(kept) as granted (role name, level text)
        join pg_roles on pg_roles.rolname = granted.role
        on conflict do nothing;
        comment on table public.lock_goose_version is null;
    end if;
end;
$$;
-- +goose StatementEnd

select lock_internal.end_migration(20261101000100, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;

-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is not null then
        perform lock_internal.start_migration(20261101000100, 0, 'down');
    end if;
end;
$$;
-- +goose StatementEnd

-- The schema's grants go with it. So the roles that had them are kept outside the schema: on
-- goose's table, which is the migrator's own.
-- +goose StatementBegin
do $$
declare
    kept  jsonb;
begin
    if to_regclass('lock.granted_role') is null then
        return;
    end if;
    select jsonb_agg(granted_role) into kept from lock.granted_role;
    if kept is null then
        return;
    end if;
    raise warning 'goose down drops the grants of %', kept;
    if to_regclass('public.lock_goose_version') is not null then
        execute format('comment on table public.lock_goose_version is %L', 'Granted before the last Down: ' || kept::text);
    end if;
end;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
do $$
begin
    if to_regclass('lock.migration') is not null then
        drop trigger if exists migration_keep on lock.migration;
    end if;
    if to_regclass('lock.granted_role') is not null then
        drop trigger if exists granted_role_keep on lock.granted_role;
    end if;
end;
$$;
-- +goose StatementEnd

-- functions of common, migration, admin: written by make migration, not by hand

-- gone: sql/functions/migration/start_migration.sql
drop function if exists lock_internal.start_migration(bigint, bigint, text);

-- gone: sql/functions/migration/refuse_loss.sql
drop function if exists lock_internal.refuse_loss(text, text, text);

-- gone: sql/functions/migration/refuse_dependents.sql
drop function if exists lock_internal.refuse_dependents(text[]);

-- gone: sql/functions/migration/keep_migration.sql
drop function if exists lock_internal.keep_migration();

-- gone: sql/functions/migration/keep_grant.sql
drop function if exists lock_internal.keep_grant();

-- gone: sql/functions/migration/end_migration.sql
drop function if exists lock_internal.end_migration(bigint, text);

-- gone: sql/functions/common/unused_before.sql
drop function if exists lock_internal.unused_before(interval, integer);

-- gone: sql/functions/common/utc.sql
drop function if exists lock_internal.utc(timestamptz);

-- gone: sql/functions/common/record_forced_release.sql
drop function if exists lock_internal.record_forced_release(text, text, text, jsonb);

-- gone: sql/functions/common/full_hour.sql
drop function if exists lock_internal.full_hour(timestamp);

-- gone: sql/functions/common/check_writable.sql
drop function if exists lock_internal.check_writable();

-- gone: sql/functions/common/check_text.sql
drop function if exists lock_internal.check_text(text, text);

-- gone: sql/functions/common/check_read_committed.sql
drop function if exists lock_internal.check_read_committed(text);

-- gone: sql/functions/common/is_yugabyte.sql
drop function if exists lock_internal.is_yugabyte();

-- gone: sql/functions/common/check_primary.sql
drop function if exists lock_internal.check_primary();

-- gone: sql/functions/common/check_interval.sql
drop function if exists lock_internal.check_interval(interval, text, boolean);

-- gone: sql/functions/common/check_count.sql
drop function if exists lock_internal.check_count(integer, text);

-- gone: sql/functions/common/await_row.sql
drop function if exists lock_internal.await_row(regclass, name, text, integer);

-- gone: sql/functions/common/give_up.sql
drop function if exists lock_internal.give_up(text, text);

-- gone: sql/functions/admin/revoke_from.sql
drop function if exists lock.revoke_from(name);

-- gone: sql/functions/admin/help.sql
drop function if exists lock.help();
drop function if exists lock.help(text);

-- gone: sql/functions/common/check_id.sql
drop function if exists lock_internal.check_id(text, text);

-- gone: sql/functions/admin/manual.sql
drop function if exists lock_internal.manual(text);

-- gone: sql/functions/admin/wrap.sql
drop function if exists lock_internal.wrap(text, integer, integer);

-- gone: sql/functions/admin/grant_tracking_to.sql
drop function if exists lock.grant_tracking_to(name);

-- gone: sql/functions/admin/grant_to.sql
drop function if exists lock.grant_to(name);

-- gone: sql/functions/admin/grant_operator_to.sql
drop function if exists lock.grant_operator_to(name);

-- gone: sql/functions/admin/grant_monitor_to.sql
drop function if exists lock.grant_monitor_to(name);

-- gone: sql/functions/admin/grant_role.sql
drop function if exists lock_internal.grant_role(name, text);

-- gone: sql/functions/admin/set_rights.sql
drop function if exists lock_internal.set_rights();

-- gone: sql/functions/admin/check_role.sql
drop function if exists lock_internal.check_role(name);

-- gone: sql/functions/admin/check.sql
drop function if exists lock.check();

-- gone: sql/functions/admin/findings.sql
drop function if exists lock_internal.findings(text);

-- gone: sql/functions/admin/wanted_rights.sql
drop function if exists lock_internal.wanted_rights();

-- gone: sql/functions/admin/some_of.sql
drop function if exists lock_internal.some_of(text[]);

-- gone: sql/functions/common/engine.sql
drop function if exists lock.engine();

-- gone: sql/functions/admin/actual_rights.sql
drop function if exists lock_internal.actual_rights();

-- end of functions

drop table if exists lock.finding;
drop table if exists lock.granted_role;
drop table if exists lock.forced_release;
drop function if exists lock_internal.is_advisory();
drop table if exists lock.migration;
drop schema if exists lock_internal;
drop schema if exists lock;
