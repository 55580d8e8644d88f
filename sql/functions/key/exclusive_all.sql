-- exclusive_all takes several names, each exclusively, in one global order: ascending key.
--
-- Consider transactions whose only key locks come from one call of exclusive_all each. They cannot
-- deadlock, whatever the order of their arrays, because all take the keys in the same order.
create or replace function lock.exclusive_all(
    names  text[]
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    next_name  text;
begin
    if exclusive_all.names is null then
        raise exception 'names must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass an array of names; an empty one locks nothing.';
    end if;
    for next_name in
        select min(wanted.name)
        from unnest(exclusive_all.names) as wanted (name)
        group by lock.key(wanted.name)
        order by lock.key(wanted.name)
    loop
        perform lock.exclusive(next_name);
    end loop;
end;
$$;

comment on function lock.exclusive_all(text[]) is
    'Takes an exclusive lock on every name, in one global order. So its callers never deadlock '
    'with each other, whatever the order of their arrays. That holds for one call a transaction: '
    'a second call, or other locks held before, can deadlock (40P01). Waits as lock.exclusive '
    'does. Duplicates count once, and an empty array locks nothing. On the advisory engine every '
    'key takes a slot of the shared lock table until the transaction ends. When '
    'max_locks_per_transaction is too small for them, that is 53200 with a hint. Errors: 22004 '
    'null array or element, 22023 bad name, and those of lock.exclusive.';
