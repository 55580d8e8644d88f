-- check_role refuses a role that is null or does not exist.
create or replace function lock_internal.check_role(
    role  name
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_role.role is null then
        raise exception 'role must not be null'
            using errcode = 'null_value_not_allowed',
                  hint = 'Pass the name of a role.';
    elsif not exists (
        select
        from pg_roles
        where pg_roles.rolname = check_role.role
    ) then
        raise exception 'role "%" does not exist', check_role.role
            using errcode = 'undefined_object',
                  hint = 'Pass the name of a role. To give everybody (public) a function, grant that function.';
    end if;
end;
$$;
