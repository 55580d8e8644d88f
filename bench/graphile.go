//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// installGraphile puts graphile-worker and the Node.js that it wants into graphile/node_modules, and returns that Node.js.
func installGraphile(ctx context.Context) (string, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", err
	}
	node, err := filepath.Abs("graphile/node_modules/node/bin/node")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(node); err == nil {
		return node, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "ci", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = "graphile"
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %.300s", err, text)
	}
	_, err = os.Stat(node)
	return node, err
}

// graphileTasks is graphile-worker, in a process of its own: with its local queue and its batches of completions.
func graphileTasks(node string) *queue {
	return &queue{
		id: "graphile", name: "graphile-worker", database: "graphile",
		lacks: "a dead worker's job comes again after four hours; a stale worker's completion is not refused; no history; completions that are in a batch are lost by a crash",
		setup: func(ctx context.Context, l *lab) error {
			for name, file := range map[string]string{"graphile-worker": "graphile-worker", "Node.js": "node"} {
				version, err := packageVersion(file)
				if err != nil {
					return err
				}
				l.result.Versions[name] = version
			}
			text, err := command(ctx, node, "graphile/worker.mjs", l.url("graphile"), "migrate").Output()
			if err != nil {
				return fmt.Errorf("%w: %s", err, text)
			}
			return nil
		},
		empty: "truncate graphile_worker._private_jobs",
		fill: `select count(*) from graphile_worker.add_jobs(array(
			select jsonb_populate_record(null::graphile_worker.job_spec, '{"identifier": "noop", "payload": {}}') from generate_series(1, $1::integer)))`,
		left:  "select exists (select from graphile_worker._private_jobs)",
		sizes: "pg_total_relation_size('graphile_worker._private_jobs')",
		create: func(ctx context.Context, conn *pgx.Conn, sent int64) error {
			_, err := conn.Exec(ctx, "select graphile_worker.add_job('noop', $1::json)", payload(sent))
			return err
		},
		work: func(ctx context.Context, l *lab, how workers, handle func(int64)) error {
			concurrency, size := how.number, 0
			if how.batch > 1 {
				concurrency, size = 24, 500
			}
			cmd := command(context.WithoutCancel(ctx), node, "graphile/worker.mjs", l.url("graphile"), strconv.Itoa(concurrency), strconv.Itoa(size))
			stdin, err := cmd.StdinPipe()
			if err != nil {
				return err
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			defer context.AfterFunc(ctx, func() { stdin.Close() })()
			for lines := bufio.NewScanner(stdout); lines.Scan(); {
				sent, _ := strconv.ParseInt(lines.Text(), 10, 64)
				handle(sent)
			}
			return cmd.Wait()
		},
	}
}

func packageVersion(name string) (string, error) {
	text, err := os.ReadFile("graphile/package.json")
	if err != nil {
		return "", err
	}
	_, rest, found := strings.Cut(string(text), `"`+name+`": "`)
	if !found {
		return "", fmt.Errorf("graphile/package.json does not name %s", name)
	}
	version, _, _ := strings.Cut(rest, `"`)
	return version, nil
}
