-- A table lock that works as the usual recipe does, faults included. Tests run it to see their checkers fail.
create schema recipe;
create table recipe.locked_keys (key bigint primary key, name text, ts timestamptz default now());

create function recipe.exclusive(wanted bigint) returns void language plpgsql as $$
begin
    insert into recipe.locked_keys (key) values (wanted) on conflict do nothing;
    perform from recipe.locked_keys where key = wanted for update;
end $$;

create function recipe.shared(wanted bigint) returns void language plpgsql as $$
begin
    insert into recipe.locked_keys (key) values (wanted) on conflict do nothing;
    perform from recipe.locked_keys where key = wanted for share;
end $$;

create function recipe.shared_as_printed(wanted bigint) returns void language plpgsql as $$
begin
    set local yb_disable_transactional_writes = true;
    perform recipe.shared(wanted);
end $$;

create function recipe.unlock(wanted bigint) returns void language sql as $$
    delete from recipe.locked_keys where key = wanted;
$$;

create function recipe.vacuum() returns void language sql as $$
    with idle as (select key from recipe.locked_keys for update skip locked)
    delete from recipe.locked_keys where key in (select key from idle);
$$;

grant usage on schema recipe to public;
grant all on recipe.locked_keys to public;
