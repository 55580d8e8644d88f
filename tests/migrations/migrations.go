// Package migrations keeps sql/functions, where functions are edited, and sql/schema, where migrations carry frozen copies of
// them, in step: it reads both, says where they differ, and writes the next migration.
package migrations

import (
	"bufio"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

const (
	functionsDir = "sql/functions"
	schemaDir    = "sql/schema"

	sectionStart = "-- functions: written by make migration, not by hand"
	sectionEnd   = "-- end of functions"
	copyStart    = "-- file: "
	dropStart    = "-- gone: "
	guardStart   = "-- guard: written by make migration, not by hand"
	downStart    = "-- +goose Down"
	gooseStart   = "-- +goose StatementBegin"
	gooseEnd     = "-- +goose StatementEnd"

	timestamp = "20060102150405"

	atomicStart = "begin atomic"
	atomicEnd   = "end;"
)

// Functions maps the path of every function file, relative to root and with slashes, to its text.
func Functions(root string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(root, functionsDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(path) != ".sql" {
			return fmt.Errorf("%s is not an .sql file", rel)
		}
		files[filepath.ToSlash(rel)] = string(text)
		return nil
	})
	return files, err
}

// A Migration is one file of sql/schema.
type Migration struct {
	Number   int   // 1, 2, ...
	Version  int64 // when it was made, in UTC, as digits
	Previous int64 // the version of the migration before it, or 0
	Path     string
	Text     string
}

// Migrations reads sql/schema in order.
func Migrations(root string) ([]Migration, error) {
	paths, err := filepath.Glob(filepath.Join(root, schemaDir, "*.sql"))
	if err != nil {
		return nil, err
	}
	sort.Strings(paths)
	var all []Migration
	var previous int64
	for _, path := range paths {
		digits, _, _ := strings.Cut(filepath.Base(path), "_")
		version, err := strconv.ParseInt(digits, 10, 64)
		if _, bad := time.Parse(timestamp, digits); err != nil || bad != nil {
			return nil, fmt.Errorf("%s: a migration's name starts with when it was made, such as %s", path, timestamp)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, Migration{Number: len(all) + 1, Version: version, Previous: previous, Path: path, Text: string(text)})
		previous = version
	}
	return all, nil
}

// Replay returns what the frozen copies in the Up halves of the migrations leave behind: path to text.
func Replay(migrations []Migration) (map[string]string, error) {
	state := map[string]string{}
	for _, m := range migrations {
		up, _, found := strings.Cut(m.Text, downStart)
		if !found {
			return nil, fmt.Errorf("%s has no Down", m.Path)
		}
		var current string
		var body []string
		scanner := bufio.NewScanner(strings.NewReader(up))
		for scanner.Scan() {
			line := scanner.Text()
			switch {
			case strings.HasPrefix(line, copyStart), strings.HasPrefix(line, dropStart), line == sectionEnd:
				if current != "" {
					state[current] = strings.TrimRight(strings.Join(body, "\n"), "\n") + "\n"
				}
				current, body = "", nil
				if path, ok := strings.CutPrefix(line, copyStart); ok {
					current = path
				} else if path, ok := strings.CutPrefix(line, dropStart); ok {
					delete(state, path)
				}
			case line == gooseStart, line == gooseEnd:
			case current != "":
				body = append(body, line)
			}
		}
	}
	return state, nil
}

// Drift says in one line each how the function files differ from what the migrations leave behind; nothing means in step.
func Drift(root string) ([]string, error) {
	files, err := Functions(root)
	if err != nil {
		return nil, err
	}
	migrations, err := Migrations(root)
	if err != nil {
		return nil, err
	}
	state, err := Replay(migrations)
	if err != nil {
		return nil, err
	}
	var drift []string
	for _, path := range union(files, state) {
		file, inFiles := files[path]
		copied, inState := state[path]
		switch {
		case !inState:
			drift = append(drift, path+" is in no migration")
		case !inFiles:
			drift = append(drift, path+" is gone, and the migrations still make it")
		case file != copied:
			drift = append(drift, path+" differs from its last frozen copy")
		}
	}
	for _, m := range migrations {
		if guarded(m) != m.Text || m.Previous != 0 && len(guards.FindAllString(m.Text, -1)) != 2 {
			drift = append(drift, m.Path+" does not start and end as its version and the one before say")
		}
	}
	return drift, nil
}

