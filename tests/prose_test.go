package tests

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	longestLine     = 100
	longestSentence = 25
	longestUsePage  = 700 // words outside of code
	longestREADME   = 900
)

// useHeadings are what a page for using a kind has, in this order.
var useHeadings = []string{"When to take it", "In SQL", "In Go", "Functions", "What you can rely on", "What you cannot rely on", "Operations", "Picture"}

// usePages are the pages for using a kind, and the views that each of them has to name.
var usePages = map[string][]string{
	"key": {"locked_keys"}, "mutex": {"mutex_status"}, "timeout": {"timeout_status"}, "time_slot": {"time_slot_status"},
	"throttle": {"throttled_resource_status"}, "rate_limit": {"rate_limit_status"}, "lease": {"lease_holder"}, "task": {"dead_letter"}, "request": nil, "change": nil,
}

// functionPages are the pages of the functions that are in no folder of a kind.
var functionPages = map[string]string{"admin": "installing", "common": "key", "wake": "workers"}

// projectFiles are the project's files of one extension, by their path from its root.
func projectFiles(t *testing.T, extensions ...string) (paths []string) {
	t.Helper()
	must(t, filepath.WalkDir(root(t), func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == "testdata" || name == "node_modules" || name == "out" || strings.HasPrefix(name, ".") && name != ".github" && name != "."):
			return fs.SkipDir
		case slices.Contains(extensions, filepath.Ext(name)):
			path, err = filepath.Rel(root(t), path)
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

func projectFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), path))
	must(t, err)
	return string(text)
}

var (
	loneLink  = regexp.MustCompile(`^\s*(?:[-*] )?!?\[[^\]]*\]\([^)]*\)[.,;:]?$|^\s*<?https?://\S+$`)
	generated = regexp.MustCompile(`(?s)<!-- bench: .*?<!-- end of bench -->`)
	hidden    = regexp.MustCompile(`(?s)<!--.*?-->`)
	codeSpan  = regexp.MustCompile("(?s)`[^`]+`")
	link      = regexp.MustCompile(`(?s)!?\[([^\]]*)\]\(([^)\s]*)\)`)
	item      = regexp.MustCompile(`^\s*(?:[-*]|\d+\.) `)
	ending    = regexp.MustCompile(`[.!?]["')*_]*\s+`)
	word      = regexp.MustCompile(`[\pL\pN]`)
)

