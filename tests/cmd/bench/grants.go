package main

const (
	someID      = "\\set n random(1, 100000)\n"
	someOne     = "\\set n random(1, 10000)\n"
	someHundred = "\\set n random(1, 100)\n"
)

// permits makes 10,000 throttled resources of 1 permit, and 100 of 100, which is as many rows.
func permits(interval string) []string {
	return []string{
		"select lock.create_throttled_resource('one' || n, '" + interval + "') from generate_series(1, 10000) n",
		"select lock.create_throttled_resource('hundred' || n, '" + interval + "', 100) from generate_series(1, 100) n",
	}
}

// small compares the four small kinds with the bare statements that they are made of.
func init() {
	ids := "from generate_series(1, 100000) n"
	flags := []string{
		"create table flag (id text primary key, acquired boolean not null) with (fillfactor = 80)",
		"insert into flag select 'id' || n, false " + ids,
	}
	times := []string{
		"create table stamp (id text primary key, ts timestamptz not null, timeout interval not null, details text) with (fillfactor = 80)",
		"insert into stamp select 'id' || n, '-infinity', '1 microsecond' " + ids,
	}
	// As published: the checks are part of what its update costs.
	throttled := []string{
		`create table stamp (id text primary key, timeout interval not null constraint positive_delays_only check (timeout > '00:00:00'),
			ts timestamptz not null default '-infinity', details text not null default '' constraint empty_rules check (
				(ts = '-infinity' and details = '') or (ts != '-infinity' and length(trim(details)) > 0))) with (fillfactor = 80)`,
		"insert into stamp (id, timeout) select 'id' || n, '1 microsecond' " + ids,
	}
	look := script{name: "select by primary key", sql: someID + "select acquired from flag where id = ('id' || :n)::text;"}
	lookAtOne := script{name: "select by primary key", sql: "select acquired from flag where id = 'id1';"}
	upserts := []string{
		"create table stamp (id text primary key, ts timestamptz not null) with (fillfactor = 80)",
		"insert into stamp select 'id' || n, now() " + ids,
	}
	upsert := "on conflict (id) do update set ts = excluded.ts;"
	buckets := "insert into lock.rate_limit (limit_id, rate, per, burst) select 'id' || n, 1, '1 second', 1 " + ids
	comparisons = append(comparisons,
		comparison{kind: "mutex", name: "acquire and release, 100,000 ids",
			setup: append(flags, "insert into lock.mutex (task_id) select 'id' || n "+ids),
			scripts: []script{
				{name: "update, update", sql: someID + `update flag set acquired = true where id = ('id' || :n)::text and acquired != true;
update flag set acquired = false where id = ('id' || :n)::text and acquired != false;`},
				{name: "lock.acquire_mutex, lock.release_mutex", sql: someID + `select lock.acquire_mutex(('id' || :n)::text);
select lock.release_mutex(('id' || :n)::text);`, atLeast: 0.85},
			}},
		comparison{kind: "mutex", name: "denied, 100,000 ids",
			setup: append(flags, "insert into lock.mutex (task_id, acquired, owner, acquired_at) select 'id' || n, true, 'somebody', now() "+ids),
			scripts: []script{look,
				{name: "lock.acquire_mutex", sql: someID + "select lock.acquire_mutex(('id' || :n)::text);", atLeast: 0.6},
				{name: "lock.release_mutex", sql: someID + "select lock.release_mutex(('id' || :n)::text);", atLeast: 0.6},
			}},
		comparison{kind: "mutex", name: "denied, one id",
			setup: append(flags, "select lock.acquire_mutex('id1', 'somebody')"),
			scripts: []script{lookAtOne,
				{name: "lock.acquire_mutex", sql: "select lock.acquire_mutex('id1');", atLeast: 0.6},
			}},
		comparison{kind: "timeout", name: "acquire, 100,000 ids",
			setup: append(times, "insert into lock.timeout (task_id, timeout) select 'id' || n, '1 microsecond' "+ids),
			scripts: []script{
				{name: "update", sql: someID + "update stamp set ts = clock_timestamp() where id = ('id' || :n)::text and ts + timeout < clock_timestamp();"},
				{name: "lock.acquire_timeout", sql: someID + "select lock.acquire_timeout(('id' || :n)::text);", atLeast: 0.85},
			}},
		comparison{kind: "timeout", name: "denied, 100,000 ids",
			setup: append(flags, "insert into lock.timeout (task_id, ts, timeout) select 'id' || n, now(), '1 year' "+ids),
			scripts: []script{look,
				{name: "lock.acquire_timeout", sql: someID + "select lock.acquire_timeout(('id' || :n)::text);", atLeast: 0.6},
			}},
		comparison{kind: "time_slot", name: "acquire, 100,000 ids",
			setup: append(times, "insert into lock.time_slot (task_id, slot_start) select 'id' || n, '2000-01-01' "+ids),
			scripts: []script{
				{name: "update", sql: someID + "update stamp set ts = clock_timestamp() where id = ('id' || :n)::text and ts < clock_timestamp();"},
				{name: "lock.acquire_time_slot", sql: someID + "select lock.acquire_time_slot(('id' || :n)::text, '1 microsecond');", atLeast: 0.85},
			}},
		comparison{kind: "time_slot", name: "denied, 100,000 ids",
			setup: append(flags, "insert into lock.time_slot (task_id, slot_start) select 'id' || n, now() + interval '1 day' "+ids),
			scripts: []script{look,
				{name: "lock.acquire_time_slot", sql: someID + "select lock.acquire_time_slot(('id' || :n)::text, '1 minute');", atLeast: 0.6},
			}},
		comparison{kind: "throttle", name: "lock, 100,000 ids",
			setup: append(throttled, "insert into lock.throttled_resource (resource_id, throttle_interval) select 'id' || n, '1 microsecond' "+ids),
			scripts: []script{
				{name: "the published update", sql: someID + `update stamp set ts = statement_timestamp(), details = 'bench' where id = (
	select id from stamp where id = ('id' || :n)::text and ts + timeout < statement_timestamp() for update skip locked);`},
				{name: "lock.lock_throttled_resource", sql: someID + "select lock.lock_throttled_resource(('id' || :n)::text, 'bench');", atLeast: 0.85},
			}},
		comparison{kind: "throttle", name: "denied, 100,000 ids",
			setup: append(flags, "insert into lock.throttled_resource (resource_id, throttle_interval, last_locked, last_locker_details) select 'id' || n, '1 year', now(), 'bench' "+ids),
			scripts: []script{look,
				{name: "lock.lock_throttled_resource", sql: someID + "select lock.lock_throttled_resource(('id' || :n)::text, 'bench');", atLeast: 0.6},
			}},
		comparison{kind: "throttle", name: "lock, 10,000 ids of 1 permit and 100 of 100",
			setup: permits("1 microsecond"),
			scripts: []script{
				{name: "1 permit", sql: someOne + "select lock.lock_throttled_resource(('one' || :n)::text, 'bench');"},
				{name: "100 permits", sql: someHundred + "select lock.lock_throttled_resource(('hundred' || :n)::text, 'bench');", atLeast: 0.67, prepared: 0.67},
			}},
		comparison{kind: "throttle", name: "denied, 10,000 ids of 1 permit and 100 of 100",
			setup: append(permits("1 year"),
				"update lock.throttled_resource set last_locked = now(), last_locker_details = 'bench' where permits = 1",
				"update lock.throttled_permit set last_locked = now() - permit * interval '1 second', last_locker_details = 'bench'",
				"vacuum analyze lock.throttled_permit"),
			scripts: []script{
				{name: "1 permit", sql: someOne + "select lock.lock_throttled_resource(('one' || :n)::text, 'bench');"},
				{name: "100 permits", sql: someHundred + "select lock.lock_throttled_resource(('hundred' || :n)::text, 'bench');", atLeast: 0.67},
			}},
		comparison{kind: "throttle", name: "denied by an open transaction, one id",
			setup: append(flags, "select lock.create_throttled_resource('id1', '1 minute')"),
			hold:  []string{"select lock.lock_throttled_resource('id1', 'bench')"},
			scripts: []script{lookAtOne,
				{name: "lock.lock_throttled_resource", sql: "select lock.lock_throttled_resource('id1', 'bench');"},
			}},
		comparison{kind: "rate_limit", name: "take, 100,000 ids",
			setup: append(upserts, buckets),
			scripts: []script{
				{name: "insert on conflict do update", sql: someID + "insert into stamp values (('id' || :n)::text, clock_timestamp()) " + upsert},
				{name: "lock.take", sql: someID + "select * from lock.take(('id' || :n)::text, 1000000000, '1 second');", atLeast: 0.8},
			}},
		comparison{kind: "rate_limit", name: "take, one id",
			setup: append(upserts, buckets),
			scripts: []script{
				{name: "insert on conflict do update", sql: "insert into stamp values ('id1', clock_timestamp()) " + upsert},
				{name: "lock.take", sql: "select * from lock.take('id1', 1000000000, '1 second');", atLeast: 0.5, prepared: 0.5},
				{name: "lock.take, not durable", sql: "begin;\nset local synchronous_commit = off;\nselect * from lock.take('id1', 1000000000, '1 second');\nend;"},
			}},
		comparison{kind: "rate_limit", name: "denied, 100,000 ids",
			setup: append(flags, buckets, "update lock.rate_limit set full_at = now() + interval '1 day'"),
			scripts: []script{look,
				{name: "lock.take", sql: someID + "select * from lock.take(('id' || :n)::text, 1, '1 minute');", atLeast: 0.6},
			}},
	)
}