// Write writes the next migration, named name, for everything that drifted. With amend it rewrites the function sections of
// the newest migration instead and leaves its other lines alone; that is for a migration that nobody has deployed yet.
func Write(root, name string, amend bool) (string, error) {
	files, err := Functions(root)
	if err != nil {
		return "", err
	}
	migrations, err := Migrations(root)
	if err != nil {
		return "", err
	}
	var next Migration
	if amend {
		if len(migrations) == 0 {
			return "", fmt.Errorf("there is no migration to amend")
		}
		next = migrations[len(migrations)-1]
		migrations = migrations[:len(migrations)-1]
	} else {
		if !regexp.MustCompile(`^[a-z][a-z0-9_]*$`).MatchString(name) {
			return "", fmt.Errorf("a migration's name consists of lower-case letters, digits and underscores, not %q", name)
		}
		next.Text = template
		next.Version, err = strconv.ParseInt(time.Now().UTC().Format(timestamp), 10, 64)
		if err != nil {
			return "", err
		}
		if len(migrations) > 0 {
			next.Previous = migrations[len(migrations)-1].Version
		}
		if next.Version <= next.Previous {
			return "", fmt.Errorf("the newest migration is of %d, and now is %d: is a clock wrong?", next.Previous, next.Version)
		}
		next.Path = filepath.Join(root, schemaDir, fmt.Sprintf("%d_%s.sql", next.Version, name))
	}
	state, err := Replay(migrations)
	if err != nil {
		return "", err
	}

	var up, down []string
	for _, file := range ordered(union(files, state), files) {
		after, isAfter := files[file]
		before, isBefore := state[file]
		if isAfter && isBefore && after == before {
			continue
		}
		upText, err := change(file, before, after)
		if err != nil {
			return "", err
		}
		downText, err := change(file, after, before)
		if err != nil {
			return "", err
		}
		up = append(up, upText)
		down = append(down, downText)
	}
	slices.Reverse(down)
	next.Text, err = fill(next.Path, next.Text, up, down)
	if err != nil {
		return "", err
	}
	return next.Path, os.WriteFile(next.Path, []byte(guarded(next)), 0o644)
}

// section is the part of a migration that this package writes, once in Up and once in Down. One that names folders of sql/functions
// holds all that is in them; any other holds what has changed since the migrations before.
var section = regexp.MustCompile(`(?ms)^(-- functions(?: of ([a-z_, ]+))?: written by make migration, not by hand)\n.*?^` + sectionEnd + `\n`)

// fill puts changes into the two sections of a migration.
func fill(path, text string, up, down []string) (string, error) {
	parts := section.FindAllStringSubmatchIndex(text, -1)
	if len(parts) != 2 {
		return "", fmt.Errorf("%s must have two sections that start with %q", path, sectionStart)
	}
	part := func(at []int, changes []string) string {
		return text[at[2]:at[3]] + "\n\n" + strings.Join(changes, "") + sectionEnd + "\n"
	}
	return text[:parts[0][0]] + part(parts[0], up) + text[parts[0][1]:parts[1][0]] + part(parts[1], down) + text[parts[1][1]:], nil
}

