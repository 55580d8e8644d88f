-- free_heads locks those of the given heads for update that no open producer counts on, and returns them.
create or replace function lock.free_heads(
    heads  bigint[]
)
returns bigint[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    return array(
        select request.request_id
        from lock.request
        where request.request_id = any (free_heads.heads)
        for update skip locked
    );
end;
$$;

comment on function lock.free_heads(bigint[]) is
    'Internal: locks the heads that no open producer counts on for update, and returns their ids. See lock.add_request.';

revoke all on function lock.free_heads(bigint[]) from public;
