-- Every replica runs this when it starts, and one of them migrates:
--   psql -X -v ON_ERROR_STOP=1 -f migrate.sql "$DSN"
begin isolation level read committed;

-- The others wait here. When the first one is done, they find nothing to do.
select lock.exclusive('migrate:shop');

create table if not exists shop_version (version integer primary key);
select not exists (select from shop_version where version = 1) as pending \gset
\if :pending
    create table shop_order (id bigint primary key, item text not null);
    insert into shop_version values (1);
\endif

-- A replica that dies before this line has changed nothing, and the next one migrates.
commit;
