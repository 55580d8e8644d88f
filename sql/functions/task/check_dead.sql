-- check_dead refuses a dead letter that has not failed.
create or replace function lock_internal.check_dead(
    dead    boolean,
    status  lock.task_status
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_dead.dead is null then
        raise exception 'dead must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass true with status failed for a dead letter, or false.';
    elsif check_dead.dead and check_dead.status <> 'failed' then
        raise exception 'only what is settled as failed can be a dead letter, not as %', check_dead.status
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass dead => true with status failed only.';
    end if;
end;
$$;
