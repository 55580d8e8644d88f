//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The pages and charts show what docs/benchmarks/results.json holds.
func TestPagesAgree(t *testing.T) {
	dir := filepath.Join(root, "docs/benchmarks")
	r, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := pages(root)
	if err != nil {
		t.Fatal(err)
	}
	markers := 0
	for _, path := range paths {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		filled, err := r.fill(string(page))
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if filled != string(page) {
			t.Errorf("%s is not what the results say: run make bench-docs", path)
		}
		markers += len(marker.FindAllString(filled, -1))
	}
	if markers < 20 {
		t.Errorf("only %d markers were found", markers)
	}
	for _, row := range r.Rows {
		if row.isBehind() && behind[row.ID] == "" {
			t.Errorf("%s: ours is behind, and bench/behind.go does not say why", row.ID)
		}
		if !row.charted() {
			continue
		}
		drawn := filepath.Join(t.TempDir(), "chart.svg")
		if err := row.chart(drawn); err != nil {
			t.Fatal(err)
		}
		want, _ := os.ReadFile(drawn)
		if got, err := os.ReadFile(filepath.Join(dir, row.ID+".svg")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s.svg is not what the results say (%v): run make bench-docs", row.ID, err)
		}
	}
}

func TestFill(t *testing.T) {
	r := &result{Rows: []rowResult{{
		ID: "row", About: "About.", Columns: []column{{Name: "a", Unit: "/s"}, {Name: "b", Unit: "ms", Less: true}},
		Entries: []entryResult{
			{Name: "ours", Lacks: "-", Values: [][]float64{{3000, 1000, 2000}, {1}}},
			{Name: "theirs", Lacks: "much", Values: [][]float64{{1000, 1000, 1000}, {2}}},
			{Name: "absent", Lacks: "all", Values: [][]float64{nil, nil}},
		},
	}}}
	page := "before\n<!-- bench: row -->\nold\n<!-- end of bench -->\nafter\n"
	filled, err := r.fill(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "\nafter\n", "About.", "| ours | 2,000 | 1.00 | - |", "| theirs | 1,000 (2.00) | 2.00 (2.00) | much |", "| absent | | | all |"} {
		if !strings.Contains(filled, want) {
			t.Errorf("no %q in\n%s", want, filled)
		}
	}
	if again, err := r.fill(filled); err != nil || again != filled {
		t.Errorf("filled twice it is another page: %v\n%s", err, again)
	}
	behind["row"] = "The reason."
	defer delete(behind, "row")
	if again, _ := r.fill(page); strings.Contains(again, "The reason.") {
		t.Error("it says why ours is behind where it is not")
	}
	r.Rows[0].Entries[1].Values[0] = []float64{3000, 3000, 3000}
	if again, _ := r.fill(page); !strings.Contains(again, "The reason.") {
		t.Error("it does not say why ours is behind")
	}
	r.Rows[0].ID, r.Rows[0].Title, r.Rows[0].Columns[1].Unit = "work", "Work", "/s"
	summary, err := r.fill(strings.Replace(page, "row", "readme", 1))
	for _, want := range []string{"before\n", "\nafter\n", "| Work: a, /s | 2,000 | theirs 3,000 |", "![Work](docs/benchmarks/work.svg)"} {
		if err != nil || !strings.Contains(summary, want) {
			t.Errorf("no %q in\n%s (%v)", want, summary, err)
		}
	}
	if _, err := r.fill(strings.Replace(page, "row", "nothing", 1)); err == nil {
		t.Error("a row that was not measured is shown")
	}
}

func TestNumbers(t *testing.T) {
	for value, want := range map[float64]string{0: "0.00", 0.987: "0.99", 12.34: "12.3", 999: "999", 1234: "1,230", 1234567: "1,230,000", 99950: "100,000"} {
		if got := grouped(value); got != want {
			t.Errorf("%v: got %s, want %s", value, got, want)
		}
	}
	done := []settled{{time.Second, 10}, {2 * time.Second, 10}, {4 * time.Second, 10}, {8 * time.Second, 10}}
	for _, c := range []struct{ from, to, want float64 }{{0, 1, 5}, {0, 0.25, 10}, {0.75, 1, 2.5}} {
		if got := between(done, c.from, c.to); got != c.want {
			t.Errorf("from %v to %v: got %v, want %v", c.from, c.to, got, c.want)
		}
	}
	if got := between(nil, 0, 1); got != 0 {
		t.Errorf("nothing settled: got %v", got)
	}
}
