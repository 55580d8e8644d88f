-- limit_queue says how many tasks of one key may be in progress in a queue.
--
-- The queue's own lock keeps a capture from making the same row, and waiting for this transaction.
create or replace function lock.limit_queue(
    queue_id  text,
    per_key   integer
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform lock_internal.check_id(limit_queue.queue_id, 'queue_id');
    perform lock_internal.check_count(limit_queue.per_key, 'per_key');
    perform lock_internal.check_writable();
    perform lock_internal.try_task_key(lock_internal.key_number(limit_queue.queue_id, ''));
    insert into lock.queue_limit (queue_id, per_key)
    values (limit_queue.queue_id, limit_queue.per_key)
    on conflict (queue_id) do update
    set per_key = excluded.per_key
    where queue_limit.per_key <> excluded.per_key;
    perform lock_internal.wake('lock_task', limit_queue.queue_id);
end;
$$;

comment on function lock.limit_queue(text, integer) is
    'Sets how many tasks of one key may be in progress at once in a queue: 1 without this call. '
    'Call it at each deploy. When it is lowered, what is in progress goes on, and the limit is '
    'met as that ends. Works for queues that have nothing yet. Wakes idle workers at commit. '
    'Waits while an open transaction limits the same queue, or has captured a task with a key '
    'there. Errors: 22004 null; 22023 bad queue_id, per_key below 1; 25006 read-only; 40001 under '
    'REPEATABLE READ and SERIALIZABLE.';
