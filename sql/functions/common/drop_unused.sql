-- drop_unused deletes the rows of a table that have been unused longest, by its column and index unused_since.
--
-- That column holds whole hours, so that the index changes once an hour and not with every grant; only hours that are over
-- count, which makes every row of them old enough; free_at, an expression, is asked as well. The row is checked again under its lock, and one that a transaction
-- holds is passed over, so what is being acquired stays. Sorting and scanning plans are switched off: the index alone keeps
-- a call at O(log n + max).
create or replace function lock_internal.drop_unused(
    target      regclass,
    id_column   name,
    free_at     text,
    unused_for  interval,
    max         integer
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    ids      text[];
    dropped  bigint;
begin
    perform lock_internal.check_drop(drop_unused.unused_for, drop_unused.max);
    execute format(
        'select array_agg(oldest.id) from ('
        ' select %1$I as id from %2$s where unused_since <= $1 and %3$s < $1 order by unused_since limit $2 for update skip locked) as oldest',
        drop_unused.id_column, drop_unused.target, drop_unused.free_at
    )
    into ids
    using lock_internal.unused_before(drop_unused.unused_for), drop_unused.max;
    execute format('delete from %2$s where %1$I = any($1)', drop_unused.id_column, drop_unused.target)
    using ids;
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;

comment on function lock_internal.drop_unused(regclass, name, text, interval, integer) is
    'Deletes at most max rows that have been unused for longest and for at least unused_for, and returns how many.';

revoke all on function lock_internal.drop_unused(regclass, name, text, interval, integer) from public;
