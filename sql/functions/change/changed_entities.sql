-- changed_entities returns the entities of a change, given their ids before and after it: both
-- where they differ. An impossible id stands for the table as a whole.
--
-- A query that has it takes it in as a part of its own: so it has no settings, and is nothing but
-- an expression.
create or replace function lock_internal.changed_entities(
    changed  text,
    old_id   text,
    new_id   text
)
returns text[]
language sql
immutable
parallel safe
as $$
    select case
        when changed_entities.old_id = changed_entities.new_id and octet_length(changed_entities.new_id) between 1 and 1024 then array[changed_entities.new_id]
        when changed_entities.old_id is not distinct from changed_entities.new_id then array[changed_entities.changed]
        else array[
            case when octet_length(changed_entities.old_id) between 1 and 1024 then changed_entities.old_id else changed_entities.changed end,
            case when octet_length(changed_entities.new_id) between 1 and 1024 then changed_entities.new_id else changed_entities.changed end]
    end;
$$;
