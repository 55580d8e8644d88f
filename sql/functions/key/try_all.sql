-- try_all takes a set of keys, exclusive and shared ones, or takes none when that would take longer
-- than wait.
--
-- It walks the global order of exclusive_all, ascending key. So callers of the two that hold no key
-- before cannot deadlock. The block is a subtransaction. When one key cannot be had, its rollback
-- lets go of those that came before. The error that ends it has a code that nothing else raises.
create or replace function lock.try_all(
    exclusive_names  text[] default '{}',
    exclusive_keys   bigint[] default '{}',
    shared_names     text[] default '{}',
    shared_keys      bigint[] default '{}',
    wait             interval default '0'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    deadline  timestamptz;
    wanted    record;
begin
    if try_all.exclusive_names is null or try_all.exclusive_keys is null or try_all.shared_names is null or try_all.shared_keys is null then
        raise exception 'names and keys must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass arrays; an empty one locks nothing.';
    elsif try_all.wait is distinct from interval '0' then
        perform lock_internal.check_interval(try_all.wait, 'wait', true);
    end if;
    deadline := clock_timestamp() + try_all.wait;
    for wanted in
        select asked.key, min(asked.name) as name, bool_and(asked.shared) as shared
        from (
            select lock.key(named.name) as key, named.name collate "C" as name, false as shared
            from unnest(try_all.exclusive_names) as named (name)
            union all
            select lock_internal.key_of(numbered.key, null), null, false
            from unnest(try_all.exclusive_keys) as numbered (key)
            union all
            select lock.key(named.name), named.name collate "C", true
            from unnest(try_all.shared_names) as named (name)
            union all
            select lock_internal.key_of(numbered.key, null), null, true
            from unnest(try_all.shared_keys) as numbered (key)
        ) as asked
        group by asked.key
        order by asked.key
    loop
        if not lock_internal.try_key(wanted.key, wanted.name, wanted.shared, greatest(deadline - clock_timestamp(), interval '0')) then
            raise exception using errcode = 'LK000';
        end if;
    end loop;
    return true;
exception
    when sqlstate 'LK000' then
        return false;
end;
$$;

comment on function lock.try_all(text[], bigint[], text[], bigint[], interval) is
    'Takes a set of keys by name and by number, exclusive and shared ones, until the transaction '
    'ends, and returns true. Returns false when not all could be had within wait, and then holds '
    'what it held before and nothing more. wait is for the whole set (default 0: at once; '
    'milliseconds, at most 24.8 days). A key that is asked for several times counts once, and '
    'exclusively when it is asked for so. An empty set is true. All callers of it and of '
    'lock.exclusive_all take their keys in one global order. With one call a transaction they '
    'never deadlock with each other, whatever the order of their arrays. It is re-entrant. But '
    'keys that the transaction held before are outside that order, and so is a shared one that '
    'becomes exclusive. Then it can meet a deadlock. That ends with 40P01, or with false when '
    'wait ends first (on the row engine: always). While it waits, wait stands in for '
    'lock_timeout; statement_timeout goes on counting. Errors: 22004 null array, element or wait, '
    '22023 bad name, or a wait that is negative, infinite or has months, 53200 as '
    'lock.exclusive_all, and those of lock.try_exclusive.';
