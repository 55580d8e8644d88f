package tests

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A grantKind is what is granted to exactly one of those who ask at a time: a mutex, a timeout, a time slot, a throttled resource.
type grantKind struct {
	name     string // as lock.forced_release has it
	table    string
	id       string // the table's key
	create   string // makes %s; "": asking does
	long     string // makes %s and is granted it for years
	acquire  string // asks for %s, in round %s
	free     string // what has to be set before it can be granted again; "": the next round is another slot
	old      string // what makes it 40 days older
	drop     string
	at       string // when it was granted, where an interval counts from that; "": none does
	length   string // that interval
	locked   string // what its view calls one that is not over
	waits    bool   // for an open transaction that was granted it
	test     string // what makes its update wait in line; "": it passes over locked rows
	untested string // in its place
}

var grantKinds = []grantKind{{
	name: "mutex", table: "mutex", id: "task_id", waits: true, drop: "drop_unused_mutexes",
	acquire: "lock.acquire_mutex(%s, 'round ' || %s)", free: "acquired = false", long: "select lock.acquire_mutex(%s)",
	old: "released_at = released_at - interval '40 days'",
}, {
	name: "timeout", table: "timeout", id: "task_id", waits: true, drop: "drop_unused_timeouts",
	create: "lock.create_timeout(%s, '1 hour')", acquire: "lock.acquire_timeout(%s) from (select %s) as round", free: "ts = ts - interval '61 minutes'",
	long: "select lock.create_timeout(%[1]s, '1 year'); select lock.acquire_timeout(%[1]s)",
	old:  "ts = ts - interval '40 days'", at: "ts", length: "timeout", locked: "locked",
}, {
	name: "time_slot", table: "time_slot", id: "task_id", waits: true, drop: "drop_unused_time_slots",
	acquire: "lock.acquire_time_slot(%s, '10 seconds', timestamptz '2026-01-01 00:00+00' + %s * interval '10 seconds')",
	long:    "select lock.acquire_time_slot(%s, '1 hour', '2100-01-01')",
	old:     "slot_start = slot_start - interval '40 days', granted_at = granted_at - interval '40 days'",
}, {
	name: "throttle", table: "throttled_resource", id: "resource_id", drop: "drop_unused_throttled_resources",
	create: "lock.create_throttled_resource(%s, '1 hour')", acquire: "lock.lock_throttled_resource(%s, 'round ' || %s)", free: "last_locked = last_locked - interval '61 minutes'",
	long: "select lock.create_throttled_resource(%[1]s, '1 year'); select lock.lock_throttled_resource(%[1]s, 'long')",
	old:  "last_locked = last_locked - interval '40 days'", at: "last_locked", length: "throttle_interval", locked: "throttled",
}, {
	name: "rate_limit", table: "rate_limit", id: "limit_id", waits: true, drop: "drop_unused_rate_limits",
	acquire: "granted from lock.take(%s, 1, '1 hour'), (select %s) as round", free: "full_at = full_at - interval '61 minutes'",
	long: "select lock.take(%s, 1, '36000 days')",
	old:  "full_at = full_at - interval '40 days', taken_at = taken_at - interval '40 days'",
	test: "for no key update\n", untested: "\n",
}}

// asks is a call for id in a round.
func (k grantKind) asks(id string, round int) string {
	return "select " + fmt.Sprintf(k.acquire, "'"+id+"'", fmt.Sprint(round))
}

// function is the name of the function that grants it.
func (k grantKind) function() string {
	_, call, _ := strings.Cut(k.acquire, "lock.")
	name, _, _ := strings.Cut(call, "(")
	return name
}

func (k grantKind) makes(t *testing.T, e *env, id string) {
	t.Helper()
	if k.create != "" {
		admin(t, e, "select "+fmt.Sprintf(k.create, "'"+id+"'"))
	}
}

func (k grantKind) frees(t *testing.T, e *env, id string) {
	t.Helper()
	if k.free != "" {
		admin(t, e, "update lock."+k.table+" set "+k.free+" where "+k.id+" = $1", id)
	}
}

// eachGrant runs fn as parallel subtests, one per kind.
func eachGrant(t *testing.T, fn func(t *testing.T, k grantKind, e *env)) {
	t.Helper()
	t.Parallel()
	for _, k := range grantKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			fn(t, k, open(t, advisory))
		})
	}
}

