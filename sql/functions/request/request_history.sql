-- request_history returns the newest requests of an entity, outstanding and settled, newest first.
create or replace function lock.request_history(
    entity_id  text,
    queue_id   text     default 'default',
    max        integer  default 100
)
returns setof lock.request
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform lock_internal.check_id(request_history.entity_id, 'entity_id');
    perform lock_internal.check_id(request_history.queue_id, 'queue_id');
    perform lock_internal.check_count(request_history.max, 'max');
    return query
        select *
        from (
            (
                select *
                from lock.request
                where request.queue_id = request_history.queue_id
                  and request.entity_id = request_history.entity_id
                  and request.settled_at is not null
                order by request.request_id desc
                limit request_history.max
            )
            union all
            (
                select *
                from lock.request
                where request.queue_id = request_history.queue_id
                  and request.entity_id = request_history.entity_id
                  and request.settled_at is null
                order by request.request_id + 0 desc
                limit request_history.max
            )
        ) as newest
        order by newest.request_id desc
        limit request_history.max;
end;
$$;

comment on function lock.request_history(text, text, integer) is
    'The newest max requests of an entity, outstanding and settled, newest first. Each shows when '
    'it was made, started and settled, by which process, how often it was tried, and its message. '
    'Never waits. A request that a worker has now shows as new until that worker commits. Errors: '
    '22004 null, 22023 bad id or max.';
