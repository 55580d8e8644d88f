-- end_look says for how many seconds a worker that found nothing sleeps, and lists it as idle.
--
-- listed is the answer that lock_internal.begin_look gave before the look. due is the time until
-- there is work that no producer announces. Zero or less means: there is work, and another open
-- transaction holds it. Nobody can tell when that transaction ends, or one that may have missed the
-- line. So the pause grows with the time since the listing. A listing in the future was made
-- before the clock was set back, and is taken for as old as it is ahead.
create or replace function lock_internal.end_look(
    channel   text,
    queue_id  text,
    worker    text,
    listed    boolean,
    poll      interval,
    due       interval
)
returns double precision
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    moment   constant timestamptz := clock_timestamp();
    lasting  constant interval := 2 * end_look.poll + interval '1 second';
    line     lock.idle_worker;
    age      interval;
    pause    interval := end_look.poll;
begin
    if end_look.listed is null then
        insert into lock.idle_worker (channel, queue_id, worker, until, since, listed_by)
        values (
            end_look.channel, end_look.queue_id, end_look.worker, moment + lasting, moment,
            pg_current_xact_id()::text::bigint
        );
        return 0;
    end if;
    if not lock_internal.is_yugabyte() then
        select *
        into line
        from lock.idle_worker
        where idle_worker.channel = end_look.channel
          and idle_worker.queue_id = end_look.queue_id
          and idle_worker.until > moment
          and idle_worker.worker = end_look.worker;
        if not found then
            return 0;
        elsif line.until < moment + end_look.poll + interval '1 second' then
            -- A look before this is committed may find that the line has run out. So the look that
            -- counts is the next one, as for a new line.
            perform lock.start_idling(end_look.channel, end_look.queue_id, end_look.worker, lasting);
            update lock.idle_worker
            set since = moment,
                listed_by = pg_current_xact_id()::text::bigint,
                horizon = null
            where idle_worker.channel = end_look.channel
              and idle_worker.queue_id = end_look.queue_id
              and idle_worker.until > moment
              and idle_worker.worker = end_look.worker;
            return 0;
        end if;
    end if;
    age := least(greatest(moment - line.since, line.since - moment), interval '1 second');
    if end_look.due > interval '0' then
        pause := least(pause, end_look.due);
    elsif end_look.due is not null then
        pause := least(pause, greatest(age, interval '0.1 seconds'));
    end if;
    if not end_look.listed then
        pause := least(pause, greatest(age, interval '0.001 seconds'));
    end if;
    return extract(epoch from pause);
end;
$$;