// Exactly one of a crowd is granted each round, and a call that does not lock what it tests is seen to grant more.
func TestGrantsOneWinner(t *testing.T) {
	t.Parallel()
	for _, k := range grantKinds {
		t.Run(k.name, func(t *testing.T) {
			e := open(t, advisory)
			crowd := e.crowd(t)
			sql := "select " + fmt.Sprintf(k.acquire, "$1::text", "$2::integer")
			n := 0
			play := func(level, id string) int {
				n++
				return crowd.race(t, level, sql, id, n)
			}
			for _, level := range levels {
				count := rounds(t, 15)
				if level == "read committed" {
					count = rounds(t, 50)
				}
				t.Run(level+", new ids", func(t *testing.T) {
					for i := range count {
						id := fmt.Sprintf("%s %d", level, i)
						k.makes(t, e, id)
						if won := play(level, id); won != 1 {
							t.Fatalf("round %d: %d callers won", i, won)
						}
					}
				})
				t.Run(level+", a known id", func(t *testing.T) {
					id := "known under " + level
					k.makes(t, e, id)
					play(level, id)
					for i := range count {
						k.frees(t, e, id)
						if won := play(level, id); won != 1 {
							t.Fatalf("round %d: %d callers won", i, won)
						}
					}
				})
			}
			t.Run("the checker catches a call that does not lock what it tests", func(t *testing.T) {
				if k.test == "" {
					mutate(t, e, k.function(), "for no key update skip locked", "")
				} else {
					mutate(t, e, k.function(), k.test, k.untested)
				}
				const id = "mutated"
				k.makes(t, e, id)
				play("read committed", id)
				for i := range 3000 {
					k.frees(t, e, id)
					if won := play("read committed", id); won > 1 {
						t.Logf("round %d: %d callers won", i, won)
						return
					}
				}
				t.Fatal("two callers never won")
			})
		})
	}
}

// A grant is its transaction's, and a denied call writes nothing, at once or after a wait.
func TestGrantsTransactions(t *testing.T) {
	eachGrant(t, func(t *testing.T, k grantKind, e *env) {
		ids := []string{"known"}
		k.makes(t, e, "known")
		if k.create == "" {
			answers(e.session(t), true, k.asks("known", 1))
			k.frees(t, e, "known")
			ids = append(ids, "new")
		}
		for _, id := range ids {
			s, other := e.session(t), e.session(t)
			s.exec("begin")
			answers(s, true, k.asks(id, 2))
			answers(s, false, k.asks(id, 2))
			if !k.waits {
				other.denied(k.asks(id, 2))
			}
			s.exec("rollback")
			if k.waits {
				grantedAfterRollback(t, e, k.asks(id, 2))
			} else {
				answers(other, true, k.asks(id, 2))
			}
			s.denied(k.asks(id, 2))
			k.frees(t, e, id)
			if k.waits && k.test == "" {
				deniedAfterCommit(t, e, k.asks(id, 3))
			} else if k.waits { // its update waits in line, and so has a transaction id
				waiter, _ := lostAfterCommit(t, e, k.asks(id, 3))
				answers(waiter, false, k.asks(id, 3))
			}
		}
		if k.create == "" {
			deniedAfterCommit(t, e, k.asks("new and committed", 3))
		}
	})
}

// Who has waited and lost keeps nobody from the row, however long its own transaction goes on.
func TestGrantsLoserLocksNothing(t *testing.T) {
	// lost lets a holder be granted k while another waits for it, and says whether the loser's open transaction then stands in the way of who
	// takes the grant away.
	lost := func(t *testing.T, k grantKind, e *env, lockedFirst bool) bool {
		t.Helper()
		holder, loser, operator := e.sessionAs(t, e.super), e.session(t), e.sessionAs(t, e.owner)
		k.makes(t, e, "a")
		answers(holder, true, k.asks("a", 1))
		k.frees(t, e, "a")
		holder.exec("begin")
		if lockedFirst {
			holder.exec("select from lock." + k.table + " for update")
		} else {
			answers(holder, true, k.asks("a", 2))
		}
		loser.exec("begin")
		p, granted := startGet[bool](loser, k.asks("a", 2))
		p.blocked()
		if lockedFirst {
			answers(holder, true, k.asks("a", 2))
		}
		holder.exec("commit")
		p.ends()
		if *granted {
			t.Fatal("granted twice")
		}
		operator.exec("set statement_timeout = '2s'")
		var released bool
		err := operator.conn.QueryRow(ctx, "select lock.force_release_"+k.table+"('a', 'test')").Scan(&released)
		if code(err) == "57014" {
			return true
		}
		must(t, err)
		if !released {
			t.Fatal("not released")
		}
		return false
	}
	t.Parallel()
	for _, k := range grantKinds {
		if !k.waits {
			continue
		}
		for _, lockedFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, only locked first: %v", k.name, lockedFirst), func(t *testing.T) {
				t.Parallel()
				if lost(t, k, open(t, advisory), lockedFirst) {
					t.Fatal("the loser's transaction stands in the way")
				}
			})
		}
	}
	t.Run("the checker catches a call that waits in its update", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "an update that waits starts again on YugabyteDB")
		e := open(t, advisory)
		mutate(t, e, "acquire_mutex", "for no key update skip locked", "for no key update")
		if !lost(t, grantKinds[0], e, false) {
			t.Fatal("not caught")
		}
	})
	t.Run("the checker catches an update that keeps its lock", func(t *testing.T) {
		t.Parallel()
		onlyPostgreSQL(t, "an update that waits starts again on YugabyteDB")
		e := open(t, advisory)
		mutate(t, e, "take", "raise exception 'the tokens are gone'\n                    using errcode = 'LK003';", "")
		if !lost(t, grantKinds[len(grantKinds)-1], e, false) {
			t.Fatal("not caught")
		}
	})
	t.Run("the checker catches a wait that keeps its lock", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		mutate(t, e, "await_row", "raise exception 'the row is free'\n            using errcode = 'LK003';", "")
		if !lost(t, grantKinds[0], e, true) {
			t.Fatal("not caught")
		}
	})
}

