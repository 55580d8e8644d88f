package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// The files of specs/ are interleavings in the language of PostgreSQL's isolationtester, each with the exact output that it
// must have. They run twice: by isolationtester where that is installed, and by runSpec everywhere, with the same output.
// An output that only the row engine has is in expected/NAME.row.out.

func TestSpec(t *testing.T) {
	onlyPostgreSQL(t, "which steps wait differs; tests/model has its rules")
	t.Parallel()
	files, err := filepath.Glob("specs/*.spec")
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there are no specs")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".spec")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := readFile(t, file)
			eachEngine(t, func(t *testing.T, e *env) {
				e.letReadKeys(t)
				want := specOutput(t, name, e.engine)
				t.Run("here", func(t *testing.T) {
					sameOutput(t, want, runSpec(t, e, parseSpec(t, text)))
				})
				t.Run("isolationtester", func(t *testing.T) {
					sameOutput(t, want, runIsolationtester(t, e, text))
				})
			})
		})
	}
}

// The specs find the published recipe's double grant: its last grant gives at once what another session still has.
func TestSpecCatchesTheRecipe(t *testing.T) {
	onlyPostgreSQL(t, "which steps wait differs")
	t.Parallel()
	for _, c := range []struct{ name, permutation, granted string }{
		{"key-unlock", "first_takes second_takes first_unlocks first_commits third_takes second_commits third_commits", "third_takes"},
		{"key-vacuum", "first_takes second_takes first_vacuums first_commits third_takes second_commits cleaner_commits", "third_takes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			waits := regexp.MustCompile(`(?m)^step ` + c.granted + `: .* <waiting \.\.\.>$`)
			if ours := permutationOutput(t, specOutput(t, c.name, row), c.permutation); !waits.MatchString(ours) {
				t.Fatalf("%s is expected to wait:\n%s", c.granted, ours)
			}
			e := open(t, row)
			_, err := e.admin.Exec(ctx, readFile(t, "testdata/recipe.sql"))
			must(t, err)
			text, _, found := strings.Cut(readFile(t, "specs/"+c.name+".spec"), "\npermutation ")
			if !found {
				t.Fatalf("%s has no permutations", c.name)
			}
			text = strings.ReplaceAll(text, "lock.", "recipe.") + "\npermutation " + c.permutation + "\n"
			grantsTwice := func(t *testing.T, output string) {
				theirs := permutationOutput(t, output, c.permutation)
				if !strings.Contains(theirs, "step "+c.granted+": ") || waits.MatchString(theirs) {
					t.Fatalf("the recipe is expected to grant %s at once:\n%s", c.granted, theirs)
				}
			}
			t.Run("here", func(t *testing.T) { grantsTwice(t, runSpec(t, e, parseSpec(t, text))) })
			t.Run("isolationtester", func(t *testing.T) { grantsTwice(t, runIsolationtester(t, e, text)) })
		})
	}
}

// permutationOutput is the part of an output that belongs to one permutation.
func permutationOutput(t *testing.T, output, permutation string) string {
	t.Helper()
	_, rest, found := strings.Cut(output, "starting permutation: "+permutation+"\n")
	if !found {
		t.Fatalf("no permutation %s in:\n%s", permutation, output)
	}
	part, _, _ := strings.Cut(rest, "starting permutation: ")
	return part
}

// specOutput is what a spec must print on an engine.
func specOutput(t *testing.T, name, engine string) string {
	t.Helper()
	path := filepath.Join("specs", "expected", name+"."+engine+".out")
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join("specs", "expected", name+".out")
	}
	return readFile(t, path)
}

// sameOutput compares line by line. LOCKS_SPEC_OUTPUT names a directory that receives what differs.
func sameOutput(t *testing.T, want, got string) {
	t.Helper()
	if got == want {
		return
	}
	if dir := os.Getenv("LOCKS_SPEC_OUTPUT"); dir != "" {
		must(t, os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".out"), []byte(got), 0o644))
	}
	wanted, permutation := strings.Split(want, "\n"), ""
	for i, line := range strings.Split(got, "\n") {
		if strings.HasPrefix(line, "starting permutation: ") {
			permutation = line
		}
		if i >= len(wanted) || line != wanted[i] {
			t.Fatalf("line %d, %s\n got: %s\nwant: %s\nthe whole output:\n%s", i+1, permutation, line, strings.Join(wanted[i:min(i+1, len(wanted))], ""), got)
		}
	}
	t.Fatalf("the output ends early:\n%s", got)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// letReadKeys lets the ordinary role see what is known, as the specs do and grant_to does not allow on the row engine.
func (e *env) letReadKeys(t *testing.T) {
	t.Helper()
	_, err := e.admin.Exec(ctx, "grant select on lock.locked_keys to locks_app")
	must(t, err)
}

