-- +goose Up
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000630 needs 20261101000600, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000630, 20261101000600, 'up');
end;
$$;
-- +goose StatementEnd

create table if not exists lock.rate_limit (
    limit_id      text collate "C"  not null,
    full_at       timestamptz       not null default clock_timestamp(),
    taken_at      timestamptz       not null default clock_timestamp(),
    unused_since  timestamp         not null default date_trunc('hour', clock_timestamp() at time zone 'UTC'),
    rate          bigint            not null,
    per           interval          not null,
    burst         bigint            not null,
    constraint rate_limit_pkey primary key (limit_id)
) with (fillfactor = 80);

create index if not exists rate_limit_unused_since_idx on lock.rate_limit (unused_since asc);

comment on table lock.rate_limit is
    'The buckets that lock.take takes tokens from. lock.rate_limit_status is the view for everybody.';

comment on column lock.rate_limit.full_at is
    'When the bucket will be full again, or has been.';

comment on column lock.rate_limit.taken_at is
    'When tokens were taken last.';

comment on column lock.rate_limit.unused_since is
    'The hour, in UTC, of full_at.';

comment on column lock.rate_limit.rate is
    'The limits of the last grant. The next call may have others.';

create table if not exists lock.taken (
    granted      boolean   not null,
    remaining    bigint    not null,
    retry_after  interval  not null
);

comment on table lock.taken is
    'The row type of lock.take(): whether the tokens were taken, how many there are now, and after '
    'how long the same call is granted. Always empty.';

create or replace view lock.rate_limit_status with (security_barrier) as
select
    timed.limit_id,
    timed.rate,
    timed.per,
    timed.burst,
    greatest(
        0,
        timed.burst - ceil((date_part('epoch', greatest(timed.full_at - timed.right_now, '0')) * 1000000)::bigint::float8 * timed.rate / (date_part('epoch', timed.per) * 1000000))
    )::bigint as remaining,
    timed.taken_at,
    timed.full_at
from (
    select
        rate_limit.limit_id,
        rate_limit.rate,
        rate_limit.per,
        rate_limit.burst,
        rate_limit.taken_at,
        rate_limit.full_at,
        clock_timestamp() as right_now
    from lock.rate_limit
) as timed;

comment on view lock.rate_limit_status is
    'The buckets of lock.take: the limits of the last grant, how many tokens remain now by those, '
    'when tokens were taken last, and when the bucket is full again or since when it has been.';

-- functions of rate_limit: written by make migration, not by hand

