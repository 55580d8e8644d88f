package locks_test

import (
	"fmt"
	"time"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A report is sent at most once in 20 hours, whoever asks.
func ExampleNewIntervalTimeout() {
	_, err := db.New(pool).CreateTimeout(ctx, "daily report", 20*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	var timeout locks.Timeout = locks.NewIntervalTimeout(pool)
	for range 2 {
		acquired, err := timeout.Acquire(ctx, "daily report")
		fmt.Println(acquired, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}
