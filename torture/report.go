//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

func logf(format string, args ...any) { log.Printf(format, args...) }

// An event is a fault: when it began in the run, and how long it took to inject and undo.
type event struct {
	Name string        `json:"name"`
	At   time.Duration `json:"at"`
	Took time.Duration `json:"took"`
	Cut  bool          `json:"cut_short,omitempty"` // by another fault
}

// A report is what a run has shown.
type report struct {
	Command  string            `json:"command"`
	Mode     string            `json:"mode"`
	Seed     uint64            `json:"seed"`
	Versions map[string]string `json:"versions"`
	Machine  string            `json:"machine"`
	Seconds  float64           `json:"seconds"`
	Clients  int               `json:"clients"`
	Workers  int               `json:"workers"`
	Calls    int64             `json:"calls"`
	Killed   map[string]int    `json:"killed"`
	Missing  map[string]string `json:"missing"`
	Events   []event           `json:"faults"`
	Longest  map[string]gap    `json:"longest_without_answer"`
	*checker
	start int64
	took  time.Duration
}

// A gap is the longest time between two answers, and when in the run it began.
type gap struct {
	Took time.Duration `json:"took"`
	At   time.Duration `json:"at"`
}

func newReport(o options) *report {
	return &report{
		Command: o.command, Mode: o.mode, Seed: o.seed, Clients: o.clients, Workers: o.workers, Versions: map[string]string{},
		Machine: fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), Longest: map[string]gap{},
	}
}

func (r *report) versions(ctx context.Context, admin string) error {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var version string
	if err := conn.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return err
	}
	r.Versions["PostgreSQL"], r.Versions["Go"] = version, strings.TrimPrefix(runtime.Version(), "go")
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			for _, name := range []string{"pgx", "porcupine", "toxiproxy"} {
				if strings.Contains(module.Path, "/"+name) {
					r.Versions[name] = module.Version
				}
			}
		}
	}
	return nil
}

func (r *report) finish() {
	r.Seconds = r.took.Seconds()
	for _, n := range r.Checked {
		r.Calls += n
	}
	for name, m := range r.answered {
		g := gap{}
		g.Took, g.At = m.longest()
		r.Longest[name] = g
	}
}

// faultCounts are how often each sort of fault was injected, and how often another fault ended it.
func (r *report) faultCounts() (counts, cut map[string]int) {
	counts, cut = map[string]int{}, map[string]int{}
	for _, e := range r.Events {
		counts[e.Name]++
		if e.Cut {
			cut[e.Name]++
		}
	}
	return counts, cut
}

// problem is why the run has failed; empty: it has not. With an asynchronous standby it fails when the loss was not found.
func (r *report) problem() string {
	undecided := 0
	for _, n := range r.Undecided {
		undecided += n
	}
	switch {
	case r.Calls == 0:
		return "no call was checked"
	case r.Mode == "async" && r.total() == 0:
		return "an asynchronous standby was promoted, and the checkers have found nothing"
	case r.Mode != "async" && r.total() > 0:
		return fmt.Sprintf("%d violations", r.total())
	case undecided > 0:
		return fmt.Sprintf("%d histories were not decided in time", undecided)
	}
	return ""
}

// text ends with what was found: whoever sees only the end of a log sees that.
func (r *report) text() string {
	var b strings.Builder
	b.WriteString(r.tables())
	if r.Mode == "async" && r.total() > 0 {
		b.WriteString("\nThe standby was asynchronous: these violations were to be found.\n")
	}
	for i, example := range r.Examples {
		if r.Mode == "async" && i == 3 {
			break // they are expected
		}
		fmt.Fprintf(&b, "\n%s\n", example)
	}
	return b.String()
}