-- file: sql/functions/rate_limit/check_tokens.sql
-- +goose StatementBegin
-- check_tokens refuses a number of tokens that is null, below 1 or above 3,000,000,000. The product
-- of two such numbers fits into a bigint.
create or replace function lock_internal.check_tokens(
    value  bigint,
    what   text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null then
        raise exception '% must not be null', what
            using errcode = 'null_value_not_allowed',
                  hint = format('Pass a number of at least 1 as %s.', what);
    elsif value < 1 then
        raise exception '% must be at least 1, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = format('Pass a number of at least 1 as %s.', what);
    elsif value > 3000000000 then
        raise exception '% must be at most 3000000000, not %', what, value
            using errcode = 'invalid_parameter_value',
                  hint = 'Count in larger units, such as kilobytes instead of bytes.';
    end if;
end;
$$;
-- +goose StatementEnd

-- file: sql/functions/rate_limit/drop_unused_rate_limits.sql
-- +goose StatementBegin
-- drop_unused_rate_limits deletes buckets that have been full for long. A bucket that is gone is
-- full.
--
-- It finds them as drop_unused_timeouts does.
create or replace function lock.drop_unused_rate_limits(
    unused_for  interval,
    max         integer   default 10000
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    before   constant timestamp := lock_internal.unused_before(drop_unused_rate_limits.unused_for, drop_unused_rate_limits.max);
    dropped  bigint;
begin
    delete from lock.rate_limit
    where rate_limit.limit_id = any(array(
        select oldest.limit_id
        from lock.rate_limit as oldest
        where oldest.unused_since <= before
          and lock_internal.utc(oldest.full_at) < before
        order by oldest.unused_since
        limit drop_unused_rate_limits.max
        for update skip locked
    ));
    get diagnostics dropped = row_count;
    return dropped;
end;
$$;
-- +goose StatementEnd

comment on function lock.drop_unused_rate_limits(interval, integer) is
    'For operators. Deletes at most max buckets that have been full for at least unused_for; '
    'returns how many. The longest unused go first. Call it again until it returns 0. Nothing is '
    'lost: a bucket that is gone is full, and the next lock.take makes it anew. It never waits. '
    'Times are kept to the hour, so one can stay up to an hour longer. Errors: 22004, 22023 bad '
    'arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/rate_limit/force_release_rate_limit.sql
-- +goose StatementBegin
-- force_release_rate_limit fills a bucket, and records the operator and the reason. A bucket that
-- is gone is full.
create or replace function lock.force_release_rate_limit(
    limit_id  text,
    reason    text
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    previous  jsonb;
begin
    perform lock_internal.check_id(force_release_rate_limit.limit_id, 'limit_id');
    perform lock_internal.check_text(force_release_rate_limit.reason, 'reason');
    delete from lock.rate_limit
    where rate_limit.limit_id = (
        select held.limit_id
        from lock.rate_limit as held
        where held.limit_id = force_release_rate_limit.limit_id
          and held.full_at > clock_timestamp()
        for update
    )
    returning to_jsonb(rate_limit) into previous;
    if not found then
        return false;
    end if;
    perform lock_internal.record_forced_release('rate_limit', force_release_rate_limit.limit_id, force_release_rate_limit.reason, previous);
    return true;
end;
$$;
-- +goose StatementEnd

comment on function lock.force_release_rate_limit(text, text) is
    'For operators. Fills a bucket of lock.take and returns true; false when it is full anyway. '
    'lock.forced_release records the operator, the reason (1 to 1024 bytes) and what was stored. '
    'The call waits for a transaction that has just taken tokens. Errors: 22004, 22023 bad '
    'arguments, 25006 read-only, 40001 under REPEATABLE READ and SERIALIZABLE.';

-- file: sql/functions/rate_limit/take.sql
-- +goose StatementBegin
-- take grants cost tokens of a bucket that holds burst tokens, and gets rate of them back per per.
--
-- A bucket is one time, full_at: when it will be full again. A grant moves that time on by as long
-- as its tokens take to come back (weight, rounded up). A call is granted while full_at is at most
-- as far ahead as the other tokens take (ahead, rounded down). So no window is granted more than
-- burst and what comes back within it.
--
-- A look denies, or makes the row. Otherwise the call waits in line for the row, tests it once
-- more, and reads the clock behind the lock. A bare update would store the time before the wait,
-- when the other transaction has changed nothing. Who finds the tokens gone lets go of the row, by
-- the rollback of a subtransaction. To pass over locked rows instead, as acquire_timeout does,
-- would wake all who wait at every commit.
--
-- The products that might overflow are made of a whole and a rest. Both stay below 2^63 for what
-- check_tokens lets pass.
--
-- A last grant that lies in the future means that the clock was set back. A denied call brings both
-- times back by as much, and the debt stays. The margin keeps it from steps of milliseconds and
-- from servers whose clocks differ.
create or replace function lock.take(
    limit_id  text,
    rate      bigint,
    per       interval,
    burst     bigint    default null,
    cost      bigint    default 1
)
returns setof lock.taken
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    most    constant bigint := coalesce(take.burst, take.rate);
    period  bigint;
    weight  interval;
    ahead   interval;
    bucket  lock.rate_limit;
    moment  timestamptz;
    answer  lock.taken;
begin
    if (
        octet_length(take.limit_id) between 1 and 1024
        and take.rate between 1 and 3000000000
        and most between 1 and 3000000000
        and take.cost between 1 and most
        and take.per between interval '1 microsecond' and interval '36525 days'
        and date_part('month', take.per) = 0
        and date_part('year', take.per) = 0
        and date_part('epoch', take.per) * (most / take.rate::float8) <= 3155760000
        and not current_setting('transaction_read_only')::boolean
    ) is not true then
        perform lock_internal.check_writable();
        perform lock_internal.check_id(take.limit_id, 'limit_id');
        perform lock_internal.check_tokens(take.rate, 'rate');
        perform lock_internal.check_interval(take.per, 'per', true);
        perform lock_internal.check_tokens(most, 'burst');
        perform lock_internal.check_tokens(take.cost, 'cost');
        if take.cost > most then
            raise exception 'cost must be at most burst, which is %, not %', most, take.cost
                using errcode = 'invalid_parameter_value',
                      hint = 'Pass a larger burst, or take fewer tokens at once: this call would never be granted.';
        end if;
        raise exception 'an empty bucket must be full again within 100 years, and % tokens at % per % take longer', most, take.rate, take.per
            using errcode = 'invalid_parameter_value',
                  hint = 'Pass a smaller burst or a higher rate.';
    end if;
    period := date_part('epoch', take.per) * 1000000;
    weight := interval '1 microsecond' * (take.cost * (period / take.rate) + (take.cost * (period % take.rate) + take.rate - 1) / take.rate);
    ahead := interval '1 microsecond' * ((most - take.cost) * (period / take.rate) + (most - take.cost) * (period % take.rate) / take.rate);
    for round in 1 .. 100 loop
        select rate_limit.* into bucket
        from lock.rate_limit
        where rate_limit.limit_id = take.limit_id;
        moment := clock_timestamp();
        if not found then
            insert into lock.rate_limit (limit_id, rate, per, burst)
            values (take.limit_id, take.rate, take.per, most)
            on conflict do nothing;
        elsif bucket.full_at - ahead > moment then
            if bucket.taken_at > moment + interval '1 minute' then
                update lock.rate_limit
                set
                    full_at = rate_limit.full_at - (rate_limit.taken_at - clock_timestamp()),
                    taken_at = clock_timestamp(),
                    unused_since = lock_internal.full_hour(lock_internal.utc(rate_limit.full_at - (rate_limit.taken_at - clock_timestamp())))
                where rate_limit.limit_id = (
                    select far.limit_id
                    from lock.rate_limit as far
                    where far.limit_id = take.limit_id
                      and far.taken_at > clock_timestamp() + interval '1 minute'
                    for no key update skip locked
                );
                if found then
                    raise log 'tokens of "%" were taken in the future: the clock was set back; they come back from now on', take.limit_id;
                    continue;
                end if;
                bucket.full_at := bucket.full_at - (bucket.taken_at - moment);
            end if;
            answer := (false, null, greatest(bucket.full_at - ahead - moment, '0'));
            exit;
        else
            begin
                update lock.rate_limit
                set
                    full_at = greatest(rate_limit.full_at, clock_timestamp()) + weight,
                    taken_at = clock_timestamp(),
                    unused_since = lock_internal.full_hour(lock_internal.utc(greatest(rate_limit.full_at, clock_timestamp()) + weight)),
                    rate = take.rate,
                    per = take.per,
                    burst = most
                where rate_limit.limit_id = (
                    select free.limit_id
                    from lock.rate_limit as free
                    where free.limit_id = take.limit_id
                      and free.full_at - ahead <= clock_timestamp()
                    for no key update
                )
                returning rate_limit.* into bucket;
                if found then
                    moment := bucket.taken_at;
                    answer := (true, null, interval '0');
                    exit;
                end if;
                raise exception 'the tokens are gone'
                    using errcode = 'LK003';
            exception
                when sqlstate 'LK003' then
                    null;
            end;
        end if;
    end loop;
    if answer.retry_after is null then
        perform lock_internal.give_up('rate limit', take.limit_id);
    end if;
    answer.remaining := greatest(0, most - ceil((date_part('epoch', greatest(bucket.full_at - moment, '0')) * 1000000)::bigint::float8 * take.rate / period));
    return next answer;
end;
$$;
-- +goose StatementEnd

comment on function lock.take(text, bigint, interval, bigint, bigint) is
    'Takes cost tokens (default 1) from the bucket limit_id (1 to 1024 bytes; a new one is made, '
    'and is full). A bucket holds burst tokens (default: rate) and gets rate of them back per per, '
    'evenly. Returns one row. granted: the tokens were there, and are taken. remaining: how many '
    'are there now. retry_after: 0, or after how long the same call is granted, to the '
    'microsecond, when nobody else takes any in between. Any window of length w is granted at most '
    'burst + rate * w / per tokens, by the database''s clock. rate, burst and cost: 1 to '
    '3,000,000,000, cost at most burst. per: over 0, up to 100 years, no months; a day is 24 '
    'hours. The limits travel with the call: other ones than before are fine, and what was granted '
    'counts. The grant is part of the transaction: rolled back, it never was. So call it in a '
    'transaction of its own: while another transaction has taken tokens of the bucket and not '
    'ended, a call that finds enough of them waits for that end. A denial is immediate and writes '
    'nothing. A last grant more than a minute in the future means that the clock was set back: the '
    'next denied call brings the bucket back to now, as empty as it was, the one denial that '
    'writes. Errors: 22004, 22023 bad arguments, 25006 read-only or standby, 40001 under '
    'REPEATABLE READ and SERIALIZABLE, 40P01 deadlock, 55P03 lock_timeout, 57014 '
    'statement_timeout.';

-- end of functions

select lock_internal.end_migration(20261101000630, 'up');

-- +goose Down
set local search_path = pg_catalog, pg_temp;
-- guard: written by make migration, not by hand
-- +goose StatementBegin
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration 20261101000630 needs 20261101000600, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(20261101000630, 20261101000600, 'down');
end;
$$;
-- +goose StatementEnd
select lock_internal.refuse_dependents('{lock.rate_limit_status, lock.rate_limit, lock.taken}');
select lock_internal.refuse_loss('lock.rate_limit_status', 'full_at > clock_timestamp()', 'rate limits that are not full again');

-- functions of rate_limit: written by make migration, not by hand

-- gone: sql/functions/rate_limit/take.sql
drop function if exists lock.take(text, bigint, interval, bigint, bigint);

-- gone: sql/functions/rate_limit/force_release_rate_limit.sql
drop function if exists lock.force_release_rate_limit(text, text);

-- gone: sql/functions/rate_limit/drop_unused_rate_limits.sql
drop function if exists lock.drop_unused_rate_limits(interval, integer);

-- gone: sql/functions/rate_limit/check_tokens.sql
drop function if exists lock_internal.check_tokens(bigint, text);

-- end of functions

drop view if exists lock.rate_limit_status;
drop table if exists lock.taken;
drop table if exists lock.rate_limit;

select lock_internal.end_migration(20261101000630, 'down');
