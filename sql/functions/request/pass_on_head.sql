-- pass_on_head makes an entity's oldest outstanding request a head when one of its heads is deleted.
--
-- The delete has waited for everybody who counts on the head, and nobody can any more. To see what they committed takes a
-- snapshot newer than that.
create or replace function lock_internal.pass_on_head()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'request % may stand for others, which this snapshot does not show', old.request_id
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Delete under READ COMMITTED, or what is settled alone: lock.purge_requests.';
    end if;
    perform lock_internal.retire_heads(old.queue_id, old.entity_id, array[]::bigint[]);
    return null;
end;
$$;

comment on function lock_internal.pass_on_head() is
    'The trigger that hands the followers of a deleted head on. Error: 55000 unless READ COMMITTED.';

revoke all on function lock_internal.pass_on_head() from public;
