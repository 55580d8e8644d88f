//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	_ "gonum.org/v1/plot/vg/vgsvg"
)

// A result is all that a run has found out.
type result struct {
	When     string
	Took     string
	Machine  string
	Load     float64 // of the machine before the start
	Rounds   int
	Duration string
	Settings []string
	Versions map[string]string
	LeftOut  map[string]string
	Rows     []rowResult
}

type rowResult struct {
	ID, Title, About string
	Columns          []column
	Rounds           int
	Others           float64 // the share of the machine that others used meanwhile, 0 to 1
	Entries          []entryResult
}

type entryResult struct {
	Name, Lacks string
	Values      [][]float64 // of each column, one a round
}

func newResult() result {
	return result{
		When: time.Now().UTC().Format(time.DateOnly), Machine: machine(), Rounds: *rounds, Duration: duration.String(), Settings: settings,
		Versions: map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go")}, LeftOut: map[string]string{},
	}
}

func (r *result) save(dir string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "results.json"), append(text, '\n'), 0o644)
}

func load(dir string) (r *result, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return &result{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// table is a row as Markdown: medians, and in brackets how far ahead of that entry ours is in the rounds.
func (r rowResult) table() string {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range r.Columns {
		fmt.Fprintf(&b, " %s |", strings.TrimSuffix(c.Name+", "+c.Unit, ", ratio"))
	}
	b.WriteString(" does not guarantee |\n|---|" + strings.Repeat("---:|", len(r.Columns)) + "---|\n")
	for i, e := range r.Entries {
		fmt.Fprintf(&b, "| %s |", e.Name)
		for c := range r.Columns {
			value, ok := median(e.Values[c])
			if !ok {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " %s", grouped(value))
			if ahead, ok := r.ahead(i, c); ok {
				fmt.Fprintf(&b, " (%.2f)", ahead)
			}
			b.WriteString(" |")
		}
		fmt.Fprintf(&b, " %s |\n", e.Lacks)
	}
	return b.String()
}

// grouped is a number for people: three digits count, thousands are set apart.
func grouped(value float64) string {
	switch abs := math.Abs(value); {
	case abs < 10:
		return strconv.FormatFloat(value, 'f', 2, 64)
	case abs < 100:
		return strconv.FormatFloat(value, 'f', 1, 64)
	case abs >= 1000:
		unit := math.Pow(10, math.Floor(math.Log10(abs))-2)
		value = math.Round(value/unit) * unit
	}
	digits := strconv.FormatFloat(value, 'f', 0, 64)
	for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// block is what stands between the markers of one name in a page.
func (r *result) block(name string) (string, error) {
	if len(r.Rows) == 0 {
		return "Not measured yet: `make bench` does it.", nil
	}
	switch name {
	case "conditions":
		return r.conditions(), nil
	case "all":
		var all []string
		for _, row := range r.Rows {
			all = append(all, row.section())
		}
		return strings.Join(all, "\n\n"), nil
	case "readme":
		return r.summary(), nil
	}
	at := slices.IndexFunc(r.Rows, func(row rowResult) bool { return row.ID == name })
	if at < 0 {
		return "", fmt.Errorf("there is no row %q in results.json", name)
	}
	row := r.Rows[at]
	return wrapped(strings.TrimSpace(row.About + "\n\n" + row.table() + row.reason())), nil
}

// reason says why ours is behind a neighbour, where it is.
func (r rowResult) reason() string {
	if r.isBehind() && behind[r.ID] != "" {
		return "\n" + behind[r.ID] + "\n"
	}
	return ""
}

// isBehind says whether ours is behind a neighbour by more than the figures vary.
func (r rowResult) isBehind() bool {
	for c := range r.Columns {
		for i := range r.Entries {
			if ahead, ok := r.ahead(i, c); ok && ahead < 0.95 {
				return true
			}
		}
	}
	return false
}

// ahead is how many times as good as an entry ours is: the median of the rounds, since both had the same machine within a round.
func (r rowResult) ahead(entry, column int) (ahead float64, ok bool) {
	ours, theirs := r.Entries[0].Values[column], r.Entries[entry].Values[column]
	if entry == 0 || r.Columns[column].Unit == "ratio" {
		return 0, false
	}
	var all []float64
	for round := range min(len(ours), len(theirs)) {
		if ours[round] == 0 || theirs[round] == 0 { // of that nobody is twice as good
			continue
		}
		ratio := ours[round] / theirs[round]
		if r.Columns[column].Less {
			ratio = 1 / ratio
		}
		all = append(all, ratio)
	}
	ahead, ok = median(all)
	return ahead, ok
}

// summarised are the columns of rows that the README shows, and pictured is the row whose chart it shows.
var (
	summarised = []struct {
		row    string
		column int
	}{{"exclusive", 1}, {"network", 1}, {"capture", 1}, {"work", 0}, {"start", 0}}
	pictured = "work"
)

// summary is a table of a line for each of the summarised, and a chart.
func (r *result) summary() string {
	lines, chart := []string{"| | locks | others |", "|---|---:|---|"}, ""
	for _, s := range summarised {
		for _, row := range r.Rows {
			if row.ID != s.row || s.column >= len(row.Columns) {
				continue
			}
			var values []string
			for _, e := range row.Entries {
				if value, ok := median(e.Values[s.column]); ok {
					values = append(values, e.Name+" "+grouped(value))
				}
			}
			if len(values) == 0 {
				continue
			}
			c := row.Columns[s.column]
			_, ours, _ := strings.Cut(values[0], row.Entries[0].Name+" ")
			lines = append(lines, fmt.Sprintf("| %s: %s, %s | %s | %s |", row.Title, c.Name, c.Unit, ours, strings.Join(values[1:], "; ")))
			if row.ID == pictured && row.charted() {
				chart = fmt.Sprintf("\n\n![%s](docs/benchmarks/%s.svg)", row.Title, row.ID)
			}
		}
	}
	return strings.Join(lines, "\n") + chart
}

func (r *result) conditions() string {
	var b strings.Builder
	fmt.Fprintf(&b, "- Measured on %s in %s: %s, shared by server and clients.\n", r.When, r.Took, r.Machine)
	fmt.Fprintf(&b, "- Load before the start: %.2f. %d rounds of %s.\n", r.Load, r.Rounds, r.Duration)
	if spread, ok := r.spread(); ok {
		fmt.Fprintf(&b, "- Half of all measurements are more than %.0f %% off the median of their rounds.\n", spread*100)
	}
	fmt.Fprintf(&b, "- PostgreSQL's settings: `%s`.\n", strings.Join(r.Settings, "`, `"))
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		versions = append(versions, name+" "+r.Versions[name])
	}
	fmt.Fprintf(&b, "- Versions: %s.\n", strings.Join(versions, ", "))
	for _, name := range slices.Sorted(maps.Keys(r.LeftOut)) {
		fmt.Fprintf(&b, "- Left out: %s. %s.\n", name, r.LeftOut[name])
	}
	return wrapped(strings.TrimSpace(b.String()))
}

// spread is how far, as a fraction, half of the measurements are from the median of their rounds; of those that have five rounds.
func (r *result) spread() (float64, bool) {
	var off []float64
	for _, row := range r.Rows {
		for _, e := range row.Entries {
			for _, values := range e.Values {
				middle, ok := median(values)
				for _, value := range values {
					if ok && len(values) >= 5 && middle != 0 {
						off = append(off, math.Abs(value/middle-1))
					}
				}
			}
		}
	}
	return median(off)
}

// wrapped breaks lines that are too long for the pages; what follows in an item of a list is indented.
func wrapped(text string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		indent := ""
		if strings.HasPrefix(line, "- ") {
			indent = "  "
		}
		for len(line) > 100 && !strings.HasPrefix(line, "|") {
			at := strings.LastIndex(line[:100], " ")
			if at <= len(indent) {
				break
			}
			lines, line = append(lines, line[:at]), indent+line[at+1:]
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (r rowResult) section() string {
	text := fmt.Sprintf("## %s\n\n%s\n%s, median; others used %.0f %% of the machine meanwhile.\n\n%s", r.Title, r.About, plural(r.Rounds, "round"), 100*r.Others, r.table()+r.reason())
	if r.charted() {
		text += fmt.Sprintf("\n![%s](%s.svg)\n", r.Title, r.ID)
	}
	return wrapped(strings.TrimSpace(text))
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// charted rows compare several in one unit.
func (r rowResult) charted() bool {
	return len(r.Entries) > 1 && !slices.ContainsFunc(r.Columns, func(c column) bool { return c.Unit != r.Columns[0].Unit })
}

var colours = []color.Color{
	color.RGBA{0x1b, 0x6c, 0xa8, 255}, color.RGBA{0xb0, 0xb7, 0xbf, 255}, color.RGBA{0xe0, 0x8e, 0x45, 255},
	color.RGBA{0x5a, 0xa4, 0x69, 255}, color.RGBA{0xc4, 0x5b, 0x5b, 255}, color.RGBA{0x8e, 0x6b, 0xb0, 255},
}

// chart draws the medians as bars.
func (r rowResult) chart(path string) error {
	p := plot.New()
	p.Title.Text = r.Title
	p.Y.Label.Text, p.Y.Min = r.Columns[0].Unit, 0
	p.Legend.Top, p.Legend.Left = true, true
	names := make([]string, len(r.Columns))
	width := vg.Points(min(30, 400/float64(len(r.Columns)*len(r.Entries)+1)))
	for i, c := range r.Columns {
		names[i] = c.Name
	}
	for i, e := range r.Entries {
		values := make(plotter.Values, len(r.Columns))
		for c := range r.Columns {
			values[c], _ = median(e.Values[c])
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width = colours[i%len(colours)], 0
		bars.Offset = width * vg.Length(float64(i)-float64(len(r.Entries)-1)/2)
		p.Add(bars)
		p.Legend.Add(e.Name, bars)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.6, float64(len(names))-0.4
	p.Y.Max *= 1 + 0.08*float64(len(r.Entries)) // The legend stands above the bars.
	return p.Save(7*vg.Inch, 4*vg.Inch, path)
}

func marked(name, text string) string {
	return fmt.Sprintf("<!-- bench: %s -->\n%s\n<!-- end of bench -->\n", name, text)
}

var marker = regexp.MustCompile(`(?s)<!-- bench: ([a-z-]+) -->\n.*?\n<!-- end of bench -->\n`)

// fill puts the results between the markers of a page.
func (r *result) fill(page string) (filled string, err error) {
	filled = marker.ReplaceAllStringFunc(page, func(found string) string {
		name := marker.FindStringSubmatch(found)[1]
		text, problem := r.block(name)
		err = errors.Join(err, problem)
		return marked(name, text)
	})
	return filled, err
}

// publish draws the charts of the results in dir, and fills all pages under root.
func publish(root, dir string) error {
	r, err := load(dir)
	if err != nil {
		return err
	}
	for _, row := range r.Rows {
		if row.charted() {
			if err := row.chart(filepath.Join(dir, row.ID+".svg")); err != nil {
				return err
			}
		}
	}
	paths, err := pages(root)
	if err != nil {
		return err
	}
	for _, path := range paths {
		page, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		filled, err := r.fill(string(page))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if filled != string(page) {
			if err := os.WriteFile(path, []byte(filled), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// pages are the Markdown files that may show results.
func pages(root string) (paths []string, err error) {
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	return paths, nil
}
