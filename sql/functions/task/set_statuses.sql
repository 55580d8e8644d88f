-- set_statuses settles many captured tasks at once, and returns how many attempts were not stale.
create or replace function lock.set_statuses(
    ids       text[],
    attempts  bigint[],
    status    lock.task_status,
    queue_id  text      default 'default',
    delay     interval  default '0',
    message   text      default null,
    dead      boolean   default false
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    freed    bigint[];
    settled  bigint;
begin
    if set_statuses.ids is null then
        perform lock_internal.check_ids(set_statuses.ids);
    end if;
    perform lock_internal.check_task(set_statuses.queue_id, set_statuses.status, null, null, null);
    if set_statuses.delay is distinct from interval '0' then
        perform lock_internal.check_interval(set_statuses.delay, 'delay', true);
    end if;
    if set_statuses.dead is null or set_statuses.dead and set_statuses.status <> 'failed' then
        perform lock_internal.check_dead(set_statuses.dead, set_statuses.status);
    end if;
    freed := lock_internal.held_keys(set_statuses.queue_id, set_statuses.ids, set_statuses.attempts);
    settled := lock_internal.settle(
        set_statuses.ids,
        set_statuses.attempts,
        array_fill(case when set_statuses.dead then 'dead' else set_statuses.status::text end, array[cardinality(set_statuses.ids)]),
        set_statuses.queue_id,
        case when set_statuses.delay <> interval '0' then array_fill(set_statuses.delay, array[cardinality(set_statuses.ids)]) end,
        case when set_statuses.message <> '' then array_fill(set_statuses.message, array[cardinality(set_statuses.ids)]) end
    );
    if freed is not null then
        perform lock_internal.wake('lock_task', set_statuses.queue_id);
    end if;
    return settled;
end;
$$;

comment on function lock.set_statuses(
    text[], bigint[], lock.task_status, text, interval, text, boolean
) is
    'Settles many captured tasks in one statement, each with its attempt as in lock.set_status, '
    'and returns how many were settled. It leaves out those whose attempt is stale and those that '
    'do not exist. It does what it is told: delay, message and dead are those of lock.set_status, '
    'for all of them. Waits while another transaction is changing one of them. Errors: 22004 a '
    'null; 22023 arrays of different lengths, an id twice, in_progress, bad id or delay, dead '
    'without failed.';
