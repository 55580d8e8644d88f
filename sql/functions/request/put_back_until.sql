-- put_back_until says until when an entity is put back; null: it is not.
create or replace function lock_internal.put_back_until(
    queue_id   text,
    entity_id  text
)
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return (
        select request.available_at
        from lock.request
        where lock_internal.entity_number(request.queue_id, request.entity_id)
              = lock_internal.entity_number(put_back_until.queue_id, put_back_until.entity_id)
          and request.settled_at is null
          and request.available_at > clock_timestamp()
        order by request.available_at desc
        limit 1
    );
end;
$$;