// runIsolationtester returns the output of PostgreSQL's own runner, or skips the test aloud.
func runIsolationtester(t *testing.T, e *env, spec string) string {
	t.Helper()
	const place = "src/test/isolation/isolationtester"
	found, _ := filepath.Glob("/usr/lib/postgresql/*/lib/pgxs/" + place)
	if makefile, err := exec.Command("pg_config", "--pgxs").Output(); err == nil {
		found = append(found, filepath.Join(filepath.Dir(strings.TrimSpace(string(makefile))), "..", "test", "isolation", "isolationtester"))
	}
	program := ""
	for _, path := range found {
		if _, err := os.Stat(path); err == nil {
			program = path
		}
	}
	if program == "" {
		t.Skip("isolationtester is not installed: it is in Debian's postgresql-server-dev packages, and in postgresql-client since 14")
	}
	limited, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	cmd := exec.CommandContext(limited, program, e.url)
	cmd.Stdin = strings.NewReader(spec)
	var output, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("isolationtester: %v\n%s\n%s", err, problems.String(), output.String())
	}
	return output.String()
}

// A spec is a parsed file.
type spec struct {
	setups, teardown []string
	sessions         []*specSession
	steps            map[string]*specStep
	permutations     [][]string
}

type specSession struct {
	name            string
	setup, teardown string
}

type specStep struct {
	name, sql string
	session   int
}

var specToken = regexp.MustCompile(`(?s)^(?:\s+|#[^\n]*)|^\{([^}]*)\}|^"([^"]+)"|^([A-Za-z_][A-Za-z_0-9]*)`)

// parseSpec reads the part of isolationtester's language that the specs use.
func parseSpec(t *testing.T, text string) *spec {
	t.Helper()
	type token struct{ word, sql string }
	var tokens []token
	for rest := text; rest != ""; {
		m := specToken.FindStringSubmatch(rest)
		if m == nil {
			t.Fatalf("not understood: %.60s", rest)
		}
		if rest[0] == '{' {
			tokens = append(tokens, token{sql: strings.TrimSpace(m[1])})
		} else if word := m[2] + m[3]; word != "" {
			tokens = append(tokens, token{word: word})
		}
		rest = rest[len(m[0]):]
	}
	next := func() token {
		if len(tokens) == 0 {
			t.Fatal("the spec ends early")
		}
		first := tokens[0]
		tokens = tokens[1:]
		return first
	}
	s := &spec{steps: map[string]*specStep{}}
	var current *specSession
	for len(tokens) > 0 {
		switch keyword := next().word; keyword {
		case "setup":
			if current == nil {
				s.setups = append(s.setups, next().sql)
			} else {
				current.setup = next().sql
			}
		case "teardown":
			if current == nil {
				s.teardown = append(s.teardown, next().sql)
			} else {
				current.teardown = next().sql
			}
		case "session":
			current = &specSession{name: next().word}
			s.sessions = append(s.sessions, current)
		case "step":
			name := next().word
			s.steps[name] = &specStep{name: name, sql: next().sql, session: len(s.sessions) - 1}
		case "permutation":
			var names []string
			for len(tokens) > 0 && s.steps[tokens[0].word] != nil {
				names = append(names, next().word)
			}
			s.permutations = append(s.permutations, names)
		default:
			t.Fatalf("%q is not expected here", keyword)
		}
	}
	if len(s.permutations) == 0 {
		t.Fatal("the spec has no permutations")
	}
	return s
}

// A specRun is one permutation under way.
type specRun struct {
	t       *testing.T
	e       *env
	out     *bytes.Buffer
	conns   []*pgconn.PgConn
	running []*runningStep // one place per session; nil when it is idle
	waiting []*runningStep // those that were reported as waiting, in that order
}

type runningStep struct {
	*specStep
	done    chan struct{}
	results []*pgconn.Result
	err     error
}

// runSpec does what isolationtester does: it runs the steps one by one, each until it ends or is seen waiting, looks after
// each at those that were waiting, and prints it all.
func runSpec(t *testing.T, e *env, s *spec) string {
	t.Helper()
	r := &specRun{t: t, e: e, out: &bytes.Buffer{}}
	fmt.Fprintf(r.out, "Parsed test spec with %d sessions\n", len(s.sessions))
	control := e.session(t)
	for range s.sessions {
		r.conns = append(r.conns, e.session(t).conn.PgConn())
	}
	for _, names := range s.permutations {
		fmt.Fprintf(r.out, "\nstarting permutation: %s\n", strings.Join(names, " "))
		for _, sql := range s.setups {
			control.exec(sql)
		}
		for i, session := range s.sessions {
			r.quietly(i, session.setup)
		}
		r.running = make([]*runningStep, len(s.sessions))
		for _, name := range names {
			step := s.steps[name]
			if busy := r.running[step.session]; busy != nil {
				r.finish(busy)
				r.lookAtWaiting()
			}
			r.start(step)
			r.lookAtWaiting()
		}
		for len(r.waiting) > 0 {
			r.finish(r.waiting[0])
			r.lookAtWaiting()
		}
		for i, session := range s.sessions {
			r.quietly(i, session.teardown)
		}
		for _, sql := range s.teardown {
			control.exec(sql)
		}
	}
	return r.out.String()
}

