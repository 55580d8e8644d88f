-- start_idling lists a worker that listens and has nothing to do, so that producers notify it.
-- Commit it at once.
--
-- Producers lock no line of the list, and workers only their own. A worker that goes on idling
-- deletes lines of workers that died an hour ago: a hundred at most, so that nobody pays for the
-- lines of others. It skips lines that are locked.
create or replace function lock.start_idling(
    channel   text,
    queue_id  text,
    worker    text,
    lasting   interval
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    moment  constant timestamptz := clock_timestamp();
    gone    lock.idle_worker;
begin
    perform lock_internal.check_primary();
    perform lock_internal.check_id(start_idling.channel, 'channel');
    if octet_length(start_idling.channel) > 63 then
        raise exception 'a channel''s name has at most 63 bytes, and this one %', octet_length(start_idling.channel)
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass lock_task or lock_request.';
    end if;
    perform lock_internal.check_id(start_idling.queue_id, 'queue_id');
    perform lock_internal.check_id(start_idling.worker, 'worker');
    perform lock_internal.check_interval(start_idling.lasting, 'lasting', false);
    update lock.idle_worker
    set until = moment + start_idling.lasting
    where idle_worker.channel = start_idling.channel
      and idle_worker.queue_id = start_idling.queue_id
      and idle_worker.worker = start_idling.worker
      and idle_worker.until > moment;
    if not found then
        insert into lock.idle_worker (channel, queue_id, worker, until)
        values (start_idling.channel, start_idling.queue_id, start_idling.worker, moment + start_idling.lasting)
        on conflict on constraint idle_worker_pkey do nothing;
        return;
    end if;
    for gone in
        select idle_worker.*
        from lock.idle_worker
        where lock_internal.utc(idle_worker.until) < lock_internal.utc(moment - interval '1 hour')
        limit 100
        for update skip locked
    loop
        delete from lock.idle_worker
        where idle_worker.channel = gone.channel
          and idle_worker.queue_id = gone.queue_id
          and idle_worker.worker = gone.worker
          and idle_worker.until = gone.until;
    end loop;
end;
$$;

comment on function lock.start_idling(text, text, text, interval) is
    'Lists a worker as idle for lasting. Producers of the queue then notify channel, with the '
    'queue''s id as payload. For writers of workers: (1) listen; (2) call start_idling, and '
    'commit; (3) call lock.open_transactions, and commit; (4) look for work once more. Then sleep '
    'until a notification comes, or until less than lasting is over. Meanwhile ask, in growing '
    'pauses, whether one of the transactions of step 3 is gone; then look again. A worker that '
    'dies costs its queue needless notifications for lasting, and nothing else. Never waits for '
    'producers. Errors: 22004 null, 22023 empty or too long, or a bad interval; 25006 on a '
    'standby.';
