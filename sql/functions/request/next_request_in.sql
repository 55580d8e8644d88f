-- next_request_in says how soon the next request that was put back until later can be captured;
-- null: there is none.
create or replace function lock_internal.next_request_in(
    queue_id  text
)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    moment  constant timestamptz := clock_timestamp();
begin
    if exists (select from lock_internal.is_paused('request', next_request_in.queue_id)) then
        return null;
    end if;
    return (
        select min(request.available_at)
        from lock.request
        where request.queue_id = next_request_in.queue_id
          and request.settled_at is null
          and request.available_at > moment
    ) - moment;
end;
$$;
