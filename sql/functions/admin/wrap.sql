-- wrap breaks a text at spaces into lines of at most 80 characters; all but the first are indented.
create or replace function lock_internal.wrap(
    paragraph  text,
    first      integer,
    others     integer
)
returns setof text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    line  text := repeat(' ', first);
    word  text;
begin
    foreach word in array string_to_array(btrim(regexp_replace(paragraph, '[[:space:]]+', ' ', 'g')), ' ') loop
        if btrim(line) <> '' and length(line) + 1 + length(word) > 80 then
            return next line;
            line := repeat(' ', others);
        end if;
        line := line || case when btrim(line) = '' then '' else ' ' end || word;
        while length(line) > 80 loop
            return next left(line, 80);
            line := repeat(' ', others) || substr(line, 81);
        end loop;
    end loop;
    return next rtrim(line);
end;
$$;
