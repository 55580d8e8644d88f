package locks_test

import (
	"fmt"

	"github.com/seed4787c507/locks"
)

// The next import does not start while the last one has not finished, even if that one's process is
// gone.
func ExampleNewDurableMutex() {
	var mutex locks.Mutex = locks.NewDurableMutex(pool, "host 7")
	acquired, err := mutex.Acquire(ctx, "nightly import")
	if err != nil || !acquired {
		fmt.Println("not now:", err)
		return
	}
	again, err := mutex.Acquire(ctx, "nightly import")
	fmt.Println("a second run:", again, err)

	released, err := mutex.Release(ctx, "nightly import")
	fmt.Println("released:", released, err)
	// Output:
	// a second run: false <nil>
	// released: true <nil>
}

func ExampleDurableMutex_Acquire() {
	mutex := locks.NewDurableMutex(pool, "")
	_, err := mutex.Acquire(ctx, "")
	fmt.Println(err)
	// Output: locks: acquire mutex "": ERROR: task_id must not be empty (SQLSTATE 22023)
}
