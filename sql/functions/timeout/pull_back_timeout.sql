-- pull_back_timeout brings a time that lies far in the future back to now, because the clock was set back since it was stored.
--
-- Nothing is granted early: the grant was made before now, so a full interval from now is at least one from the grant. The
-- margin keeps it from steps of milliseconds and from servers whose clocks differ. A row that somebody holds is left alone.
create or replace function lock_internal.pull_back_timeout(
    task_id  text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    right_now  constant timestamptz := clock_timestamp();
begin
    update lock.timeout
    set ts = right_now, unused_since = lock_internal.full_hour(lock_internal.utc(right_now) + timeout.timeout)
    where timeout.task_id = (
        select ahead.task_id
        from lock.timeout as ahead
        where ahead.task_id = pull_back_timeout.task_id
          and lock_internal.utc(ahead.ts) > lock_internal.utc(right_now) + ahead.timeout + interval '1 minute'
        for no key update skip locked
    );
    if found then
        raise log 'timeout "%" was acquired in the future: the clock was set back; it is denied for one interval from now', pull_back_timeout.task_id;
    end if;
end;
$$;
