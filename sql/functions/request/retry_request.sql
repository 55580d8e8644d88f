-- retry_request enqueues a request that ended in error once more, as a new request at the queue's
-- end.
--
-- The old request stays as history. Two callers that retry one request at once make two new
-- updates, as two calls of enqueue do. Of a create they make one, since an entity has one create
-- that is not in error.
create or replace function lock.retry_request(
    request_id  bigint
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    ended  lock.request;
begin
    if retry_request.request_id is null then
        raise exception 'request_id must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the id of a request that ended in error; lock.request_history shows it.';
    end if;
    select *
    into ended
    from lock.request
    where request.request_id = retry_request.request_id;
    if not found then
        raise exception 'there is no request %', retry_request.request_id
            using errcode = 'no_data_found',
                  hint = 'It may have been purged: call lock.enqueue as you did the first time.';
    elsif ended.request_status <> 'error' then
        raise exception 'request % is %, and only a request that ended in error can be retried', ended.request_id, ended.request_status
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Wait for a new or in-progress request. To do a complete one again, call lock.enqueue.';
    end if;
    return lock.enqueue(ended.request_type::text, ended.entity_id, ended.payload, ended.queue_id);
end;
$$;

comment on function lock.retry_request(bigint) is
    'Enqueues a request that ended in error once more, at the end of its queue, and returns the '
    'new request''s id. The old request stays as history. It is part of the caller''s '
    'transaction, and waits as lock.enqueue does. Called twice it enqueues an update twice. '
    'Errors: 22004 null, P0002 no such request, 55000 it is not in error, 23505 a create whose '
    'entity has been created since.';
