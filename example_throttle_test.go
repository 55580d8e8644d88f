package locks_test

import (
	"fmt"
	"time"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// Many notice that the cache is stale, and one rebuilds it.
func ExampleThrottle_Every() {
	throttle := locks.NewThrottle(pool, "apphost 1, pid 1234").Every(time.Hour, 1)
	for range 2 {
		granted, err := throttle.Acquire(ctx, "cache rebuild")
		fmt.Println(granted, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// An operator makes the resource, and no program changes its limits.
func ExampleNewThrottle() {
	_, err := db.New(pool).CreateThrottledResource(ctx, db.CreateThrottledResourceParams{
		ResourceID: "mail provider", ThrottleInterval: time.Minute, Permits: 100,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	granted, err := locks.NewThrottle(pool, "newsletter 7").Acquire(ctx, "mail provider")
	fmt.Println(granted, err)
	// Output: true <nil>
}
