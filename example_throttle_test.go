package locks_test

import (
	"fmt"
	"time"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// Many notice that the cache is stale, and one rebuilds it.
func ExampleNewThrottle() {
	_, err := db.New(pool).CreateThrottledResource(ctx, db.CreateThrottledResourceParams{ResourceID: "cache rebuild", ThrottleInterval: time.Hour, Permits: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	throttle := locks.NewThrottle(pool, "apphost 1, pid 1234")
	for range 2 {
		granted, err := throttle.Acquire(ctx, "cache rebuild")
		fmt.Println(granted, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}
