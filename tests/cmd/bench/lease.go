package main

import "strings"

// The eighth part of the names that is this client's own.
const someLease = "\\set name random(1, 12500) * 8 - :client_id\n"

func init() {
	baseline := []string{
		"create table plain (name text primary key, token bigint not null, expires_at timestamptz)",
		"insert into plain select 'lease:' || n, 0, now() from generate_series(1, 100000) n",
	}
	known := "insert into lock.lease_name (name, token, granted_at) select 'lease:' || n, 0, now() from generate_series(1, 100000) n"
	names := "insert into lock.lease_name (name, token, granted_at) select 'held:' || n, 1, now() from generate_series(1, 100000) n"
	held := "insert into lock.lease select 'held:' || n, 1, 'bench', now(), now(), now() + interval '1 day' from generate_series(1, 100000) n"
	update := "update plain set token = token + 1, expires_at = now() where name = 'lease:' || :name;\n"
	cycle := "select token from lock.acquire_lease('PREFIX' || :name::text, 'bench', '15 seconds') \\gset\n" +
		"select lock.release_lease('PREFIX' || :name::text, :token::bigint);\n"
	comparisons = append(comparisons,
		comparison{kind: "lease", name: "acquire and release, distinct names", setup: append(baseline, known), scripts: []script{
			{name: "two updates of a row", sql: someLease + update + update},
			{name: "acquire_lease, release_lease", sql: someLease + strings.ReplaceAll(cycle, "PREFIX", "lease:"), atLeast: 0.8},
			{name: "the same, mostly new names", sql: "\\set name random(1, 1000000000)\n" + strings.ReplaceAll(cycle, "PREFIX", "new:")},
		}},
		comparison{kind: "lease", name: "assert_lease", setup: append(baseline, names, held), scripts: []script{
			{name: "select ... for share", sql: someLease + "select expires_at from plain where name = 'lease:' || :name for share;"},
			{name: "assert_lease", sql: someLease + "select lock.assert_lease('held:' || :name::text, 1);", atLeast: 0.6},
		}},
		comparison{kind: "lease", name: "permits taken, and renewal", setup: append(baseline, names, held), scripts: []script{
			{name: "select of a row", sql: someLease + "select expires_at from plain where name = 'lease:' || :name;"},
			{name: "acquire_lease, denied", sql: someLease + "select token from lock.acquire_lease('held:' || :name::text, 'bench', '15 seconds');"},
			{name: "update of a row", sql: someLease + update},
			{name: "renew_lease", sql: someLease + "select lock.renew_lease('held:' || :name::text, 1, '1 day');"},
		}},
	)
}