func (r *specRun) quietly(session int, sql string) {
	r.t.Helper()
	if sql == "" {
		return
	}
	if _, err := r.conns[session].Exec(ctx, sql).ReadAll(); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// start runs a step until it ends or waits.
func (r *specRun) start(step *specStep) {
	r.t.Helper()
	running := &runningStep{specStep: step, done: make(chan struct{})}
	go func() {
		defer close(running.done)
		reader := r.conns[step.session].Exec(ctx, step.sql)
		for reader.NextResult() {
			// ReadAll would leave out the columns of an empty result.
			columns := slices.Clone(reader.ResultReader().FieldDescriptions())
			result := reader.ResultReader().Read()
			result.FieldDescriptions = columns
			running.results = append(running.results, result)
		}
		running.err = reader.Close()
	}()
	if r.endsOrWaits(running) {
		fmt.Fprintf(r.out, "step %s: %s\n", step.name, step.sql)
		r.print(running)
		return
	}
	fmt.Fprintf(r.out, "step %s: %s <waiting ...>\n", step.name, step.sql)
	r.running[step.session] = running
	r.waiting = append(r.waiting, running)
}

// endsOrWaits returns true when a step has ended, and false once it is seen waiting.
func (r *specRun) endsOrWaits(step *runningStep) bool {
	r.t.Helper()
	ended := false
	eventually(r.t, step.name+" ends or waits", func() bool {
		select {
		case <-step.done:
			ended = true
			return true
		case <-time.After(10 * time.Millisecond):
			return r.e.waiting(r.t, r.conns[step.session].PID())
		}
	})
	return ended
}

// lookAtWaiting reports the waiting steps that have ended, or go on to end now that nobody is in their way.
func (r *specRun) lookAtWaiting() {
	r.t.Helper()
	for i := 0; i < len(r.waiting); {
		if step := r.waiting[i]; r.endsOrWaits(step) {
			r.finish(step)
			i = 0
		} else {
			i++
		}
	}
}

// finish waits for a waiting step's end and reports it.
func (r *specRun) finish(step *runningStep) {
	r.t.Helper()
	select {
	case <-step.done:
	case <-time.After(patience):
		r.t.Fatalf("%s did not end within %v:\n%s", step.name, patience, r.out)
	}
	fmt.Fprintf(r.out, "step %s: <... completed>\n", step.name)
	r.print(step)
	r.running[step.session] = nil
	r.waiting = slices.DeleteFunc(r.waiting, func(other *runningStep) bool { return other == step })
}

// print writes results as libpq's PQprint does with a header and aligned columns.
func (r *specRun) print(step *runningStep) {
	r.t.Helper()
	for _, result := range step.results {
		if len(result.FieldDescriptions) == 0 {
			continue
		}
		var header, rule []string
		rows := make([][]string, len(result.Rows))
		for column, field := range result.FieldDescriptions {
			width, numeric := len(field.Name), true
			for _, values := range result.Rows {
				width = max(width, len(values[column]))
				numeric = numeric && (len(values[column]) == 0 || specNumber.Match(values[column]))
			}
			pad := func(value string) string {
				if numeric {
					return fmt.Sprintf("%*s", width, value)
				}
				return fmt.Sprintf("%-*s", width, value)
			}
			header = append(header, pad(field.Name))
			rule = append(rule, strings.Repeat("-", width))
			for i, values := range result.Rows {
				rows[i] = append(rows[i], pad(string(values[column])))
			}
		}
		fmt.Fprintf(r.out, "%s\n%s\n", strings.Join(header, "|"), strings.Join(rule, "+"))
		for _, values := range rows {
			fmt.Fprintln(r.out, strings.Join(values, "|"))
		}
		plural := "s"
		if len(rows) == 1 {
			plural = ""
		}
		fmt.Fprintf(r.out, "(%d row%s)\n\n", len(rows), plural)
	}
	var pg *pgconn.PgError
	if errors.As(step.err, &pg) {
		fmt.Fprintf(r.out, "%s:  %s\n", pg.Severity, pg.Message)
	} else if step.err != nil {
		r.t.Fatalf("%s: %v", step.name, step.err)
	}
}

var specNumber = regexp.MustCompile(`^[0-9. -][0-9.Ee -]*$`)
