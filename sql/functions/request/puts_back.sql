-- puts_back says whether any entity of a queue is put back until later.
create or replace function lock_internal.puts_back(
    queue_id  text
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return exists (
        select
        from lock.request
        where request.queue_id = puts_back.queue_id
          and request.settled_at is null
          and request.available_at > clock_timestamp()
    );
end;
$$;
