-- await_request captures the next requests for the caller's transaction, or says how long to sleep.
--
-- It lists the worker as idle as lock.await_task does: one call lists, and the look of the next
-- call counts.
create or replace function lock.await_request(
    process_id  uuid,
    after       bigint    default null,
    queue_id    text      default 'default',
    worker      text      default null,
    poll        interval  default '30 seconds',
    max         integer   default 1000
)
returns table (
    request_id    bigint,
    entity_id     text,
    request_type  text,
    tries         integer,
    message       text,
    payload       jsonb,
    created_at    timestamptz,
    sleep         double precision
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    myself  constant text := coalesce(await_request.worker, 'pid ' || pg_backend_pid());
    line    bigint := coalesce(await_request.after, 0);
    began   constant timestamptz := clock_timestamp();
    listed  boolean;
begin
    perform lock_internal.check_id(await_request.queue_id, 'queue_id');
    perform lock_internal.check_id(myself, 'worker');
    perform lock_internal.check_interval(await_request.poll, 'poll', true);
    listed := lock_internal.begin_look('lock_request', await_request.queue_id, myself);
    loop
        return query
            select
                request.request_id, request.entity_id, request.request_type::text, request.tries, request.message, request.payload,
                request.created_at, 0::double precision
            from lock.capture_request(await_request.process_id, line, await_request.queue_id, await_request.max) as request;
        if found then
            if listed is not null then
                perform lock.stop_idling('lock_request', await_request.queue_id, myself);
            end if;
            return;
        end if;
        exit when line <= 0;
        line := 0;
    end loop;

    if listed is null and await_request.after > 0 then
        sleep := 0.005;
    else
        sleep := lock_internal.end_look(
            'lock_request', await_request.queue_id, myself, listed, await_request.poll,
            lock_internal.next_request_in(await_request.queue_id, began)
        );
    end if;
    return next;
end;
$$;

comment on function lock.await_request(uuid, bigint, text, text, interval, integer) is
    'Captures the next requests for the caller''s transaction, or says how long to sleep. It takes '
    'the arguments of lock.capture_request. When there are requests, it returns them: settle them '
    'with lock.settle_request before the commit. When there are none, it returns one row whose '
    'request_id is null: commit then, too. Its sleep is in seconds. A notification on channel '
    'lock_request, with the queue''s id as payload, that came since this call began ends the '
    'sleep early. Then call again, in a new transaction. Nothing is lost. The worker asks nothing '
    'between polls. While a transaction is open that may have missed the worker, it asks at most '
    'once a second. after: the request_id of the last answer''s first row; null: from the '
    'beginning. When nothing is left behind that line, the search starts from the beginning by '
    'itself. Call listen before the first call and after each reconnection. worker: a name that '
    'no other worker has; null: this session. A worker that ends calls lock.stop_idling, or does '
    'nothing. Requests of a worker that dies are found after poll at the latest. Where '
    'notifications do not arrive, pass a shorter poll. Errors: those of lock.capture_request; '
    '22023 bad worker or poll; 25001 called again in the transaction that found nothing.';
