-- record_changes is the statement trigger that records all changes of a statement as requests, and every truncate.
--
-- The transition tables of an update are filled in step, one old and one new row at a time, and a scan returns them in that
-- order: so the n-th old row is the n-th new row before the change, whatever the table has for a key.
--
-- A few rows go one by one through lock.add_request. Of many, the first of each entity is a head, without a look for another:
-- an entity may have more heads than one. Nested loops are off because the plan is kept from one statement to the next, and
-- made for a single row it would be quadratic for 100,000.
create or replace function lock.record_changes()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
as $$
declare
    changed  constant text := tg_relid::regclass;
    bulk     boolean;
begin
    if tg_op = 'TRUNCATE' then
        insert into lock.request (queue_id, entity_id, request_type, payload)
        values (tg_argv[1], tg_argv[2], 'update', jsonb_build_object('table', changed, 'operation', tg_op, 'old', null, 'new', null));
        return null;
    end if;

    perform lock.check_tracked(tg_relid, tg_argv[0]);
    if tg_op = 'DELETE' then
        bulk := 100 < (select count(*) from (select from old_rows limit 101) as sample);
    else
        bulk := 100 < (select count(*) from (select from new_rows limit 101) as sample);
    end if;
    if bulk then
        perform lock.wake('lock_request', tg_argv[1]);
    end if;

    if tg_op = 'INSERT' then
        insert into lock.request (queue_id, entity_id, request_type, payload, head)
        select tg_argv[1], entity.id, 'update', entity.payload,
               case when bulk then row_number() over (partition by entity.id order by entity.ordinal) = 1 end
        from (
            select case when octet_length(change.payload -> 'new' ->> tg_argv[0]) between 1 and 1024
                        then change.payload -> 'new' ->> tg_argv[0]
                        else changed end collate "C" as id,
                   change.payload,
                   change.ordinal
            from (
                select row_number() over () as ordinal,
                       to_jsonb(body) as payload
                from (
                    select changed as "table", tg_op as operation, null as old, new_rows as new
                    from new_rows
                ) as body
            ) as change
        ) as entity
        order by entity.id, entity.ordinal;
    elsif tg_op = 'DELETE' then
        insert into lock.request (queue_id, entity_id, request_type, payload, head)
        select tg_argv[1], entity.id, 'update', entity.payload,
               case when bulk then row_number() over (partition by entity.id order by entity.ordinal) = 1 end
        from (
            select case when octet_length(change.payload -> 'old' ->> tg_argv[0]) between 1 and 1024
                        then change.payload -> 'old' ->> tg_argv[0]
                        else changed end collate "C" as id,
                   change.payload,
                   change.ordinal
            from (
                select row_number() over () as ordinal,
                       to_jsonb(body) as payload
                from (
                    select changed as "table", tg_op as operation, old_rows as old, null as new
                    from old_rows
                ) as body
            ) as change
        ) as entity
        order by entity.id, entity.ordinal;
    else
        insert into lock.request (queue_id, entity_id, request_type, payload, head)
        select tg_argv[1], entity.id, 'update', entity.payload,
               case when bulk then row_number() over (partition by entity.id order by entity.ordinal) = 1 end
        from (
            -- Both ids, where they differ.
            select unnest(case when change.old_id = change.new_id then array[change.new_id] else array[change.old_id, change.new_id] end)
                       collate "C" as id,
                   change.payload,
                   change.ordinal
            from (
                select case when octet_length(pair.payload -> 'old' ->> tg_argv[0]) between 1 and 1024
                            then pair.payload -> 'old' ->> tg_argv[0] else changed end as old_id,
                       case when octet_length(pair.payload -> 'new' ->> tg_argv[0]) between 1 and 1024
                            then pair.payload -> 'new' ->> tg_argv[0] else changed end as new_id,
                       pair.payload,
                       pair.ordinal
                from (
                    select former.ordinal,
                           to_jsonb(body) as payload
                    from (select row_number() over () as ordinal, old_rows as line from old_rows) as former
                    join (select row_number() over () as ordinal, new_rows as line from new_rows) as latter
                        on latter.ordinal = former.ordinal
                    cross join lateral (
                        select changed as "table", tg_op as operation, former.line as old, latter.line as new
                    ) as body
                ) as pair
            ) as change
        ) as entity
        order by entity.id, entity.ordinal;
    end if;
    return null;
end;
$$;

comment on function lock.record_changes() is
    'Statement trigger of lock.track_changes. Runs with the rights of its owner, and so do casts to json of the table''s column types: grant '
    'execute only to roles that are trusted with schema lock.';

revoke all on function lock.record_changes() from public;
