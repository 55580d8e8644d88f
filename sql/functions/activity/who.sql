-- who lists the sessions that hold a key, and those that wait for it.
--
-- It runs with the caller's rights, because PostgreSQL hides the queries of other roles by those.
create or replace function lock.who(
    key  bigint
)
returns setof lock.key_session
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
begin
    if who.key is null then
        raise exception 'key must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass a bigint, or a name of 1 to 1024 bytes.';
    end if;
    return query
    select
        activity.key,
        activity.name,
        activity.mode,
        activity.granted,
        activity.pid,
        activity.owner,
        split_part(pg_stat_activity.application_name, ' waits for ', 1),
        activity.since,
        activity.blocked_by,
        pg_stat_activity.state,
        pg_stat_activity.xact_start,
        case when activity.pid > 0 then pg_stat_activity.query else activity.details end,
        null::text
    from lock.activity
    left join pg_stat_activity on pg_stat_activity.pid = activity.pid
    where activity.kind = 'key'
      and activity.key = who.key
    order by activity.granted desc, activity.since, activity.pid;

    return query
    select
        alike.key,
        who.key::text,
        null::text, null::boolean, null::integer, null::text, null::text, null::timestamptz, null::integer[], null::text, null::timestamptz, null::text,
        format('The name %L is another key than the number %s, and is in use: see lock.who(%1$L).', who.key, who.key)
    from (select lock.key(who.key::text) as key) as alike
    where exists (select from lock.activity where activity.kind = 'key' and activity.key = alike.key);
end;
$$;

comment on function lock.who(bigint) is
    'The sessions that hold a key, and those that wait for it: a lock.key_session each; no row: '
    'nobody. Holders come first, then waiters by when they began to wait. A number and a name '
    'that look alike are different keys. When a session holds or waits for the name ''42'', '
    'lock.who(42) ends with a row without a session, whose column hint says so. For operators: it '
    'waits for nobody, locks nothing, and may be called inside a transaction. Members of '
    'pg_monitor see what sessions of other roles run, and since when. Others see null or '
    '<insufficient privilege>. On the row engine of PostgreSQL holders show only while somebody '
    'waits for them. A session that waits for a new key does not show. YugabyteDB shows '
    'transactions that are older than a second. Errors: 22004 null.';

create or replace function lock.who(
    name  text
)
returns setof lock.key_session
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted  constant bigint := lock.key(who.name);
begin
    return query
    select
        found.key,
        who.name,
        found.mode,
        found.granted,
        found.pid,
        found.owner,
        found.application,
        found.since,
        found.blocked_by,
        found.state,
        found.transaction_since,
        found.query,
        found.hint
    from lock.who(wanted) as found
    where found.hint is null;

    if who.name !~ '^(0|-?[1-9][0-9]{0,18})$' or who.name::numeric not between -9223372036854775808 and 9223372036854775807 then
        return;
    end if;
    return query
    select
        who.name::bigint,
        who.name,
        null::text, null::boolean, null::integer, null::text, null::text, null::timestamptz, null::integer[], null::text, null::timestamptz, null::text,
        format('The number %s is another key than the name %L, and is in use: see lock.who(%1$s).', who.name, who.name)
    where exists (select from lock.activity where activity.kind = 'key' and activity.key = who.name::bigint);
end;
$$;

comment on function lock.who(text) is
    'As lock.who(bigint), for lock.key(name). It also finds a name that nobody ever waited for. '
    'Its hint is about the number that looks like the name. Errors: 22004 null, 22023 empty or '
    'longer than 1024 bytes.';
