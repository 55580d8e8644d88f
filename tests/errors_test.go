package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

var (
	errorClause = regexp.MustCompile(`(?s)errcode\s*=\s*(.*?)(?:,\s*\n|;)`)
	errorBare   = regexp.MustCompile(`raise (\w+);`)
	errorName   = regexp.MustCompile(`'(\w+)'`)
	errorState  = regexp.MustCompile(`^[0-9A-Z]{5}$`)
	// errorNamed is an SQLSTATE in a sentence: of a class that there is, unlike other numbers of five digits.
	errorNamed = regexp.MustCompile(`\b(?:0A|2[1-8]|3[BDF89]|40|42|5[3-8]|LK|P0|XX)[0-9A-Z]{3}\b`)
	// errorRow is a row of docs/errors.md, whose sections tell apart what callers see and what stays inside.
	errorRow = regexp.MustCompile("(?m)^\\| `([0-9A-Z]{5})` \\|")
)

// errorsRaised are the SQLSTATEs that the functions of both schemas raise by themselves, and who does.
func errorsRaised(t *testing.T, s *session) map[string][]string {
	t.Helper()
	type function struct{ Name, Source string }
	rows, _ := s.conn.Query(ctx, `select pg_proc.oid::regproc::text as name, prosrc as source from pg_proc
		where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace)`)
	functions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[function])
	must(t, err)
	states, raised := map[string]string{}, map[string][]string{}
	add := func(name, by string) {
		if !errorState.MatchString(name) {
			if states[name] == "" { // the server knows what its names mean
				_, err := s.conn.Exec(ctx, "do $$ begin raise exception using errcode = '"+name+"'; end $$")
				states[name] = code(err)
			}
			name = states[name]
		}
		if !slices.Contains(raised[name], by) {
			raised[name] = append(raised[name], by)
		}
	}
	for _, f := range functions {
		for _, clause := range errorClause.FindAllStringSubmatch(f.Source, -1) {
			names := errorName.FindAllStringSubmatch(clause[1], -1)
			if len(names) == 0 {
				t.Errorf("%s: what is the SQLSTATE of %q?", f.Name, clause[0])
			}
			for _, name := range names {
				add(name[1], f.Name)
			}
		}
		for _, bare := range errorBare.FindAllStringSubmatch(f.Source, -1) {
			add(bare[1], f.Name)
		}
		if n, m := strings.Count(f.Source, "raise exception"), strings.Count(f.Source, "errcode"); n > m {
			t.Errorf("%s raises %d errors, and names %d SQLSTATEs", f.Name, n, m)
		}
	}
	return raised
}

// errorsNamed are the SQLSTATEs that comments of the catalogue name.
func errorsNamed(t *testing.T, s *session) map[string][]string {
	t.Helper()
	rows, _ := s.conn.Query(ctx, `select pg_describe_object(classoid, objoid, objsubid), description from pg_description
		where classoid = 'pg_proc'::regclass and objoid in (select oid from pg_proc where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace))
		   or classoid = 'pg_class'::regclass and objoid in (select oid from pg_class where relnamespace = 'lock'::regnamespace)`)
	named := map[string][]string{}
	var object, text string
	_, err := pgx.ForEachRow(rows, []any{&object, &text}, func() error {
		for _, state := range errorNamed.FindAllString(text, -1) {
			if !slices.Contains(named[state], object) {
				named[state] = append(named[state], object)
			}
		}
		return nil
	})
	must(t, err)
	return named
}

// errorsDiffer says where page and catalogue disagree.
func errorsDiffer(page string, raised, named map[string][]string) (wrong []string) {
	seen, inside, ok := strings.Cut(page, "\n## Inside")
	if !ok {
		return []string{"the page has no section Inside"}
	}
	inside, _, _ = strings.Cut(inside, "\n## ")
	listed := map[string]int{}
	for _, row := range errorRow.FindAllStringSubmatch(seen, -1) {
		listed[row[1]]++
	}
	kept := map[string]bool{}
	for _, row := range errorRow.FindAllStringSubmatch(inside, -1) {
		kept[row[1]] = true
	}
	for _, state := range slices.Sorted(maps.Keys(raised)) {
		if listed[state] == 0 && !kept[state] {
			wrong = append(wrong, fmt.Sprintf("%s is raised by %v, and not on the page", state, raised[state]))
		}
	}
	for _, state := range slices.Sorted(maps.Keys(named)) {
		if listed[state] == 0 && !kept[state] {
			wrong = append(wrong, fmt.Sprintf("%s is named by %v, and not on the page", state, named[state]))
		}
	}
	for _, state := range slices.Sorted(maps.Keys(listed)) {
		if raised[state] == nil && named[state] == nil {
			wrong = append(wrong, state+" is on the page, and neither raised nor named")
		}
		if listed[state] > 1 || kept[state] {
			wrong = append(wrong, state+" is on the page twice")
		}
	}
	for _, state := range slices.Sorted(maps.Keys(kept)) {
		if raised[state] == nil || named[state] != nil {
			wrong = append(wrong, state+" is said to stay inside, and is not raised, or is promised to callers")
		}
	}
	return wrong
}

// TestErrors compares docs/errors.md with what the catalogue raises and says.
func TestErrors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "errors.md"))
	must(t, err)
	page := string(text)
	e := open(t, engines()[0])
	s := e.sessionAs(t, e.super)
	raised, named := errorsRaised(t, s), errorsNamed(t, s)
	if len(raised) < 15 || len(named) < 10 {
		t.Errorf("only %d are raised and %d are named", len(raised), len(named))
	}
	for _, wrong := range errorsDiffer(page, raised, named) {
		t.Error(wrong)
	}
	// The checker notices whatever is missing, on either side.
	s.exec(`create function lock.added() returns void language plpgsql as $$ begin
			raise exception 'a' using errcode = 'division_by_zero';
		end $$; comment on function lock.added() is 'Errors: 58P01 odd, not 16384.'`)
	for what, change := range map[string]struct {
		page string
		want int
	}{
		"a new error and a new comment": {page, 2},
		"a row that is gone":            {strings.Replace(page, "| `P0002` |", "| P0002 |", 1), 3},
		"a row of nothing":              {strings.Replace(page, "| `P0002` |", "| `P0003` |\n| `P0002` |", 1), 3},
		"a row that is there twice":     {strings.Replace(page, "| `P0002` |", "| `P0002` |\n| `P0002` |", 1), 3},
		"an error that stays inside":    {strings.Replace(page, "| `LK002` |", "| LK002 |", 1), 3},
	} {
		wrong := errorsDiffer(change.page, errorsRaised(t, s), errorsNamed(t, s))
		// What is both raised and named, and gone, is missed twice.
		if len(wrong) != change.want && !(what == "a row that is gone" && len(wrong) == 4) {
			t.Errorf("%s: %q", what, wrong)
		}
	}
}