// A snapshot that is older than the answer may be told to try again; it never gets a second grant.
func TestGrantsStaleSnapshot(t *testing.T) {
	eachGrant(t, func(t *testing.T, k grantKind, e *env) {
		for _, level := range levels[1:] {
			for _, known := range []bool{true, false} {
				id := fmt.Sprintf("%s %v", level, known)
				a, b := e.session(t), e.session(t)
				k.makes(t, e, id)
				if known {
					answers(a, true, k.asks(id, 1))
					k.frees(t, e, id)
				}
				b.exec("begin isolation level " + level + "; select 1")
				answers(a, true, k.asks(id, 2))
				b.fails("40001", k.asks(id, 2))
				b.exec("rollback")
				answers(b, false, k.asks(id, 2))
			}
		}
	})
}

func TestGrantsRefuseIDs(t *testing.T) {
	eachGrant(t, func(t *testing.T, k grantKind, e *env) {
		s := e.session(t)
		calls := []string{k.acquire}
		if k.create != "" {
			calls = append(calls, k.create)
			s.fails("P0002", k.asks("never made", 1))
		}
		if k.name == "mutex" {
			calls = append(calls, "lock.create_mutex(%s)", "lock.release_mutex(%s)")
		}
		for _, call := range calls {
			for id, want := range map[string]string{"null": "22004", "''": "22023", "repeat('x', 1025)": "22023"} {
				s.fails(want, "select "+strings.Replace(strings.Replace(call, "%s", id, 1), "%s", "1", 1))
			}
		}
		longest := "repeat('ü', 512)"
		if k.create != "" {
			answers(s, true, "select "+fmt.Sprintf(k.create, longest))
		}
		answers(s, true, "select "+fmt.Sprintf(k.acquire, longest, "1"))
		s.exec("set default_transaction_read_only = on")
		s.fails("25006", "select "+fmt.Sprintf(k.acquire, longest, "1"))
		s.fails("25006", "select "+fmt.Sprintf(k.acquire, longest, "2"))
		answers(e.sessionAs(t, e.owner), 1, "select count(*)::integer from lock."+k.table)
	})
}

func TestGrantsForcedRelease(t *testing.T) {
	eachGrant(t, func(t *testing.T, k grantKind, e *env) {
		s, owner := e.session(t), e.sessionAs(t, e.owner)
		call := func(id, reason string) string {
			return fmt.Sprintf("select lock.force_release_%s('%s', %s)", k.table, id, reason)
		}
		k.makes(t, e, "a")
		if k.create == "" {
			answers(owner, false, call("a", "'unknown'"))
		} else {
			answers(owner, false, call("a", "'free'"))
			owner.fails("P0002", call("unknown", "'why'"))
		}
		answers(s, true, k.asks("a", 1))
		s.fails("42501", call("a", "'why'"))
		s.fails("42501", "select lock."+k.drop+"('1 day')")
		s.fails("42501", "select * from lock."+k.table)
		s.fails("42501", "select * from lock.forced_release")
		owner.fails("22004", call("a", "null"))
		owner.fails("22023", call("a", "'  '"))
		owner.fails("22023", call("", "'why'"))
		before := get[string](owner, "select to_jsonb(held)::text from lock."+k.table+" as held")
		answers(s, false, k.asks("a", 1))
		answers(owner, true, call("a", "'host 7 burnt down'"))
		answers(owner, false, call("a", "'again'"))
		answers(s, true, k.asks("a", 1))
		answers(owner, k.name+" a host 7 burnt down locks_owner "+before+" t", `
			select concat_ws(' ', kind, id, reason, released_by, previous, released_at between now() - interval '1 minute' and clock_timestamp()) from lock.forced_release`)
	})
}

