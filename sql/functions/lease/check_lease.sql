-- check_lease refuses what acquire_lease and await_lease cannot work with.
create or replace function lock_internal.check_lease(
    name     text,
    owner    text,
    ttl      interval,
    permits  integer
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock_internal.check_id(check_lease.name, 'name');
    perform lock_internal.check_id(check_lease.owner, 'owner');
    perform lock_internal.check_interval(check_lease.ttl, 'ttl', true);
    if check_lease.permits is null then
        raise exception 'permits must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass how many may hold the name at once, or leave it out for 1.';
    elsif check_lease.permits < 1 then
        raise exception 'permits must be at least 1, not %', check_lease.permits
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass how many may hold the name at once, or leave it out for 1.';
    end if;
end;
$$;
