-- row_at names the row that somebody waits for, by the address in pg_locks; null: not a row with a
-- name.
--
-- YugabyteDB has no such addresses, and shows no tuple locks. Only ids leave this function: roles
-- call it through lock.blocked.
create or replace function lock_internal.row_at(
    relation  regclass,
    page      integer,
    tuple     smallint
)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    id    text;
    name  text;
begin
    id := case row_at.relation
        when to_regclass('lock.locked_keys') then 'key'
        when to_regclass('lock.mutex') then 'task_id'
        when to_regclass('lock.timeout') then 'task_id'
        when to_regclass('lock.time_slot') then 'task_id'
        when to_regclass('lock.throttled_resource') then 'resource_id'
        when to_regclass('lock.throttled_permit') then 'resource_id'
        when to_regclass('lock.rate_limit') then 'limit_id'
        when to_regclass('lock.lease') then 'name'
        when to_regclass('lock.lease_name') then 'name'
        when to_regclass('lock.task') then 'queue_id || '': '' || id'
        when to_regclass('lock.request') then 'queue_id || '': '' || entity_id'
    end;
    if id is null or lock_internal.is_yugabyte() then
        return null;
    end if;
    execute format('select %s from %s where ctid = %L::tid', id, row_at.relation, format('(%s,%s)', row_at.page, row_at.tuple))
    into name;
    return name;
end;
$$;