func TestGrantsDropUnused(t *testing.T) {
	eachGrant(t, func(t *testing.T, k grantKind, e *env) {
		s, owner := e.session(t), e.sessionAs(t, e.owner)
		call := "select lock." + k.drop
		owner.fails("22004", call+"(null)")
		owner.fails("22004", call+"('1 day', null)")
		owner.fails("22023", call+"('1 day', 0)")
		owner.fails("22023", call+"('-1 day')")
		owner.fails("22023", call+"('0')")
		old := func(where string) {
			admin(t, e, "update lock."+k.table+" set "+k.old+", unused_since = unused_since - interval '40 days' where "+where)
		}
		for i := range 25 {
			id := fmt.Sprintf("idle %d", i)
			k.makes(t, e, id)
			answers(s, true, k.asks(id, 1))
			s.exec(fmt.Sprintf(k.long, fmt.Sprintf("'long %d'", i)))
		}
		if k.name == "mutex" {
			s.exec("select lock.release_mutex(task_id, 'round 1') from lock.mutex_status")
		}
		answers(owner, int64(0), call+"('30 days')")
		old("true")
		// What is wrong about unused_since does no harm: these are taken for longer.
		admin(t, e, "update lock."+k.table+" set unused_since = '2000-01-01' where "+k.id+" like 'long%'")
		k.makes(t, e, "young")
		answers(s, true, k.asks("young", 1))

		// Whoever is acquiring one is passed over, and not waited for.
		s.exec("begin")
		answers(s, true, k.asks("idle 0", 2))
		total := int64(0)
		for n := int64(1); n > 0; total += n {
			if n = get[int64](owner, call+"('30 days', 10)"); n > 10 {
				t.Fatalf("dropped %d", n)
			}
		}
		if total != 24 {
			t.Fatalf("dropped %d in all", total)
		}
		s.exec("commit")
		answers(owner, "{\"idle 0\",young}", "select array_agg("+k.id+" order by "+k.id+")::text from lock."+k.table+" where "+k.id+" not like 'long%'")
		answers(owner, 25, "select count(*)::integer from lock."+k.table+" where "+k.id+" like 'long%'")
		answers(s, false, k.asks("long 1", 3))

		// One that is dropped while two wait for it is made again, once; or unknown to both.
		if k.name == "mutex" {
			answers(s, true, "select lock.release_mutex('idle 0', 'round 2')")
		}
		old(k.id + " = 'idle 0'")
		owner.exec("begin")
		answers(owner, int64(1), call+"('30 days')")
		if !k.waits {
			s.denied(k.asks("idle 0", 3))
			owner.exec("commit")
			s.fails("P0002", k.asks("idle 0", 3))
			return
		}
		pa, wonA := startGet[bool](e.session(t), k.asks("idle 0", 3))
		pb, wonB := startGet[bool](e.session(t), k.asks("idle 0", 3))
		pa.blocked()
		pb.blocked()
		owner.exec("commit")
		if k.create != "" {
			wantCode(t, pa.wait(), "P0002", pa.sql)
			wantCode(t, pb.wait(), "P0002", pb.sql)
			answers(owner, 26, "select count(*)::integer from lock."+k.table)
			return
		}
		pa.ends()
		pb.ends()
		if *wonA == *wonB {
			t.Fatalf("both callers got %v", *wonA)
		}
	})
}

// eachInterval runs fn for the kinds whose interval counts from the grant.
func eachInterval(t *testing.T, fn func(t *testing.T, k grantKind, e *env)) {
	t.Helper()
	t.Parallel()
	for _, k := range grantKinds {
		if k.at != "" {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				fn(t, k, open(t, advisory))
			})
		}
	}
}

// creates is a call that makes id with an interval.
func (k grantKind) creates(id, length string) string {
	return "select " + fmt.Sprintf(strings.Replace(k.create, "'1 hour'", "%s", 1), id, length)
}

// sets moves the time of the last grant of a.
func (k grantKind) sets(t *testing.T, e *env, to string) {
	t.Helper()
	details := ""
	if k.name == "throttle" {
		details = ", last_locker_details = 'test'"
	}
	admin(t, e, "update lock."+k.table+" set "+k.at+" = "+to+details+" where "+k.id+" = 'a'")
}

func TestIntervalCreate(t *testing.T) {
	eachInterval(t, func(t *testing.T, k grantKind, e *env) {
		s := e.session(t)
		answers(s, true, k.creates("'a'", "'1 hour'"))
		answers(s, true, fmt.Sprintf("select not %s and free_in = '0' and %s = '-infinity' and not clock_was_set_back from lock.%s_status", k.locked, k.at, k.table))
		s.denied(k.creates("'a'", "'60 minutes'"))
		answers(s, true, k.asks("a", 1))
		answers(s, true, fmt.Sprintf("select %s and free_in between '59 minutes' and '1 hour' and free_at = %s + %s from lock.%s_status", k.locked, k.at, k.length, k.table))
		answers(s, false, k.creates("'a'", "'30 days'"))
		answers(s, false, k.creates("'a'", "'1 month'"))
		answers(s, "1 mon", fmt.Sprintf("select %s::text from lock.%s_status", k.length, k.table))
		k.sets(t, e, "now() - interval '2 hours'")
		answers(s, false, k.asks("a", 1))
		answers(s, false, k.creates("'a'", "'1 hour'"))
		answers(s, true, k.asks("a", 1))
		bad := []string{"0", "-1 second", "101 years", "1 month -28 days", "-1 month 30 days 1 hour", "-10000 years", "10000 years"}
		if target.number >= 170000 {
			bad = append(bad, "infinity")
		}
		for _, length := range bad {
			s.fails("22023", k.creates("'b'", "'"+length+"'"))
		}
		s.fails("22004", k.creates("'b'", "null"))
		answers(s, true, k.creates("'c'", "'100 years'"))
		answers(s, true, k.asks("c", 1))
		answers(s, false, k.asks("c", 1))
		answers(s, 2, "select count(*)::integer from lock."+k.table+"_status")
	})
}

