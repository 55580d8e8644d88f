package locks_test

import (
	"fmt"
	"time"

	"github.com/seed4787c507/locks"
)

// A customer has 60,000 tokens of a language model per minute. A call costs as many as its prompt.
func ExampleNewRateLimit() {
	limit := locks.NewRateLimit(pool, 60_000, time.Minute, nil)
	for range 2 {
		taken, err := limit.Take(ctx, "customer 42", 40_000)
		fmt.Println(taken.Granted, taken.RetryAfter.Round(time.Second), err)
	}
	// Output:
	// true 0s <nil>
	// false 20s <nil>
}

// No more than 100 calls a second go to a service, and no more than 2 at once.
func ExampleRateLimit_Wait() {
	limit := locks.NewRateLimit(pool, 100, time.Second, &locks.RateLimitOptions{Burst: 2})
	began := time.Now()
	for range 5 {
		if err := limit.Wait(ctx, "mail provider", 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(time.Since(began) >= 20*time.Millisecond)
	// Output: true
}

// What remains can be shown to the caller.
func ExampleRateLimit_Take() {
	taken, err := locks.NewRateLimit(pool, 100, time.Hour, nil).Take(ctx, "10.0.0.7", 1)
	fmt.Println(taken.Granted, taken.Remaining, err)
	// Output: true 99 <nil>
}
