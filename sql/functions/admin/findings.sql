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