// A clock that stands still meets the boundary itself.
func TestIntervalBoundary(t *testing.T) {
	eachInterval(t, func(t *testing.T, k grantKind, e *env) {
		s := e.sessionAs(t, e.super)
		answers(s, true, k.creates("'a'", "'300 microseconds'"))
		e.stopClock(t, k.function())
		grantedAt := func(microseconds int) bool {
			k.sets(t, e, "'2020-01-01Z'")
			at := fmt.Sprintf("2020-01-01 00:00:00.%06dZ", microseconds)
			s.exec("set test.clock = '" + at + "'")
			granted := get[bool](s, k.asks("a", 1))
			answers(s, granted, fmt.Sprintf("select %s = '%s' from lock.%s", k.at, at, k.table))
			return granted
		}
		if grantedAt(300) || !grantedAt(301) {
			t.Error("the interval does not end after 300 microseconds")
		}
		// The update asks again, by the same rule, whatever the look has said.
		if k.name == "throttle" {
			mutate(t, e, k.function(), "elsif passed then", "elsif true then")
			if grantedAt(300) {
				t.Error("the update does not ask again")
			}
		} else {
			mutate(t, e, k.function(), "if not passed then", "if false then")
			k.sets(t, e, "'2020-01-01Z'")
			s.exec("set test.clock = '2020-01-01 00:00:00.000300Z'")
			s.fails("40001", k.asks("a", 1))
		}
		mutate(t, e, k.function(), "< lock_internal.utc(", "<= lock_internal.utc(")
		if !grantedAt(300) {
			t.Error("the checker does not catch a microsecond")
		}
	})
}

func TestIntervalZones(t *testing.T) {
	eachInterval(t, func(t *testing.T, k grantKind, e *env) {
		s := e.session(t)
		answers(s, true, k.creates("'a'", "'1 day'"))
		for _, forward := range []bool{true, false} {
			s.exec("select set_config('timezone', $1, false)", zoneAfterChange(s, forward))
			hours := map[bool]float64{true: 23, false: 25}[forward]
			answers(s, hours*3600, "select extract(epoch from ts + interval '1 day' - ts)::float8 from (select now() - interval '23.5 hours' as ts) as yesterday")
			for _, c := range []struct {
				ago  string
				want bool
			}{{"22:59:00", false}, {"23:59:00", false}, {"24:00:01", true}, {"24:59:00", true}} {
				k.sets(t, e, "clock_timestamp() - interval '"+c.ago+"'")
				answers(s, !c.want, "select "+k.locked+" from lock."+k.table+"_status")
				answers(s, c.want, k.asks("a", 1))
			}
		}
		// Months are calendar arithmetic, in UTC.
		answers(s, false, k.creates("'a'", "'1 month'"))
		s.exec("set timezone = 'Pacific/Kiritimati'")
		for from, to := range map[string]string{
			"2026-01-31 12:00+00": "2026-02-28 12:00+00", "2024-01-31 12:00+00": "2024-02-29 12:00+00", "2026-02-28 23:30+00": "2026-03-28 23:30+00",
		} {
			k.sets(t, e, "'"+from+"'")
			answers(s, true, "select free_at = $1::text::timestamptz from lock."+k.table+"_status", to)
		}
	})
}

func TestIntervalClockSetBack(t *testing.T) {
	eachInterval(t, func(t *testing.T, k grantKind, e *env) {
		s := e.session(t)
		view := " from lock." + k.table + "_status"
		answers(s, true, k.creates("'a'", "'1 hour'"))
		k.sets(t, e, "clock_timestamp() + interval '50 minutes'")
		s.denied(k.asks("a", 1)) // for that much longer
		answers(s, true, "select clock_was_set_back and free_in > '1 hour 49 minutes'"+view)
		for _, ahead := range []string{"clock_timestamp() + interval '2 hours'", "clock_timestamp() + interval '10 years'", "'infinity'"} {
			t.Run(ahead+": denied for one interval from the first denial", func(t *testing.T) {
				k.sets(t, e, ahead)
				before := get[time.Time](s, "select clock_timestamp()")
				answers(s, true, "select clock_was_set_back"+view)
				s.exec("begin")
				answers(s, false, k.asks("a", 1))
				s.exec("rollback")
				answers(s, true, "select clock_was_set_back"+view)
				answers(s, false, k.asks("a", 1))
				answers(s, true, "select "+k.at+" between $1 and clock_timestamp() and not clock_was_set_back"+view, before)
				if k.name == "throttle" {
					answers(s, "test", "select last_locker_details"+view)
				}
				s.denied(k.asks("a", 1))
				admin(t, e, "update lock."+k.table+" set "+k.at+" = "+k.at+" - interval '1 hour'")
				answers(s, true, k.asks("a", 1))
			})
		}
	})
}

