-- await_row ends a round of a call that found its row free but held by another transaction.
--
-- In the first round the call's insert has waited for any transaction that makes, changes or
-- deletes the row. It does not wait for a transaction that has only locked the row. From the second
-- round on, this function waits for that one, too. The subtransaction's rollback lets go of the
-- row, so a losing caller keeps nobody from it afterwards.
create or replace function lock_internal.await_row(
    target     regclass,
    id_column  name,
    id         text,
    round      integer
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if await_row.round = 100 then
        perform lock_internal.give_up(await_row.target::text, await_row.id);
    elsif await_row.round > 1 then
        execute format('select from %s where %I = $1 for no key update', await_row.target, await_row.id_column)
        using await_row.id;
        raise exception 'the row is free'
            using errcode = 'LK003';
    end if;
exception
    when sqlstate 'LK003' then
        null;
end;
$$;
