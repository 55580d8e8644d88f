package model

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// reaches compares what went wrong with what must go wrong.
func reaches(t *testing.T, result Result, want ...string) {
	t.Helper()
	t.Logf("%s: %d states, %d steps", t.Name(), result.States, result.Transitions)
	got := slices.Sorted(maps.Keys(result.Violations))
	if !slices.Equal(got, want) {
		t.Errorf("reached %q, want %q", got, want)
		for _, name := range got {
			if !slices.Contains(want, name) {
				t.Logf("%s:\n%s", name, strings.Join(result.Violations[name], "\n"))
			}
		}
	}
	if result.States < 100 {
		t.Error("too few states to mean anything")
	}
}

const (
	twice    = "granted twice"
	itself   = "waits for itself"
	tryWaits = "a try waits"
	unseen   = "a deadlock that nobody sees"
)

func TestModelRows(t *testing.T) {
	one := [processes]uint8{1, 1, 1}
	two := [processes]uint8{2, 2, 0}
	for _, c := range []struct {
		name string
		r    Rows
		want []string
	}{
		{"deep: YugabyteDB, read committed, a longer transaction beside two", Rows{Levels: []Isolation{ReadCommitted}, Statements: [processes]uint8{2, 1, 1}}, []string{tryWaits}},

		// The write outside the transaction looks first and writes then. In between it can meet a lock: a try then waits, and no
		// detector sees that wait. Nothing is granted twice, whatever happens.
		{"YugabyteDB, read committed", Rows{Levels: []Isolation{ReadCommitted}, Statements: one}, []string{tryWaits}},
		{"YugabyteDB, snapshot", Rows{Levels: []Isolation{Snapshot}, Statements: one}, []string{tryWaits}},
		{"YugabyteDB, serializable", Rows{Levels: []Isolation{Serializable}, Statements: one}, nil},
		{"YugabyteDB, read committed, two statements", Rows{Levels: []Isolation{ReadCommitted}, Statements: two}, []string{unseen, tryWaits}},
		{"YugabyteDB, snapshot, two statements", Rows{Levels: []Isolation{Snapshot}, Statements: two}, []string{unseen, tryWaits}},
		{"YugabyteDB, serializable, two statements", Rows{Levels: []Isolation{Serializable}, Statements: two}, nil},
		{"YugabyteDB, all levels beside each other", Rows{Levels: []Isolation{ReadCommitted, Snapshot, Serializable}, Statements: [processes]uint8{1, 1, 0}}, []string{tryWaits}},
		{"PostgreSQL, read committed, two statements", Rows{PostgreSQL: true, Levels: []Isolation{ReadCommitted}, Statements: two}, nil},
		{"PostgreSQL, snapshot, two statements", Rows{PostgreSQL: true, Levels: []Isolation{Snapshot}, Statements: two}, nil},

		// What fails without what the functions do.
		{"with an insert in one step no try waits", Rows{Levels: []Isolation{ReadCommitted}, Statements: two, OneStepInsert: true}, nil},
		{"the usual recipe grants twice on PostgreSQL", Rows{PostgreSQL: true, Levels: []Isolation{ReadCommitted}, Statements: [processes]uint8{1, 1, 0}, TakesAbsenceForALock: true}, []string{twice}},
		{"the usual recipe grants twice on YugabyteDB", Rows{Levels: []Isolation{ReadCommitted}, Statements: [processes]uint8{1, 1, 0}, TakesAbsenceForALock: true}, []string{tryWaits, twice}},
		{"the usual recipe grants twice under snapshot isolation", Rows{Levels: []Isolation{Snapshot}, Statements: [processes]uint8{1, 1, 0}, TakesAbsenceForALock: true}, []string{tryWaits, twice}},
		{"a key that was unlocked and is locked again waits for itself, inserted outside", Rows{Levels: []Isolation{ReadCommitted}, Statements: [processes]uint8{2, 0, 0}, AlwaysOutside: true}, []string{unseen, tryWaits, itself}},
		{"a new key waits for itself under serializable, inserted outside", Rows{Levels: []Isolation{Serializable}, Statements: [processes]uint8{1, 1, 0}, AlwaysOutside: true}, []string{unseen, itself}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasPrefix(c.name, "deep") && os.Getenv("LOCKS_MODEL") != "deep" {
				t.Skip("takes some minutes and 4 GB: LOCKS_MODEL=deep")
			}
			t.Parallel()
			reaches(t, c.r.Check(), c.want...)
		})
	}
}