func TestGrantsStandby(t *testing.T) {
	if target.own == nil {
		t.Skip("needs a server of its own, to make a standby of it")
	}
	if _, err := os.Stat(target.own.BinDir + "/pg_basebackup"); err != nil {
		t.Skip("pg_basebackup is not installed beside the server")
	}
	t.Parallel()
	e := open(t, advisory)
	e.session(t).exec("select lock.acquire_mutex('a'), lock.create_timeout('a', '1 hour'), lock.acquire_time_slot('a', '1 hour'), lock.create_throttled_resource('a', '1 hour')")
	e.session(t).exec("select lock.take('a', 1, '1 hour')")
	standby, err := target.own.Standby(ctx)
	must(t, err)
	t.Cleanup(func() { standby.Stop() })
	config, err := pgx.ParseConfig(e.url)
	must(t, err)
	for user, calls := range map[string][]string{
		"locks_app": {
			"create_mutex('a')", "acquire_mutex('a')", "acquire_mutex('b')", "release_mutex('a')", "release_mutex('b')", "create_timeout('a', '1 hour')",
			"acquire_timeout('a')", "acquire_time_slot('a', '1 hour')", "acquire_time_slot('b', '1 hour')",
			"create_throttled_resource('a', '1 hour')", "lock_throttled_resource('a', 'why')", "take('a', 1, '1 hour')", "take('b', 1, '1 hour')",
			// The list of idle workers is unlogged. In Go a worker of a paused queue gets no further than to start_idling.
			"await_task()", "await_request(gen_random_uuid())", "start_idling('lock_task', 'q', 'w', '1 minute')", "stop_idling('lock_task', 'q', 'w')",
		},
		"locks_owner": {
			"force_release_mutex('a', 'why')", "force_release_timeout('a', 'why')", "force_release_time_slot('a', 'why')", "force_release_throttled_resource('a', 'why')",
			"force_release_rate_limit('a', 'why')", "drop_unused_rate_limits('1 day')", "drop_unused_mutexes('1 day')", "drop_unused_timeouts('1 day')", "drop_unused_time_slots('1 day')", "drop_unused_throttled_resources('1 day')",
		},
	} {
		s := e.sessionAs(t, standby.URL(user, config.Database))
		for _, call := range calls {
			s.fails("25006", "select lock."+call)
		}
	}
}

