-- record_forced_release writes down which operator took a lock from its holder, why, and what was
-- taken.
create or replace function lock_internal.record_forced_release(
    kind      text,
    id        text,
    reason    text,
    previous  jsonb
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into lock.forced_release (kind, id, reason, released_by, previous)
    values (record_forced_release.kind, record_forced_release.id, record_forced_release.reason, session_user, record_forced_release.previous);
end;
$$;
