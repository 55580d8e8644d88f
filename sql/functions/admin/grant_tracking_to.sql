-- grant_tracking_to lets a role's tables be tracked by lock.track_changes.
create or replace function lock.grant_tracking_to(
    role  name
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.grant_role(grant_tracking_to.role, 'tracking');
end;
$$;

comment on function lock.grant_tracking_to(name) is
    'For the schema''s owner. Lets the tables that a role owns be tracked: see '
    'lock.track_changes. Such a role can put any update request into any queue, by a trigger that '
    'it makes itself. It gets no other right. Everybody loses every right on the schema that no '
    'such call gave. lock.revoke_from takes it back. Errors: 22004 null, 42704 unknown role, '
    '42501 not the owner.';