// No call scans or sorts: how many pages it touches does not grow with the rows.
func TestGrantsPlans(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	const rows, few = 150000, 600
	for _, c := range []struct {
		table, columns, values string
		calls                  []string
		drop                   string
	}{
		{"mutex", "task_id, released_at", "'id' || n, now()", []string{
			"create_mutex('new')", "acquire_mutex('id77')", "acquire_mutex('id77')", "release_mutex('id77')", "release_mutex('id77')", "acquire_mutex('newer')",
			"force_release_mutex('newer', 'test')",
		}, "drop_unused_mutexes"},
		{"timeout", "task_id, timeout", "'id' || n, '1 hour'", []string{
			"create_timeout('new', '1 hour')", "create_timeout('id77', '2 hours')", "acquire_timeout('id77')", "acquire_timeout('id77')",
			"force_release_timeout('id77', 'test')",
		}, "drop_unused_timeouts"},
		{"time_slot", "task_id, slot_start", "'id' || n, '2000-01-01'", []string{
			"acquire_time_slot('new', '1 hour')", "acquire_time_slot('id77', '1 hour')", "acquire_time_slot('id77', '1 hour')",
			"force_release_time_slot('id77', 'test')",
		}, "drop_unused_time_slots"},
		{"throttled_resource", "resource_id, throttle_interval", "'id' || n, '1 hour'", []string{
			"create_throttled_resource('new', '1 hour')", "lock_throttled_resource('id77', 'test')", "lock_throttled_resource('id77', 'test')",
			"force_release_throttled_resource('id77', 'test')",
		}, "drop_unused_throttled_resources"},
		{"rate_limit", "limit_id, rate, per, burst", "'id' || n, 1, '1 hour', 1", []string{
			"take('new', 1, '1 hour')", "take('id77', 1, '1 hour')", "take('id77', 1, '1 hour')", "force_release_rate_limit('id77', 'test')",
		}, "drop_unused_rate_limits"},
	} {
		t.Run(c.table, func(t *testing.T) {
			s.exec(fmt.Sprintf("insert into lock.%s (%s) select %s from generate_series(1, %d) n", c.table, c.columns, c.values, rows))
			s.exec("vacuum analyze lock." + c.table)
			if all := get[int](s, "select relpages from pg_class where oid = $1::text::regclass", "lock."+c.table); all < 2*few {
				t.Fatalf("%d pages are too few to tell a scan from a look-up", all)
			}
			for _, call := range c.calls {
				n := least(func() int {
					s.exec("begin")
					defer s.exec("rollback")
					n, _ := buffersOnce(s, "select lock."+call)
					return n
				})
				if n > 100 {
					t.Errorf("%s touched %d pages", call, n)
				}
				s.exec("select lock." + call)
			}
			drop := func(want int) int {
				t.Helper()
				return least(func() int {
					before := get[int](s, "select count(*)::integer from lock."+c.table)
					n, _ := buffersOnce(s, "select lock."+c.drop+"('30 days', 10)")
					if after := get[int](s, "select count(*)::integer from lock."+c.table); before-after != want {
						t.Fatalf("%s dropped %d, want %d", c.drop, before-after, want)
					}
					return n
				})
			}
			if n := drop(0); n > few {
				t.Errorf("%s touched %d pages to drop nothing", c.drop, n)
			}
			old := map[string]string{"mutex": "released_at = '2001-01-01'", "timeout": "ts = '-infinity'", "time_slot": "granted_at = '2001-01-01'",
				"throttled_resource": "last_locked = '-infinity', last_locker_details = ''", "rate_limit": "full_at = '2001-01-01'"}[c.table]
			s.exec(fmt.Sprintf("update lock.%s set %s, unused_since = '2001-01-01'", c.table, old))
			s.exec("vacuum analyze lock." + c.table)
			if n := drop(10); n > few {
				t.Errorf("%s touched %d pages to drop 10 of all", c.drop, n)
			}
			s.exec("drop index lock." + c.table + "_unused_since_idx")
			if n := drop(10); n <= few {
				t.Errorf("the checker does not see a missing index: %d pages", n)
			}
		})
	}
}

// While an old snapshot is open, nothing that was before can be cleared away. What these calls touch grows only with the pages that
// it fills, or not at all.
func TestGrantsOldSnapshot(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "it counts pages")
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	s.exec("select lock.create_throttled_resource('a', '1 microsecond', 5)")
	old := e.sessionAs(t, e.super)
	old.exec("begin isolation level repeatable read")
	old.exec("select 1")
	for _, c := range []struct {
		name, cycle, call string
		most              int
	}{
		{"a grant of several permits", "lock.lock_throttled_resource('a', 'test')", "lock.lock_throttled_resource('a', 'test')", 250},
		{"a lease that another holds", "lock.release_lease('a', lease.token) from lock.acquire_lease('a', 'me', '1 minute') as lease", "acquire_lease from lock.acquire_lease('a', 'me', '1 minute')", 30},
	} {
		s.exec("do $$ begin for cycle in 1 .. 3000 loop perform " + c.cycle + "; commit; end loop; end $$")
		s.exec("select * from lock.acquire_lease('a', 'me', '1 hour')")
		if n := buffers(s, "select "+c.call); n > c.most {
			t.Errorf("%s touched %d pages", c.name, n)
		} else {
			t.Logf("%s touched %d pages", c.name, n)
		}
		s.exec("select lock.release_lease('a', token) from lock.lease_holder")
	}
	old.exec("commit")
}

