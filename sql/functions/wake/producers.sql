-- producers lists the open transactions that may have missed a worker which has just committed its line: see lock_internal.wake.
--
-- Queues share 1024 locks, so that one transaction never holds more of them; a stranger in the answer costs a look for work.
-- YugabyteDB shows locks late, and notifies always: nobody can have missed anything there.
create or replace function lock.producers(
    channel   text,
    queue_id  text,
    among     text[] default null
)
returns setof text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(producers.channel, 'channel');
    perform lock_internal.check_id(producers.queue_id, 'queue_id');
    if lock_internal.is_yugabyte() then
        return;
    end if;
    return query
        select distinct pg_locks.virtualtransaction
        from pg_locks
        where pg_locks.locktype = 'advisory'
          and pg_locks.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
          and pg_locks.classid = 2002873189
          and pg_locks.objid = (hashtext(producers.channel || ' ' || producers.queue_id) & 1023)::oid
          and pg_locks.objsubid = 2
          and (producers.among is null or pg_locks.virtualtransaction = any (producers.among));
end;
$$;

comment on function lock.producers(text, text, text[]) is
    'The open transactions (pg_locks.virtualtransaction) that have made work for the queue, or, with among, those of them that are still '
    'open. Ask after lock.start_idling, in a later transaction, and look for work when one of them is gone. Reads pg_locks. '
    'Errors: 22004 null, 22023 empty or too long.';

revoke all on function lock.producers(text, text, text[]) from public;
