package lockstest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/lockstest"
)

var mail = locks.Queue[string]{Name: "mail", Tries: 2}

// A letter that nobody takes is a dead letter after its second try.
func TestDrain(t *testing.T) {
	t.Parallel()
	pool := lockstest.Pool(t)
	for _, to := range []string{"anna", "nobody"} {
		if _, err := mail.Create(t.Context(), pool, to, to, nil); err != nil {
			t.Fatal(err)
		}
	}
	send := func(_ context.Context, letter locks.Task[string]) error {
		if letter.Payload == "nobody" {
			return errors.New("return to sender")
		}
		return nil
	}
	drain := func() (got string) {
		for _, result := range lockstest.Drain(t, pool, mail, send) {
			got += fmt.Sprintf("%s %s; ", result.Task.ID, result.Outcome)
		}
		return got
	}
	if got := drain(); got != "anna done; nobody retry; " {
		t.Error(got)
	}
	if got := drain(); got != "" {
		t.Error(got)
	}
	lockstest.Rewind(t, pool, lockstest.Task("mail", "nobody"), time.Hour)
	if got := drain(); got != "nobody dead; " {
		t.Error(got)
	}
}
