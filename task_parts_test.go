package locks

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seed4787c507/locks/db"
)

// due are tasks that became available so many milliseconds after a time, with their attempts.
func due(since time.Time, attempt int64, milliseconds ...int) (tasks []db.Task) {
	timeout := time.Minute
	for _, ms := range milliseconds {
		at := since.Add(time.Duration(ms) * time.Millisecond)
		tasks = append(tasks, db.Task{AvailableAt: at, Attempt: attempt, Timeout: &timeout})
	}
	return tasks
}

func TestHorizon(t *testing.T) {
	epoch := time.Now().Add(-time.Hour)
	at := func(ms int) *time.Time { return &due(epoch, 1, ms)[0].AvailableAt }
	for name, c := range map[string]struct {
		found []db.Task
		mark  *time.Time // of the next look, of a worker with room for two
		holds bool       // for a second and more
	}{
		"nothing":                               {nil, nil, false},
		"a full look":                           {due(epoch, 1, 100, 200), at(200), true},
		"a look that found all":                 {due(epoch, 1, 200), at(150), false},
		"a full look that ends with a takeover": {due(epoch, 2, 100, 200), nil, false},
	} {
		var h taskHorizon
		began := time.Now()
		if h.since(began) != nil {
			t.Errorf("%s: the first look has a mark", name)
		}
		h.looked(began, nil, 2, c.found)
		if got := h.since(
			began.Add(h.rare.rest(began) - 1),
		); c.mark != nil && (got == nil || !got.Equal(*c.mark)) ||
			c.mark == nil && got != nil {
			t.Errorf("%s: the mark is %v, want %v", name, got, c.mark)
		}
		if got := h.since(began.Add(time.Second - 1)); c.holds != (got != nil) {
			t.Errorf("%s: within a second the mark is %v", name, got)
		}
		if h.since(began.Add(time.Hour)) != nil {
			t.Errorf("%s: after an hour there is a mark", name)
		}
	}
	// An expensive look from the beginning gets a twentieth of the time.
	began := time.Now().Add(-3 * time.Second)
	var h taskHorizon
	h.looked(began, nil, 2, due(epoch, 1, 100, 200))
	if h.since(began.Add(50*time.Second)) == nil || h.since(began.Add(65*time.Second)) != nil {
		t.Error("after a look of 3 s the next is not a minute later")
	}
	h.looked(time.Now(), at(200), 2, nil)
	if !h.forget() || h.since(time.Now()) != nil {
		t.Error("what is forgotten leaves a mark")
	}
}

func TestDue(t *testing.T) {
	asked := 0
	answer := func(due ...time.Duration) func() ([]time.Duration, error) {
		return func() ([]time.Duration, error) { asked++; return due, nil }
	}
	var d taskDue
	var h taskHorizon
	next := func(ask func() ([]time.Duration, error)) time.Duration {
		t.Helper()
		wait, err := d.next(&h, ask)
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	if got := next(answer()); got != 0 {
		t.Errorf("nothing is due, after %v", got)
	}
	if got := next(answer(time.Minute)); got != time.Minute {
		t.Errorf("due in a minute, and it is %v", got)
	}
	// What is due and cannot be had is another's: it is looked for less and less often.
	for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		if got := next(answer(0)); got != want*time.Millisecond {
			t.Errorf("it waits %v, want %v ms", got, int(want))
		}
	}
	if got := next(answer(time.Minute)); got != time.Minute || d.stuck != 0 {
		t.Errorf("it is had, and it waits %v", got)
	}
	// After a look from a mark, what has been due for long may be before it.
	mark := time.Now()
	h.looked(time.Now(), &mark, 1, nil)
	if got := next(answer(-time.Second)); got != time.Millisecond {
		t.Errorf("it looks from the beginning after %v", got)
	}
	// A question that takes long is not asked often.
	next(func() ([]time.Duration, error) { time.Sleep(5 * time.Millisecond); return nil, nil })
	asked = 0
	if got := next(answer(0)); got < 50*time.Millisecond || asked > 0 {
		t.Errorf("it asks again at once, or after %v", got)
	}
	d = taskDue{}
	failed := errors.New("no")
	if _, err := d.next(&h, func() ([]time.Duration, error) { return nil, failed }); !errors.Is(
		err,
		failed,
	) {
		t.Error(err)
	}
}

func TestResults(t *testing.T) {
	r := taskResults{stir: make(chan struct{}, 1)}
	of := func(id string, attempt int64) taskResult {
		return taskResult{task: db.Task{ID: id, Attempt: attempt}}
	}
	ids := func(results []taskResult) (ids []string) {
		for _, result := range results {
			ids = append(ids, result.task.ID)
		}
		return ids
	}
	r.enter()
	r.enter()
	if r.atWork() != 2 || r.calm() {
		t.Error("nobody works")
	}
	r.leave([]taskResult{of("a", 1), of("b", 1)})
	r.leave([]taskResult{of("a", 2)})
	<-r.stir
	if r.atWork() != 0 || !r.calm() {
		t.Error("somebody works")
	}
	if got := ids(r.first()); !slices.Equal(got, []string{"a", "a"}) {
		t.Errorf("the first are %v", got)
	}
	r.forget(2, false) // They could not be settled: others first.
	if got := ids(r.all()); !slices.Equal(got, []string{"b", "a", "a"}) {
		t.Errorf("kept are %v", got)
	}
	r.keep([]taskResult{of("c", 1)})
	r.forget(3, true)
	if got := ids(r.all()); !slices.Equal(got, []string{"c"}) {
		t.Errorf("kept are %v", got)
	}
	r.telling.Add(1)
	if r.calm() {
		t.Error("nobody is told")
	}
}

func TestRare(t *testing.T) {
	began := time.Now()
	r := rare{began: began, took: time.Second}
	if got := r.rest(began.Add(5 * time.Second)); got != 15*time.Second {
		t.Errorf("after a second of work it rests %v more", got)
	}
	if got := (rare{began: began}).rest(began); got > 0 {
		t.Errorf("what costs nothing rests %v", got)
	}
}
