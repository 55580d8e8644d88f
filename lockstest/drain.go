package lockstest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

// Drain works off what is due in a queue by the test's own handler, and returns what became of each
// task, in that order. The handler runs in the test's goroutine, so it may call t.Fatal. Tasks that
// it creates, and that are due, are worked off, too. Those that fail are tried again after a pause,
// which Drain does not wait for: let it pass by Rewind.
func Drain[T any](t testing.TB, pool *pgxpool.Pool, queue locks.Queue[T],
	handler func(ctx context.Context, task locks.Task[T]) error,
) []locks.TaskResult {
	t.Helper()
	results, err := queue.WorkDue(t.Context(), pool, handler)
	if err != nil {
		t.Fatalf("lockstest: %v", err)
	}
	return results
}
