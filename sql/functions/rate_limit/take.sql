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
