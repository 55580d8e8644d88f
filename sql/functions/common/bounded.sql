-- bounded is a message as it is kept: its first 4000 characters; null for an empty one.
create or replace function lock_internal.bounded(
    message  text
)
returns text
language sql
immutable
parallel safe
as $$
    select nullif(left(bounded.message, 4000), '');
$$;