// prose is a page's text line by line, with empty lines in place of code, and of what is generated.
func prose(page string) (lines []string) {
	page = generated.ReplaceAllStringFunc(page, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
	page = hidden.ReplaceAllStringFunc(page, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
	code := false
	for line := range strings.SplitSeq(page, "\n") {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if code || fence {
			code = code != fence
			line = ""
		}
		lines = append(lines, line)
	}
	return lines
}

func words(text string) (n int) {
	for _, field := range strings.Fields(text) {
		if word.MatchString(field) {
			n++
		}
	}
	return n
}

// longLines are the lines of a page that are too long. Tables, lone links, and what a program prints (text, psql) may be longer.
func longLines(page string) (wrong []string) {
	page = generated.ReplaceAllStringFunc(page, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
	output, code := false, false
	for n, line := range strings.Split(page, "\n") {
		if fence := strings.TrimSpace(line); strings.HasPrefix(fence, "```") {
			code = !code
			output = code && (fence == "```text" || fence == "```psql")
		}
		free := output || !code && (strings.HasPrefix(line, "|") || loneLink.MatchString(line))
		if length := utf8.RuneCountInString(line); length > longestLine && !free {
			wrong = append(wrong, fmt.Sprintf("line %d has %d characters", n+1, length))
		}
	}
	return wrong
}

// sentences are the sentences of a page outside of code, tables and headings. A piece of code is a word, a link is its text.
func sentences(page string) (all []string) {
	paragraph := ""
	flush := func() {
		text := codeSpan.ReplaceAllString(link.ReplaceAllString(paragraph, "$1"), "Code")
		paragraph = ""
		for text != "" {
			end := ending.FindStringIndex(text)
			if end == nil {
				all = append(all, strings.TrimSpace(text))
				return
			}
			all = append(all, strings.TrimSpace(text[:end[1]]))
			text = text[end[1]:]
		}
	}
	for _, line := range prose(page) {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "|") {
			flush()
			continue
		}
		if at := item.FindString(line); at != "" {
			flush()
			trimmed = strings.TrimSpace(line[len(at):])
		}
		paragraph += strings.TrimPrefix(trimmed, "> ") + " "
	}
	flush()
	return all
}

func longSentences(page string) (wrong []string) {
	for _, sentence := range sentences(page) {
		if n := words(sentence); n > longestSentence {
			wrong = append(wrong, fmt.Sprintf("%d words: %s", n, sentence))
		}
	}
	return wrong
}

// deadLinks are the links of a page, at a path from the project's root, that lead nowhere within the project.
func deadLinks(t *testing.T, path, page string) (wrong []string) {
	t.Helper()
	for _, found := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(strings.Join(prose(page), "\n"), "Code"), -1) {
		target, err := url.Parse(found[2])
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		if target.Scheme != "" {
			continue
		}
		text := page
		if target.Path != "" {
			text = "" // of another page
		}
		if problem := deadEnd(t, filepath.Join(filepath.Dir(path), target.Path), target.Fragment, text); problem != "" {
			wrong = append(wrong, found[2]+": "+problem)
		}
	}
	return wrong
}

// deadEnd says what is not there: a file, or a heading in it. Page is the file's text where that is known.
func deadEnd(t *testing.T, path, anchor, page string) string {
	t.Helper()
	if page == "" {
		if _, err := os.Stat(filepath.Join(root(t), path)); err != nil {
			return "there is no such file"
		}
		if anchor != "" {
			page = projectFile(t, path)
		}
	}
	if anchor != "" && !slices.Contains(anchors(strings.Join(prose(page), "\n")), anchor) {
		return "there is no such heading"
	}
	return ""
}

func TestDocsText(t *testing.T) {
	t.Parallel()
	pages := projectFiles(t, ".md")
	if len(pages) < 25 {
		t.Errorf("only %d pages were found", len(pages))
	}
	for _, path := range pages {
		page := projectFile(t, path)
		for _, wrong := range longLines(page) {
			t.Errorf("%s: %s", path, wrong)
		}
		for _, wrong := range longSentences(page) {
			t.Errorf("%s: %s", path, wrong)
		}
		for _, wrong := range deadLinks(t, path, page) {
			t.Errorf("%s: %s", path, wrong)
		}
	}

	t.Run("pages for use are alike and short", func(t *testing.T) {
		for kind := range usePages {
			page := projectFile(t, "docs/"+kind+".md")
			for _, wrong := range usePage(page) {
				t.Errorf("docs/%s.md: %s", kind, wrong)
			}
			if !strings.Contains(page, "](internals/"+kind+".md)") {
				t.Errorf("docs/%s.md does not name internals/%s.md", kind, kind)
			}
		}
		if n := words(strings.Join(prose(projectFile(t, "README.md")), "\n")); n > longestREADME {
			t.Errorf("README.md has %d words outside of code, more than %d", n, longestREADME)
		}
	})

	t.Run("files name pages and headings that there are", func(t *testing.T) {
		named := regexp.MustCompile(`\bdocs/([a-z_/]+\.md)(?:#([\w-]+))?`)
		n := 0
		for _, path := range projectFiles(t, ".go", ".sql", ".yml", ".js", ".py", ".sh") {
			for _, found := range named.FindAllStringSubmatch(projectFile(t, path), -1) {
				if n++; strings.Contains(path, "tests/prose_test.go") {
					continue
				}
				if problem := deadEnd(t, "docs/"+found[1], found[2], ""); problem != "" {
					t.Errorf("%s: %s: %s", path, found[0], problem)
				}
			}
		}
		if n < 10 {
			t.Errorf("only %d names of pages were found", n)
		}
	})

	t.Run("the checkers catch what is wrong", func(t *testing.T) {
		line := strings.Repeat("x ", 51)
		if wrong := longLines("| " + line + "\n" + line + "\n```sql\n" + line + "\n```\n```text\n" + line + "\n```\n![" + line + "](a.png)"); len(wrong) != 2 {
			t.Errorf("long lines: got %q", wrong)
		}
		long := strings.Repeat("word ", 26)
		page := "# A\n\n" + strings.Repeat("word ", 13) + "end. " + strings.Repeat("Word ", 13) + "\n- " + long + "\n- short\n\n| " + long + "|\n\n```sql\n" + long + "\n```\n" + strings.Repeat("word ", 20) + "[" + strings.Repeat("x ", 6) + "](a.md) `" + long + "`"
		if wrong := longSentences(page); len(wrong) != 2 {
			t.Errorf("long sentences: got %q", wrong)
		}
		if wrong := deadLinks(t, "docs/key.md", "# Head\n\n[a](key.md) [b](#head) [c](nothing.md) [d](#nothing) [e](key.md#nothing) [f](https://x.example/y) `[g](no.md)`"); len(wrong) != 3 {
			t.Errorf("dead links: got %q", wrong)
		}
		if wrong := usePage("# a: b\n\n## In SQL\n\n" + strings.Repeat("word ", 701)); len(wrong) != 5 {
			t.Errorf("a page: got %q", wrong)
		}
	})
}

// usePage says what is wrong with a page for using a kind.
func usePage(page string) (wrong []string) {
	var headings []string
	for _, line := range prose(page) {
		if heading, found := strings.CutPrefix(line, "## "); found {
			headings = append(headings, heading)
		}
	}
	if !slices.Equal(headings, useHeadings) {
		wrong = append(wrong, fmt.Sprintf("the headings are %q", headings))
	}
	if n := words(strings.Join(prose(page), "\n")); n > longestUsePage {
		wrong = append(wrong, fmt.Sprintf("%d words outside of code, more than %d", n, longestUsePage))
	}
	for _, fence := range []string{"psql", "go", "mermaid"} {
		if !strings.Contains(page, "\n```"+fence+"\n") {
			wrong = append(wrong, "there is no block of "+fence)
		}
	}
	return wrong
}

// unnamed are the functions, and the pages that do not name them.
func unnamed(t *testing.T, functions []string, pages map[string]string) (wrong []string) {
	t.Helper()
	folders := map[string]string{}
	for _, path := range projectFiles(t, ".sql") {
		if folder, found := strings.CutPrefix(filepath.Dir(path), "sql/functions/"); found {
			for _, made := range regexp.MustCompile(`create or replace function lock\.(\w+)\(`).FindAllStringSubmatch(projectFile(t, path), -1) {
				folders[made[1]] = folder
			}
		}
	}
	for _, name := range functions {
		page, found := functionPages[folders[name]]
		if !found {
			page = folders[name]
		}
		if !regexp.MustCompile("[`. ]" + name + `\(`).MatchString(pages[page]) {
			wrong = append(wrong, fmt.Sprintf("docs/%s.md does not name %s()", page, name))
		}
	}
	return wrong
}

// Every function and view of schema lock is on its page.
func TestDocsCatalogue(t *testing.T) {
	t.Parallel()
	s := open(t, engines()[0]).session(t)
	pages := map[string]string{}
	for _, path := range projectFiles(t, ".md") {
		if filepath.Dir(path) == "docs" {
			pages[strings.TrimSuffix(filepath.Base(path), ".md")] = projectFile(t, path)
		}
	}
	functions := get[[]string](s, "select array_agg(distinct proname::text order by proname::text) from pg_proc where pronamespace = 'lock'::regnamespace")
	if len(functions) < 60 {
		t.Errorf("only %d functions were found", len(functions))
	}
	for _, wrong := range unnamed(t, functions, pages) {
		t.Error(wrong)
	}
	views := get[[]string](s, "select array_agg(viewname::text order by viewname) from pg_views where schemaname = 'lock'")
	for _, view := range views {
		page := "activity"
		for kind := range usePages {
			if slices.Contains(usePages[kind], view) {
				page = kind
			}
		}
		if !strings.Contains(pages[page], "lock."+view) {
			t.Errorf("docs/%s.md does not name the view lock.%s", page, view)
		}
	}
	without := maps.Clone(pages)
	without["key"] = strings.ReplaceAll(without["key"], "lock.unlock(", "")
	if wrong := unnamed(t, []string{"unlock", "nothing"}, without); len(wrong) != 2 {
		t.Errorf("the checker finds %q", wrong)
	}
}

// longComments are the comments of a Go or SQL file that are too long, and the lines of SQL's "comment on".
func longComments(text, begin string) (wrong []string) {
	manual := false
	for n, line := range strings.Split(text, "\n") {
		manual = begin == "--" && (manual || strings.HasPrefix(line, "comment on "))
		comment := manual || strings.Contains(" "+strings.ReplaceAll(line, "\t", " "), " "+begin+" ")
		if length := utf8.RuneCountInString(line); comment && length > longestLine {
			wrong = append(wrong, fmt.Sprintf("line %d: a comment of %d characters", n+1, length))
		}
		manual = manual && !strings.HasSuffix(line, ";")
	}
	return wrong
}

// wideLines are those of more than 100 columns; a tab counts as four.
func wideLines(text string) (wrong []string) {
	for n, line := range strings.Split(text, "\n") {
		if length := len([]rune(strings.ReplaceAll(line, "\t", "    "))); length > 100 {
			wrong = append(wrong, fmt.Sprintf("line %d: %d columns", n+1, length))
		}
	}
	return wrong
}

// What go doc, an editor and psql show fits into a window.
func TestDocsComments(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, path := range projectFiles(t, ".go", ".sql") {
		folder, begin := filepath.Dir(path), "//"
		if filepath.Dir(folder) == "sql/functions" {
			begin = "--"
		} else if folder != "." && folder != "lockstest" && folder != "internal/wake" {
			continue
		}
		checked++
		if folder == "." || folder == "internal/wake" {
			for _, wrong := range wideLines(projectFile(t, path)) {
				t.Errorf("%s: %s", path, wrong)
			}
		}
		for _, wrong := range longComments(projectFile(t, path), begin) {
			t.Errorf("%s: %s", path, wrong)
		}
	}
	if checked < 20 {
		t.Errorf("only %d files were checked", checked)
	}
	x := strings.Repeat("x", 98)
	if wrong := longComments("// "+x+"\ncode // "+x+"\n\t// short\ncode "+x, "//"); len(wrong) != 2 {
		t.Errorf("the checker finds %q", wrong)
	}
	if wrong := wideLines(x + "xx\n\t\t" + x + "\nend"); len(wrong) != 1 {
		t.Errorf("the checker finds %q", wrong)
	}
	if wrong := longComments("-- "+x+"\nselect '"+x+"';\ncomment on function f() is\n    '"+x+"'\n    'y';\nselect '"+x+"'", "--"); len(wrong) != 2 {
		t.Errorf("the checker finds %q", wrong)
	}
}
