-- retire_heads takes settled heads that are free off the queue, and makes the oldest outstanding request a head.
--
-- The caller holds the entity, and locked the heads for update before this function's snapshots: so everything that counted
-- on them is seen here.
create or replace function lock_internal.retire_heads(
    queue_id   text,
    entity_id  text,
    heads      bigint[]
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    oldest  bigint;
begin
    update lock.request
    set head = false
    where request.request_id = any (retire_heads.heads)
      and request.head
      and request.settled_at is not null;

    -- Sorted as the index by entity is, so that no other can be chosen for its order.
    select follower.request_id
    into oldest
    from lock.request as follower
    where follower.queue_id = retire_heads.queue_id
      and follower.entity_id = retire_heads.entity_id
      and follower.settled_at is null
      and not follower.head
      and follower.request_status = 'new'
    order by follower.head, follower.request_id
    limit 1;
    if found and not exists (
        select
        from lock.request
        where request.queue_id = retire_heads.queue_id
          and request.entity_id = retire_heads.entity_id
          and request.head >= true
          and request.settled_at is null
          and request.request_id < oldest
    ) then
        update lock.request
        set head = true
        where request.request_id = oldest;
    end if;
end;
$$;

comment on function lock_internal.retire_heads(text, text, bigint[]) is
    'Takes settled heads off the queue and puts the entity''s oldest outstanding request there. See lock_internal.add_request.';

revoke all on function lock_internal.retire_heads(text, text, bigint[]) from public;
