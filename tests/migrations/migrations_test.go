package migrations

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRefreeze(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	must(os.CopyFS(filepath.Join(dir, "sql"), os.DirFS("../../sql")))
	before, err := Migrations(dir)
	must(err)
	must(Refreeze(dir))
	same, err := Migrations(dir)
	must(err)
	for i, m := range same {
		if m.Text != before[i].Text {
			t.Errorf("%s is rewritten, and no function has changed", m.Path)
		}
	}

	path := filepath.Join(dir, "sql/functions/key/hold_row.sql")
	text, err := os.ReadFile(path)
	must(err)
	must(os.WriteFile(path, []byte(strings.Replace(string(text), "begin\n", "begin\n    null; -- planted\n", 1)), 0o644))
	if drift, err := Drift(dir); err != nil || len(drift) != 1 {
		t.Fatalf("before: %q, %v", drift, err)
	}
	must(Refreeze(dir))
	if drift, err := Drift(dir); err != nil || len(drift) != 0 {
		t.Errorf("after: %q, %v", drift, err)
	}
	after, err := Migrations(dir)
	must(err)
	if len(after) != len(before) {
		t.Fatalf("%d migrations were %d", len(after), len(before))
	}
	changed := 0
	for i, m := range after {
		if m.Text == before[i].Text {
			continue
		}
		changed++
		if strings.Replace(m.Text, "    null; -- planted\n", "", 1) != before[i].Text {
			t.Errorf("%s is changed in more than the function", m.Path)
		}
	}
	if changed != 1 {
		t.Errorf("%d migrations are changed", changed)
	}
}
