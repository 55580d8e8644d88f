package locks_test

import (
	"fmt"
	"time"

	"github.com/seed4787c507/locks"
)

// Every process calls it when its own clock says so; one of them is granted the slot.
func ExampleNewTimeSlot() {
	slot := locks.NewTimeSlot(pool, 1000*24*time.Hour)
	for range 2 {
		granted, err := slot.Acquire(ctx, "quarterly figures")
		fmt.Println(granted, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}
