-- record_action writes down what an operator does by a function that keeps no record of its own.
create or replace function lock.record_action(
    kind     text,
    id       text,
    reason   text,
    details  jsonb
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_kind(record_action.kind);
    perform lock_internal.check_text(left(record_action.id, 250), 'id');
    perform lock_internal.check_text(record_action.reason, 'reason');
    perform lock_internal.record_forced_release(
        record_action.kind, record_action.id, record_action.reason, coalesce(record_action.details, '{}')
    );
end;
$$;

comment on function lock.record_action(text, text, text, jsonb) is
    'For operators. Adds a line to lock.forced_release about an action on a queue of kind task or '
    'request that keeps no record itself, such as a retry: the console calls it. id names the '
    'queue, or queue and id; the line also has the role that logged in. It belongs to the '
    'caller''s transaction: call it together with the action. Errors: 22004 null, 22023 another '
    'kind, an empty or blank text or one longer than 1024 bytes, 25006 read-only.';
