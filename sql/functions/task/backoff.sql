-- backoff is the pause after so many tries: twice as long each time, with jitter, between shortest
-- and longest.
create or replace function lock_internal.backoff(
    tries     integer,
    shortest  interval,
    longest   interval
)
returns interval
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return greatest(
        backoff.shortest,
        make_interval(secs => (0.5 + random() / 2) * least(
            extract(epoch from backoff.longest)::double precision,
            extract(epoch from backoff.shortest)::double precision * 2 ^ least(backoff.tries, 50)
        ))
    );
end;
$$;