func TestModelCapture(t *testing.T) {
	for _, c := range []struct {
		name string
		c    Capture
		want []string
	}{
		{"YugabyteDB", Capture{Levels: []Isolation{ReadCommitted, Snapshot, Serializable}}, nil},
		{"PostgreSQL", Capture{PostgreSQL: true, Levels: []Isolation{ReadCommitted, Snapshot}}, nil},
		{"the usual recipe captures twice on PostgreSQL", Capture{PostgreSQL: true, Levels: []Isolation{ReadCommitted}, WithoutLock: true}, []string{"captured twice"}},
		{"the usual recipe is right where a conflict starts the statement again", Capture{Levels: []Isolation{ReadCommitted}, WithoutLock: true}, nil},
		{"without its attempt a worker that was given up settles", Capture{Levels: []Isolation{ReadCommitted}, IgnoresAttempt: true}, []string{"a stale worker settled"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reaches(t, c.c.Check(), c.want...)
		})
	}
}

func TestModelRequests(t *testing.T) {
	const put, two, early = "a put-back entity did not wait", "an entity in two hands", "an update before its create"
	for _, c := range []struct {
		name string
		r    Requests
		want []string
	}{
		{"PostgreSQL", Requests{PostgreSQL: true}, nil},
		{"YugabyteDB", Requests{}, nil},
		{"PostgreSQL, snapshot", Requests{PostgreSQL: true, Snapshot: true}, []string{put, early}},
		{"YugabyteDB, snapshot", Requests{Snapshot: true}, []string{put, early}},
		{"PostgreSQL, the lock given up before the commit", Requests{PostgreSQL: true, LetsGoEarly: true}, []string{put, two}},
		{"YugabyteDB, the lock given up before the commit", Requests{LetsGoEarly: true}, []string{put, two}},
		{"PostgreSQL, what is outstanding read before the lock", Requests{PostgreSQL: true, LooksFirst: true}, []string{put, early}},
		{"YugabyteDB, what is outstanding read before the lock", Requests{LooksFirst: true}, []string{put, early}},
		{"a lock that is kept for nothing", Requests{PostgreSQL: true, KeepsPassedOver: true}, []string{"in others' way"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reaches(t, c.r.Check(), c.want...)
		})
	}
}

func TestModelWake(t *testing.T) {
	asleep := []string{"a task waits and everybody sleeps"}
	for _, c := range []struct {
		name string
		w    Wake
		want []string
	}{
		{"PostgreSQL", Wake{}, nil},
		{"PostgreSQL, with a listener that breaks", Wake{LosesListener: true}, nil},
		{"YugabyteDB", Wake{AlwaysNotifies: true, HiddenIDs: true, LosesListener: true}, nil},
		{"a producer that looks before it has its id", Wake{LooksFirst: true}, asleep},
		{"a worker that reads which ids are open before it commits its line", Wake{ReadsFirst: true}, asleep},
		{"a worker that does not wait for those who were open", Wake{SkipsOpen: true}, asleep},
		{"a worker without an id of its own", Wake{SkipsYoung: true}, asleep},
		{"a worker that captures once", Wake{CapturesOnce: true}, asleep},
		{"a server that hides open ids", Wake{HiddenIDs: true}, asleep},
		{"nobody is woken after a reconnect", Wake{LosesListener: true, SleepsOn: true}, asleep},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reaches(t, c.w.Check(), c.want...)
		})
	}
}

func TestModelKeys(t *testing.T) {
	const two, forgotten = "two of a key in progress", "forgotten"
	for _, c := range []struct {
		name string
		k    Keys
		want []string
	}{
		{"the count is behind the lock, and whoever leaves a place says so", Keys{}, nil},
		{"nobody asks for the lock", Keys{WithoutLock: true}, []string{two}},
		{"what was seen before the lock", Keys{CountsBefore: true}, []string{two}},
		{"the lock is given up before the commit", Keys{GivesUpEarly: true}, []string{two}},
		{"a place is announced only where a task is seen to wait", Keys{ForgetsWakeUp: true}, []string{forgotten}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reaches(t, c.k.Check(), c.want...)
		})
	}
}
