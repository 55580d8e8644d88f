-- refuse_loss stops a migration that goes down over rows that somebody still needs, unless
-- lock.drop is 'everything'.
--
-- The exclusive lock comes first. Otherwise rows that an open transaction is about to add would be
-- dropped uncounted. So they would be under a snapshot that is older than the lock. goose prints
-- neither hints nor warnings: the error's message says it all, and the warning is for the server's
-- log.
create or replace function lock_internal.refuse_loss(
    relation   text,
    condition  text,
    what       text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    lost  bigint;
begin
    if to_regclass(refuse_loss.relation) is null then
        return;
    end if;
    if version() not like '%-YB-%' and refuse_loss.relation like 'lock.%' then
        if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
            raise exception E'goose down counts what it would drop under READ COMMITTED: run it with PGOPTIONS=\'-c default_transaction_isolation=read\\ committed\''
                using errcode = 'active_sql_transaction',
                      hint = 'In a DSN the setting is options=-c%20default_transaction_isolation%3Dread%5C%20committed.';
        end if;
        execute 'lock table ' || refuse_loss.relation || ' in access exclusive mode';
    end if;
    execute format('select count(*) from %s where %s', refuse_loss.relation, refuse_loss.condition) into lost;
    if lost = 0 then
        return;
    elsif current_setting('lock.drop', true) is distinct from 'everything' then
        raise exception 'goose down would drop what is needed: % % (%); run it with PGOPTIONS=''-c lock.drop=everything'' to drop it all the same',
            lost, refuse_loss.what, refuse_loss.relation
            using errcode = 'object_in_use',
                  hint = 'In a DSN the setting is options=-c%20lock.drop%3Deverything.';
    end if;
    raise warning 'goose down drops % % (%)', lost, refuse_loss.what, refuse_loss.relation;
end;
$$;
