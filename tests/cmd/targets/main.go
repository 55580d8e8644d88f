// Command targets runs the tests against every target that can be had, and says at the end which it ran on, which it skipped and
// why. Arguments behind -- go to go test.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed4787c507/locks/lockstest/server"
	"github.com/seed4787c507/locks/tests/container"
)

// A target is a server to run the tests against, or the reason why it cannot be had.
type target struct {
	name string
	env  []string
	why  error
}

// parallel is how many tests run at once: most of them wait most of the time, so on two processors six are no more work than two.
const parallel = "6"

type outcome struct{ passed, failed, skipped int }

func main() {
	bin := flag.String("bin", "../.bin", "where gotestsum and the matrix's servers are")
	only := flag.String("only", "local,url,container,yugabyte,yugabyte-plain", "targets, or matrix for every server in bin/postgres-*")
	must := flag.Bool("must", false, "fail when a target cannot be had")
	versions := flag.String("versions", "", "those of the matrix, with blanks between them; empty: every server in bin")
	pull := flag.Bool("pull", false, "get images that the Docker engine does not have")
	flag.Parse()

	var targets []target
	for name := range strings.SplitSeq(*only, ",") {
		targets = append(targets, find(name, *bin, *versions, *pull)...)
	}
	var lines []string
	total := outcome{}
	broken := false
	packages := "./..."
	for _, t := range targets {
		if t.why != nil {
			lines = append(lines, fmt.Sprintf("%-14s skipped: %v", t.name, t.why))
			total.skipped++
			broken = broken || *must
			continue
		}
		fmt.Printf("\n== target %s\n", t.name)
		result, version, err := run(*bin, t, append(flag.Args(), packages))
		packages = "." // the others have nothing to do with a server, and have run
		line := fmt.Sprintf("%-14s %d passed, %d failed, %d skipped   %s", t.name, result.passed, result.failed, result.skipped, version)
		if err != nil {
			broken = true
			line += "   " + err.Error()
		}
		lines = append(lines, line)
		total.passed += result.passed
		total.failed += result.failed
		total.skipped += result.skipped
	}
	fmt.Printf("\n== summary (a skipped target counts as one skipped test)\n%s\n", strings.Join(lines, "\n"))
	fmt.Printf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
	if broken || total.passed == 0 && total.skipped == 0 {
		os.Exit(1)
	}
}

func find(name, bin, versions string, pull bool) []target {
	t := target{name: name, env: []string{"LOCKS_TEST_TARGET=" + name}}
	switch name {
	case "local", "pgbouncer", "disguised":
		_, t.why = server.FindBinaries()
	case "url":
		if os.Getenv("LOCKS_TEST_URL") == "" {
			t.why = errors.New("LOCKS_TEST_URL is not set")
		}
	case "container":
		t.why = container.Ready(context.Background(), pull)
	case "yugabyte":
		t.why = container.YugabyteReady(context.Background(), pull)
	case "yugabyte-plain":
		t.why = container.YugabyteReady(context.Background(), pull)
		if os.Getenv("LOCKS_TEST_YUGABYTE_URL") != "" {
			t.why = errors.New("LOCKS_TEST_YUGABYTE_URL names one server, with the flags that it has")
		}
	case "matrix":
		dirs, _ := filepath.Glob(filepath.Join(bin, "postgres-*", "native", "bin"))
		if versions != "" {
			dirs = nil
			for version := range strings.FieldsSeq(versions) {
				major, _, _ := strings.Cut(version, ".")
				dirs = append(dirs, filepath.Join(bin, "postgres-"+major, "native", "bin"))
			}
		}
		if len(dirs) == 0 {
			t.why = fmt.Errorf("no servers in %s/postgres-*", bin)
			break
		}
		var all []target
		for _, dir := range dirs {
			abs, err := filepath.Abs(dir)
			all = append(all, target{
				name: filepath.Base(filepath.Dir(filepath.Dir(dir))),
				env:  []string{"LOCKS_TEST_TARGET=local", "LOCKS_PG_BIN=" + abs},
				why:  err,
			})
		}
		return all
	default:
		t.why = fmt.Errorf("there is no target %q", name)
	}
	return []target{t}
}

func run(bin string, t target, args []string) (outcome, string, error) {
	events, err := os.CreateTemp("", "locks-test-*.json")
	if err != nil {
		return outcome{}, "", err
	}
	defer os.Remove(events.Name())
	defer events.Close()
	args = append([]string{"--format", "pkgname", "--jsonfile", events.Name(), "--", "-count=1", "-timeout=180m", "-parallel=" + parallel}, args...)
	cmd := exec.Command(filepath.Join(bin, "gotestsum"), args...)
	cmd.Env = append(os.Environ(), t.env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()

	var o outcome
	version := ""
	reasons := map[string]string{} // what a test said last
	parents := map[string]bool{}   // a test with subtests is not counted beside them
	var ended []struct{ Action, Package, Test string }
	scanner := bufio.NewScanner(events)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var event struct{ Action, Package, Test, Output string }
		if json.Unmarshal(scanner.Bytes(), &event) != nil {
			continue
		}
		if rest, ok := strings.CutPrefix(event.Output, "target "+strings.TrimPrefix(t.env[0], "LOCKS_TEST_TARGET=")+": "); ok {
			version, _, _ = strings.Cut(strings.TrimSpace(rest), " on ")
		}
		if text := strings.TrimSpace(event.Output); text != "" && !strings.HasPrefix(text, "---") && !strings.HasPrefix(text, "===") {
			reasons[event.Package+" "+event.Test] = text
		}
		if event.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, event.Action) {
			ended = append(ended, struct{ Action, Package, Test string }{event.Action, event.Package, event.Test})
			for name := event.Test; strings.Contains(name, "/"); {
				name = name[:strings.LastIndex(name, "/")]
				parents[event.Package+" "+name] = true
			}
		}
	}
	for _, event := range ended {
		if event.Action == "skip" && !parents[event.Package+" "+event.Test] {
			fmt.Printf("skipped: %s: %s\n", event.Test, strings.TrimSpace(reasons[event.Package+" "+event.Test]))
		}
		switch {
		case event.Action == "fail":
			o.failed++
		case parents[event.Package+" "+event.Test]:
		case event.Action == "pass":
			o.passed++
		default:
			o.skipped++
		}
	}
	return o, version, err
}