// The server's lock table is not used up by a transaction that touches many ids.
func TestGrantsManyIDs(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.session(t)
	s.exec("begin")
	for _, call := range []string{"lock.acquire_mutex('id' || n)", "lock.release_mutex('id' || n)", "lock.acquire_time_slot('id' || n, '1 hour')"} {
		answers(s, 10000, "select count(*) filter (where "+call+")::integer from generate_series(1, 10000) n")
	}
	answers(s, true, "select count(*) = 0 from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
	s.exec("commit")
}

// levels are the isolation levels that every kind must be right under.
var levels = []string{"read committed", "repeatable read", "serializable"}

// rounds is how often a race is run; LOCKS_TEST_ROUNDS multiplies it.
func rounds(t *testing.T, n int) int {
	t.Helper()
	value := os.Getenv("LOCKS_TEST_ROUNDS")
	if value == "" {
		return n
	}
	factor, err := strconv.Atoi(value)
	must(t, err)
	return n * factor
}

// A crowd is 64 connections that call one function at the same moment.
type crowd struct {
	e     *env
	conns []*pgx.Conn
}

func (e *env) crowd(t *testing.T) *crowd {
	t.Helper()
	c := &crowd{e: e, conns: make([]*pgx.Conn, 64)}
	for i := range c.conns {
		conn, err := pgx.Connect(ctx, e.url)
		must(t, err)
		t.Cleanup(func() { conn.Close(ctx) })
		c.conns[i] = conn
	}
	return c
}

// race lets every connection run sql, which returns a boolean, once and all together, each in a transaction whose snapshot, under
// snapshot isolation, is older than the start. Who is told 40001 tries again. It returns how many committed a true.
func (c *crowd) race(t *testing.T, level, sql string, args ...any) int {
	t.Helper()
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	wins := make([]bool, len(c.conns))
	errs := make([]error, len(c.conns))
	ready.Add(len(c.conns))
	for i, conn := range c.conns {
		done.Go(func() {
			first := true
			for range 1000 {
				errs[i] = func() error {
					if _, err := conn.Exec(ctx, "begin isolation level "+level+"; select 1"); err != nil {
						return err
					}
					if first {
						first = false
						ready.Done()
						<-start
					}
					if err := conn.QueryRow(ctx, sql, args...).Scan(&wins[i]); err != nil {
						return err
					}
					_, err := conn.Exec(ctx, "commit")
					return err
				}()
				if errs[i] == nil {
					return
				}
				wins[i] = false
				if _, err := conn.Exec(ctx, "rollback"); err != nil || code(errs[i]) != "40001" {
					return
				}
			}
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	total := 0
	for i := range c.conns {
		if errs[i] != nil {
			t.Fatalf("%s under %s: %v", sql, level, errs[i])
		}
		if wins[i] {
			total++
		}
	}
	return total
}

// admin runs SQL as superuser.
func admin(t *testing.T, e *env, sql string, args ...any) {
	t.Helper()
	if _, err := e.admin.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// startGet is start for a statement with one value, which is there once the statement ended.
func startGet[T any](s *session, sql string, args ...any) (*pending, *T) {
	p := &pending{s: s, sql: sql, done: make(chan error, 1)}
	value := new(T)
	go func() { p.done <- s.conn.QueryRow(ctx, sql, args...).Scan(value) }()
	return p, value
}

const explainWAL = "explain (analyze, wal, costs off, timing off, summary off, format json) "

// wroteNothing checks what explainWAL said about a call, and that the session's open transaction has no id.
func (s *session) wroteNothing(plan string) {
	s.t.Helper()
	if !strings.Contains(plan, `"WAL Records": 0,`) || !strings.Contains(plan, `"WAL Bytes": 0`) {
		s.t.Fatalf("WAL was written: %s", plan)
	}
	answers(s, true, "select pg_current_xact_id_if_assigned() is null")
}

// denied checks that a call answers false, at once and without writing anything.
func (s *session) denied(sql string) {
	s.t.Helper()
	s.exec("begin")
	answers(s, false, sql)
	s.wroteNothing(get[string](s, explainWAL+sql))
	s.exec("rollback")
}

// grantedAfterRollback checks that a call that waits for an open transaction's grant is granted when that rolls back.
func grantedAfterRollback(t *testing.T, e *env, sql string) {
	t.Helper()
	holder, waiter := e.session(t), e.session(t)
	holder.exec("begin")
	answers(holder, true, sql)
	p, granted := startGet[bool](waiter, sql)
	p.blocked()
	holder.exec("rollback")
	p.ends()
	if !*granted {
		t.Fatalf("%s: denied although the holder rolled back", sql)
	}
}

// deniedAfterCommit checks that it is denied when that commits, having written nothing, and returns it with its transaction open.
func deniedAfterCommit(t *testing.T, e *env, sql string) (waiter *session) {
	t.Helper()
	waiter, plan := lostAfterCommit(t, e, sql)
	waiter.wroteNothing(plan)
	answers(waiter, false, sql)
	return waiter
}

// lostAfterCommit lets a call wait for an open transaction's grant until that commits, and returns its plan.
func lostAfterCommit(t *testing.T, e *env, sql string) (waiter *session, plan string) {
	t.Helper()
	holder := e.session(t)
	waiter = e.session(t)
	holder.exec("begin")
	answers(holder, true, sql)
	waiter.exec("begin")
	p, said := startGet[string](waiter, explainWAL+sql)
	p.blocked()
	holder.exec("commit")
	p.ends()
	return waiter, *said
}

// zoneAfterChange is a time zone whose clocks went an hour forward, or back, twelve hours ago.
func zoneAfterChange(s *session, forward bool) string {
	change, other := "extract(doy from utc)::integer - 1 || '/' || extract(hour from utc)", "(extract(doy from utc)::integer + 180) % 365"
	zone := "format('AAA0BBB-1,%s,%s', " + change + ", " + other + ")"
	if !forward {
		zone = "format('AAA0BBB-1,%s,%s', " + other + ", " + change + ")"
	}
	return get[string](s, "select "+zone+" from (select now() at time zone 'UTC' - interval '12 hours' as utc) as ago")
}
