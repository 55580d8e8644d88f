package tests

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var (
	pageRow    = regexp.MustCompile(`(?m)^\| (.+?) \| (.+) \|$`)
	pageCode   = regexp.MustCompile("`([^`]+)`")
	pageGo     = regexp.MustCompile(`(?m)^go ([0-9]+\.[0-9]+)`)
	pageCalled = regexp.MustCompile("^`lock\\.([a-z_]+)\\(")
)

// Each row of the table of results in docs/internals/task.md is what settling does, by each function that takes the result.
func TestPagesSettling(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(projectFile(t, "docs/internals/task.md"), "\n| result | the task is |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	says := map[string]string{ // a row's second cell, and what is true of a task that told "before" at its first try, and "why" at this one
		"done: tries 0, no message":                 "status = 'done' and tries = 0 and retries_left = 3 and message is null",
		"to be captured again after its delay":      "status = 'failed' and tries = 2 and retries_left = 3 and message = 'why'",
		"a dead letter, whatever retries were left": "status = 'failed' and tries = 2 and retries_left = 0 and message = 'why'",
		"`failed`, and backs off":                   "status = 'failed' and tries = 2 and retries_left = 3 and message = 'why' and available_at - changed_at > interval '1 second'",
		"given back, as if it had not been captured: tries - 1, retries_left + 1. When `statuses` leave out new, it gets the first of them"://
		"status = 'new' and tries = 1 and retries_left = 4 and message = 'why'",
	}
	e := open(t, advisory)
	s := e.session(t)
	settled := 0
	for _, row := range pageRow.FindAllStringSubmatch(table, -1) {
		if strings.Trim(row[1], "-| ") == "" {
			continue
		}
		want, known := says[row[2]]
		if !known {
			t.Errorf("nothing is tried of %q", row[2])
			continue
		}
		delete(says, row[2])
		results := pageCode.FindAllStringSubmatch(row[1], -1)
		for _, result := range results {
			calls := []string{
				"settle_and_capture('{a}', '{2}', '{" + result[1] + "}', 0, messages => '{why}')",
				"set_status('a', '" + result[1] + "', 2, message => 'why')",
				"set_statuses('{a}', '{2}', '" + result[1] + "', message => 'why')",
			}
			switch result[1] {
			case "dead", "retry":
				calls = calls[:1]
			case "dead => true":
				calls = []string{"set_status('a', 'failed', 2, message => 'why', dead => true)", "set_statuses('{a}', '{2}', 'failed', message => 'why', dead => true)"}
			case "failed":
				if len(results) > 1 { // dead => true stands behind it
					continue
				}
			}
			for _, call := range calls {
				s.exec("select lock.create_task('a', retries_left => 5)")
				s.exec("select lock.capture(1)")
				s.exec("select lock.set_status('a', 'failed', 1, message => 'before')")
				s.exec("select lock.capture(1)")
				s.exec("select lock." + call)
				if !get[bool](s, "select coalesce("+want+", false) from lock.get_task('a')") {
					t.Errorf("%s: not %q: %s", call, row[2], get[string](s, "select to_jsonb(task)::text from lock.get_task('a') as task"))
				}
				settled++
				taskOwner(t, e, "delete from lock.task")
			}
		}
	}
	if len(says) > 0 || settled < 10 {
		t.Errorf("%d results were tried, and the page has no row of %v", settled, says)
	}
}

// A function that operators may call, and applications may not, is said to be theirs on its page, and no other is.
func TestPagesOperators(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	theirs := map[string]bool{}
	for _, name := range strings.Fields(get[string](s, `select string_agg(distinct proname, ' ') from pg_proc
		where pronamespace = 'lock'::regnamespace and not has_function_privilege('locks_app', oid, 'execute') and prorettype <> 'trigger'::regtype
		  and proname !~ '^(grant_|revoke_)'`)) {
		theirs[name] = true
	}
	rows, marked := 0, 0
	for _, path := range projectFiles(t, ".md") {
		if !strings.HasPrefix(path, "docs/") || strings.Count(path, "/") > 1 {
			continue
		}
		for _, row := range pageRow.FindAllStringSubmatch(projectFile(t, path), -1) {
			called := pageCalled.FindStringSubmatch(row[1])
			if called == nil {
				continue
			}
			rows++
			said := strings.HasPrefix(row[2], "operators: ")
			if said {
				marked++
			}
			if said != theirs[called[1]] {
				t.Errorf("%s: lock.%s: for operators alone: %t, and the page says %t", path, called[1], theirs[called[1]], said)
			}
		}
	}
	if rows < 50 || marked < 10 {
		t.Errorf("only %d rows were found, %d of them for operators", rows, marked)
	}
}

// A call that lock_timeout may end is one that statement_timeout may end, and its comment says both.
func TestPagesTimeouts(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	named := errorsNamed(t, e.sessionAs(t, e.super))
	if len(named["55P03"]) < 8 {
		t.Errorf("only %v name 55P03", named["55P03"])
	}
	for _, object := range named["55P03"] {
		if !strings.Contains(" "+strings.Join(named["57014"], " ")+" ", " "+object+" ") {
			t.Errorf("%s names 55P03, and not 57014", object)
		}
	}
}

// The README names the versions of Go that the importer's module and the demo's need.
func TestPagesGo(t *testing.T) {
	t.Parallel()
	for module, says := range map[string]string{"": "Programs that import the package need Go %s.", "tests/": "It needs Go %s, "} {
		version := pageGo.FindStringSubmatch(projectFile(t, module+"go.mod"))
		if version == nil {
			t.Fatalf("%sgo.mod names no version", module)
		}
		if readme := strings.Join(strings.Fields(projectFile(t, "README.md")), " "); !strings.Contains(readme, fmt.Sprintf(says, version[1])) {
			t.Errorf("%sgo.mod needs Go %s, and the README says something else", module, version[1])
		}
	}
}

// What make 3.81 of macOS does not know is asked for where make says that it has it, and nowhere else.
func TestPagesMake(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("make")
	if err != nil {
		t.Skip("make is not installed")
	}
	out, err := exec.Command(program, "-C", root(t), "-n", ".FEATURES=", "test").CombinedOutput()
	if err != nil || strings.Contains(string(out), "output-sync") || !strings.Contains(string(out), "test-modules") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, newer := range []string{".SHELLFLAGS", ".ONESHELL", "$(file ", "!=", "::=", "undefine", "$(intcmp", "$(let"} {
		if strings.Contains(projectFile(t, "Makefile"), newer) {
			t.Errorf("the Makefile needs a newer make for %s", newer)
		}
	}
}
