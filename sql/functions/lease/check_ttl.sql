-- check_ttl refuses a ttl that is null, infinite, zero or negative, has months, or is longer than 100 years.
create or replace function lock.check_ttl(
    ttl  interval
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform lock.check_interval(check_ttl.ttl, 'ttl', true);
    if check_ttl.ttl > interval '36525 days' then
        raise exception 'ttl must be at most 36525 days, not %', check_ttl.ttl
            using errcode = 'invalid_parameter_value',
                  hint = 'A lease is renewed by its holder: pass a ttl of seconds or minutes.';
    end if;
end;
$$;

comment on function lock.check_ttl(interval) is
    'Internal: refuses a ttl that is null (22004), infinite, zero or negative, has months, or is longer than 36525 days (22023).';

revoke all on function lock.check_ttl(interval) from public;
