-- give_up ends a loop that too many times found its row taken and then free again.
create or replace function lock_internal.give_up(
    kind  text,
    id    text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception '% "%" changed hands again and again, or is not visible to this transaction', kind, id
        using errcode = 'serialization_failure',
              hint = 'Retry the transaction.';
end;
$$;
