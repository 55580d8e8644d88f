-- next_request_in says how soon the next request can be captured that was put back until later than
-- since, when a look began; null: there is none.
create or replace function lock_internal.next_request_in(
    queue_id  text,
    since     timestamptz
)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    if exists (select from lock_internal.is_paused('request', next_request_in.queue_id)) then
        return null;
    end if;
    return (
        select min(request.available_at)
        from lock.request
        where request.queue_id = next_request_in.queue_id
          and request.settled_at is null
          and request.available_at > next_request_in.since
    ) - clock_timestamp();
end;
$$;
