package tests

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/lockstest/server"
)

// servers spreads names over databases, each with a schema and a pool of its own.
type servers []*pgxpool.Pool

func (s servers) of(name string) *pgxpool.Pool {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	return s[hash.Sum64()%uint64(len(s))]
}

func (s servers) Exclusive(ctx context.Context, name string, fn func(tx pgx.Tx) error) error {
	return locks.Exclusive(ctx, s.of(name), name, fn)
}

// The example of docs/engines.md: two servers, each of which has about half of the names, and a name is on one of them.
func TestServers(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("engines_test.go")
	must(t, err)
	_, block, _ := strings.Cut(projectFile(t, "docs/engines.md"), "```text\n")
	block, _, _ = strings.Cut(block, "```")
	if block == "" || !strings.Contains(string(source), block) {
		t.Error("docs/engines.md shows other code")
	}
	other, err := server.Start(ctx, server.Options{})
	if errors.Is(err, server.ErrNoBinaries) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { other.Stop() })
	must(t, migrate(other.URL("postgres", "postgres"), 0))
	spread := servers{open(t, engines()[0]).admin, openPool(t, other.URL("postgres", "postgres"), 4)}
	counts := map[string]int{}
	for n := range 100 {
		name := fmt.Sprint("name ", n)
		must(t, spread.Exclusive(ctx, name, func(tx pgx.Tx) error {
			counts[fmt.Sprint(tx.Conn().Config().Port)]++
			denied, err := locks.TryExclusive(ctx, spread.of(name), name, 0, func(pgx.Tx) error { return nil })
			if denied || err != nil {
				t.Errorf("%s: %v, %v", name, denied, err)
			}
			return nil
		}))
	}
	if len(counts) != 2 || min(counts[fmt.Sprint(other.Port)], 100-counts[fmt.Sprint(other.Port)]) < 25 {
		t.Errorf("names were spread as %v", counts)
	}
}
