-- A table lock that works as the published recipe does, as a fixture: what the specs, and any checker, must find fault with.
-- It leaves out the settings that only YugabyteDB has.
create schema recipe;

create table recipe.locked_keys (
    key   bigint primary key,
    name  text,
    ts    timestamptz default now()
);

create function recipe.exclusive(wanted bigint)
returns void
language plpgsql
as $$
begin
    insert into recipe.locked_keys (key) values (wanted) on conflict do nothing;
    perform from recipe.locked_keys where key = wanted for update;
end;
$$;

create function recipe.shared(wanted bigint)
returns void
language plpgsql
as $$
begin
    insert into recipe.locked_keys (key) values (wanted) on conflict do nothing;
    perform from recipe.locked_keys where key = wanted for share;
end;
$$;

create function recipe.unlock(wanted bigint)
returns void
language sql
as $$
    delete from recipe.locked_keys where key = wanted;
$$;

create function recipe.vacuum()
returns void
language sql
as $$
    delete from recipe.locked_keys
    where key in (select key from recipe.locked_keys for update skip locked);
$$;

grant usage on schema recipe to public;
grant select, insert, update, delete on recipe.locked_keys to public;