// Refreeze writes the sections of all migrations that name folders anew, from the function files as they are now. It is for
// migrations that nobody has deployed yet: before the first release.
func Refreeze(root string) error {
	files, err := Functions(root)
	if err != nil {
		return err
	}
	all, err := Migrations(root)
	if err != nil {
		return err
	}
	left := maps.Clone(files)
	for _, m := range all {
		m.Text = guarded(m)
		found := section.FindStringSubmatch(m.Text)
		if found == nil || found[2] == "" {
			if err := os.WriteFile(m.Path, []byte(m.Text), 0o644); err != nil {
				return err
			}
			continue
		}
		var paths []string
		for folder := range strings.SplitSeq(found[2], ", ") {
			for path := range left {
				if strings.HasPrefix(path, functionsDir+"/"+folder+"/") {
					paths = append(paths, path)
					delete(left, path)
				}
			}
		}
		sort.Strings(paths)
		var up, down []string
		for _, path := range ordered(paths, files) {
			upText, err := change(path, "", files[path])
			if err != nil {
				return err
			}
			downText, err := change(path, files[path], "")
			if err != nil {
				return err
			}
			up, down = append(up, upText), append(down, downText)
		}
		slices.Reverse(down)
		text, err := fill(m.Path, m.Text, up, down)
		if err != nil {
			return err
		}
		if err := os.WriteFile(m.Path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for path := range left {
		return fmt.Errorf("%s is in a folder that no migration names", path)
	}
	return nil
}

const template = `-- +goose Up
set local search_path = pg_catalog, pg_temp;
` + guardStart + `
` + gooseEnd + `

` + sectionStart + `
` + sectionEnd + `

select lock_internal.end_migration(0, 'up');

` + downStart + `
set local search_path = pg_catalog, pg_temp;
` + guardStart + `
` + gooseEnd + `

` + sectionStart + `
` + sectionEnd + `

select lock_internal.end_migration(0, 'down');
`

// guard is the first statement of every migration but the first. Its own message is for a database without the schema, where
// goose's table has been told of migrations that ran elsewhere; start_migration has one for those that ran here in part.
const guard = guardStart + "\n" + gooseStart + `
do $$
begin
    if to_regprocedure('lock_internal.start_migration(bigint, bigint, text)') is null then
        raise exception 'migration %[1]d needs %[2]d, which has not run in this database: is goose''s -table public.lock_goose_version?'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform lock_internal.start_migration(%[1]d, %[2]d, '%[3]s');
end;
$$;
` + gooseEnd + "\n"

var (
	guards = regexp.MustCompile(`(?ms)^` + guardStart + `\n.*?^` + regexp.QuoteMeta(gooseEnd) + `\n`)
	ends   = regexp.MustCompile(`(?m)^select lock_internal\.end_migration\(\d+, `)
)

// guarded is a migration's text with the guards and ends of its version, in Up and in Down.
func guarded(m Migration) string {
	up, down, _ := strings.Cut(m.Text, downStart)
	for direction, half := range map[string]*string{"up": &up, "down": &down} {
		*half = guards.ReplaceAllLiteralString(*half, fmt.Sprintf(guard, m.Version, m.Previous, direction))
		*half = ends.ReplaceAllLiteralString(*half, fmt.Sprintf("select lock_internal.end_migration(%d, ", m.Version))
	}
	return up + downStart + down
}

// change renders what takes a file's functions from one text to another; an empty text means that there is none.
func change(path, from, to string) (string, error) {
	old, err := signatures(path, from)
	if err != nil {
		return "", err
	}
	wanted, err := signatures(path, to)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	mark := copyStart
	if to == "" {
		mark = dropStart
	}
	var drops []string
	for signature, returns := range old {
		if wanted[signature] != returns {
			drops = append(drops, "drop function if exists "+signature+";\n")
		}
	}
	sort.Strings(drops)
	if len(drops) > 0 && to != "" {
		b.WriteString(strings.Join(drops, ""))
	}
	b.WriteString(mark + path + "\n")
	if to == "" {
		b.WriteString(strings.Join(drops, "") + "\n")
		return b.String(), nil
	}
	for _, statement := range Statements(to) {
		if strings.Contains(statement, "$$") || strings.Contains(statement, "\n"+atomicStart+"\n") {
			b.WriteString(gooseStart + "\n" + strings.TrimRight(statement, "\n") + "\n" + gooseEnd + "\n")
			b.WriteString(statement[len(strings.TrimRight(statement, "\n"))+1:])
		} else {
			b.WriteString(statement)
		}
	}
	b.WriteString("\n")
	return b.String(), nil
}

// Statements cuts a function file behind every line that ends a statement; blank lines stay with what they follow.
func Statements(text string) []string {
	var statements []string
	var current strings.Builder
	inBody, atomic, ended := false, false, false
	for _, line := range strings.SplitAfter(text, "\n") {
		if ended && strings.TrimSpace(line) != "" {
			statements = append(statements, current.String())
			current.Reset()
			ended = false
		}
		current.WriteString(line)
		if strings.Count(line, "$$")%2 == 1 {
			inBody = !inBody
		}
		switch line = strings.TrimRight(line, "\n"); {
		case line == atomicStart && !inBody:
			inBody, atomic = true, true
		case line == atomicEnd && atomic:
			inBody, atomic = false, false
		}
		code, _, _ := strings.Cut(strings.TrimSpace(line), "--")
		if !inBody && strings.HasSuffix(strings.TrimSpace(code), ";") {
			ended = true
		}
	}
	if strings.TrimSpace(current.String()) != "" {
		statements = append(statements, current.String())
	}
	return statements
}

var header = regexp.MustCompile(`(?ms)^create or replace function (lock(?:_internal)?\.[a-z_]+)\((.*?)\)\nreturns ([^\n]+)\n`)

// signatures maps every function of a file, as drop function names it, to what it returns.
func signatures(path, text string) (map[string]string, error) {
	found := map[string]string{}
	for _, m := range header.FindAllStringSubmatch(text, -1) {
		var types []string
		for line := range strings.Lines(m[2]) {
			line = strings.TrimSuffix(strings.TrimSpace(line), ",")
			line, _, _ = strings.Cut(line, " default ")
			if line == "" {
				continue
			}
			_, kind, ok := strings.Cut(line, " ")
			if !ok {
				return nil, fmt.Errorf("%s: %q is not a name and a type", path, line)
			}
			types = append(types, strings.TrimSpace(kind))
		}
		name := strings.TrimSuffix(filepath.Base(path), ".sql")
		if _, function, _ := strings.Cut(m[1], "."); function != name {
			return nil, fmt.Errorf("%s defines %s: a file holds the overloads of the function it is named after", path, m[1])
		}
		found[m[1]+"("+strings.Join(types, ", ")+")"] = m[3]
	}
	if text != "" && len(found) != strings.Count(text, "create or replace function") {
		return nil, fmt.Errorf("%s: not every function header has the house's shape", path)
	}
	return found, nil
}

func union(a, b map[string]string) []string {
	seen := map[string]bool{}
	var keys []string
	for _, m := range []map[string]string{a, b} {
		for key := range m {
			if !seen[key] {
				seen[key] = true
				keys = append(keys, key)
			}
		}
	}
	sort.Strings(keys)
	return keys
}

var mention = regexp.MustCompile(`\block(?:_internal)?\.([a-z_]+)\(`)

// ordered puts every function behind those that it names, where paths has them: an SQL function is bound to them when it is made.
func ordered(paths []string, files map[string]string) []string {
	of := map[string]string{}
	for _, path := range paths {
		of[strings.TrimSuffix(filepath.Base(path), ".sql")] = path
	}
	var sorted []string
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		for _, m := range mention.FindAllStringSubmatch(files[path], -1) {
			if named, ok := of[m[1]]; ok {
				visit(named)
			}
		}
		sorted = append(sorted, path)
	}
	for _, path := range paths {
		visit(path)
	}
	return sorted
}