func (r *report) tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "- `%s`, with seed %d, on %s\n", r.Command, r.Seed, r.Machine)
	fmt.Fprintf(&b, "- PostgreSQL %s\n", r.Versions["PostgreSQL"])
	var versions []string
	for _, name := range sorted(r.Versions) {
		if name != "PostgreSQL" {
			versions = append(versions, name+" "+r.Versions[name])
		}
	}
	fmt.Fprintf(&b, "- %s\n", strings.Join(versions, ", "))
	fmt.Fprintf(&b, "- %d client processes of %d connections: %d calls in %.0f s, all of them checked\n\n", r.Clients, r.Workers, r.Calls, r.Seconds)
	b.WriteString("| kind | calls | yes | no | error | unknown | histories | violations | undecided | lost | longest without an answer |\n")
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, k := range kinds {
		if r.Checked[k.name] == 0 {
			continue
		}
		n := r.Outcomes[k.name]
		lost := "–"
		if k.final != nil {
			lost = fmt.Sprint(r.Lost[k.name])
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %s | %.1f s |\n", k.name, r.Checked[k.name], n.Yes, n.No, n.Failed, n.Unknown,
			r.Histories[k.name], r.Violations[k.name], r.Undecided[k.name], lost, r.Longest[k.name].Took.Seconds())
	}
	if len(r.Unjudged) > 0 {
		b.WriteString("\nHistories that were not judged by their times, since a fault had moved the servers' clock:\n\n")
	}
	for _, name := range sorted(r.Unjudged) {
		fmt.Fprintf(&b, "- %s: %d\n", name, r.Unjudged[name])
	}
	counts, cut := r.faultCounts()
	if len(counts)+len(r.Killed)+len(r.Missing) > 0 {
		b.WriteString("\n| fault | times |\n|---|--:|\n")
		for _, name := range sorted(counts) {
			fmt.Fprintf(&b, "| %s | %d", name, counts[name])
			if cut[name] > 0 {
				fmt.Fprintf(&b, ", %d of them cut short by another", cut[name])
			}
			b.WriteString(" |\n")
		}
		for _, point := range sorted(r.Killed) {
			fmt.Fprintf(&b, "| client killed: %s | %d |\n", point, r.Killed[point])
		}
		for _, name := range sorted(r.Missing) {
			fmt.Fprintf(&b, "| %s | not here: %s |\n", name, r.Missing[name])
		}
	}
	return b.String()
}

// publish writes the report as JSON, as Markdown and as a chart.
func (r *report) publish(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, r.name()+".json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	if err := r.chart(filepath.Join(dir, r.name()+".svg")); err != nil {
		return err
	}
	// The page has the results of both sorts of run between its markers.
	path := filepath.Join(dir, "evidence.md")
	page, err := os.ReadFile(path)
	begin, end := "<!-- torture: "+r.name()+" -->\n", "<!-- end of "+r.name()+" -->\n"
	block := fmt.Sprintf("%s\n%s\n![Answers in each second, and the faults](%s.svg)\n\n%s", begin, r.tables(), r.name(), end)
	switch before, rest, found := strings.Cut(string(page), begin); {
	case errors.Is(err, os.ErrNotExist):
		return os.WriteFile(path, []byte(block), 0o644)
	case err != nil:
		return err
	case !found:
		return os.WriteFile(path, append(page, block...), 0o644)
	default:
		_, after, closed := strings.Cut(rest, end)
		if !closed {
			return fmt.Errorf("%s: no %q", path, end)
		}
		return os.WriteFile(path, []byte(before+block+after), 0o644)
	}
}

// chart draws how many calls were answered in each second, and when which fault began.
func (r *report) chart(path string) error {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text, p.Y.Min = "seconds", "answers a second", 0
	answers := make(plotter.XYs, len(r.Rate))
	for second, n := range r.Rate {
		answers[second] = plotter.XY{X: float64(second), Y: float64(n)}
	}
	line, err := plotter.NewLine(answers)
	if err != nil {
		return err
	}
	line.Color = color.RGBA{0x1b, 0x6c, 0xa8, 255}
	p.Add(line)
	top := p.Y.Max * 1.05
	if len(r.Events) > 0 {
		events := make(plotter.XYs, len(r.Events))
		for i, e := range r.Events {
			events[i] = plotter.XY{X: e.At.Seconds(), Y: top}
		}
		marks, err := plotter.NewScatter(events)
		if err != nil {
			return err
		}
		marks.Color, marks.Radius = color.RGBA{0xc4, 0x5b, 0x5b, 255}, vg.Points(1.5)
		p.Add(marks)
		p.Legend.Add("a fault begins", marks)
		p.Legend.Add("answers", line)
		p.Legend.Top = true
	}
	p.Y.Max = top * 1.15
	return p.Save(8*vg.Inch, 3.5*vg.Inch, path)
}

func (r *report) name() string {
	if r.Mode == "async" {
		return "evidence-async"
	}
	return "evidence"
}
