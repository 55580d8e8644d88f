-- await_row waits until nobody has the row locked, without keeping it: the subtransaction's rollback lets go.
--
-- An insert on conflict do nothing waits for whoever makes, changes or deletes a row, and not for who has only locked it.
create or replace function lock_internal.await_row(
    target     regclass,
    id_column  name,
    id         text
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('select from %s where %I = $1 for no key update', await_row.target, await_row.id_column)
    using await_row.id;
    raise exception 'the row is free'
        using errcode = 'LK003';
exception
    when sqlstate 'LK003' then
        null;
end;
$$;

comment on function lock_internal.await_row(regclass, name, text) is
    'Waits until nobody has a row locked.';

revoke all on function lock_internal.await_row(regclass, name, text) from public;
