//go:build unix

// Command demo shows the locks at work on a PostgreSQL that it finds or starts. `make demo` runs it.
//
// Every kind has a section in a file of its own, which registers itself in sections. A section may start processes: they are
// this same program, and run the section's process function.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// A section shows one kind at its main job.
type section struct {
	kind    string
	title   string
	show    func(ctx context.Context, d *demo) error    // returns an error when the proof fails
	process func(ctx context.Context, p *process) error // what the processes do that show starts
}

var sections []section

// order is the order of the sections; a kind that is not named comes last.
var order = []string{"key", "mutex", "timeout", "time_slot", "throttle", "rate_limit", "lease", "task", "request", "change", "activity"}

var (
	root = flag.String("root", "..", "the project's root")
	keep = flag.Bool("keep", false, "leave the server up that the demo started")
	kind = flag.String("kind", "", "only this kind")

	console = flag.String("console", "", "play again and again, and start this program, locks, as its console beside it")
	listen  = flag.String("listen", "127.0.0.1:8437", "where the console listens")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // The second Ctrl-C ends the program at once.
	if request := os.Getenv(processVariable); request != "" {
		os.Exit(beProcess(ctx, request))
	}
	flag.Parse()
	err := run(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted; everything of the demo is cleaned up")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	t, err := findTarget(ctx, *keep)
	if err != nil {
		return err
	}
	d := &demo{url: t.url, schema: fmt.Sprintf("locks_demo_%d_%x", os.Getpid(), time.Now().UnixMilli()), started: time.Now()}
	installed := false
	defer func() {
		err = errors.Join(err, d.clean(ctx))
		err = errors.Join(err, farewell(ctx, t, installed))
	}()

	d.conn, err = connect(ctx, t.url, d.schema+"/demo")
	if err != nil {
		return err
	}
	defer d.conn.Close(context.WithoutCancel(ctx))
	var version string
	if err := d.conn.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return err
	}
	fmt.Printf("PostgreSQL %s: %s\n\n", version, t.about)
	if err := migrate(ctx, t); err != nil {
		return err
	}
	var engine string
	if err := d.conn.QueryRow(ctx, "select lock.engine()").Scan(&engine); err != nil {
		return err
	}
	installed = true
	fmt.Printf("  The schema lock is installed; key locks use the %s engine here.\n", engine)

	if *console != "" {
		return showConsole(ctx, t, d.conn, *console)
	}
	if _, err := d.conn.Exec(ctx, "create schema "+d.schema); err != nil {
		return err
	}
	d.undo(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "drop schema "+d.schema+" cascade")
		return err
	})
	slices.SortStableFunc(sections, func(a, b section) int { return cmp.Compare(rank(a), rank(b)) })
	shown := 0
	for _, s := range sections {
		if *kind != "" && *kind != s.kind {
			continue
		}
		fmt.Printf("\n== %s: %s\n\n", s.kind, s.title)
		if err := s.show(ctx, d); err != nil {
			return fmt.Errorf("%s: %w", s.kind, err)
		}
		shown++
	}
	if shown == 0 {
		return fmt.Errorf("there is nothing to show for the kind %q", *kind)
	}
	return nil
}

func rank(s section) int {
	if i := slices.Index(order, s.kind); i >= 0 {
		return i
	}
	return len(order)
}

// migrate runs the stock goose CLI, as a deployment does.
func migrate(ctx context.Context, t *target) error {
	fmt.Printf("$ goose -dir sql/schema -table public.lock_goose_version postgres %s up\n", t.shell)
	goose, err := filepath.Abs(filepath.Join(*root, ".bin", "goose"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(goose); err != nil {
		return errors.New("goose is not installed in .bin: run make tools")
	}
	cmd := exec.CommandContext(ctx, goose, "-dir", "sql/schema", "-table", "public.lock_goose_version", "postgres", t.url, "up")
	cmd.Dir = *root
	out, err := cmd.CombinedOutput()
	for line := range bytes.Lines(bytes.TrimSpace(out)) {
		fmt.Printf("  %s\n", bytes.TrimSpace(line))
	}
	if err != nil {
		return fmt.Errorf("goose: %w", err)
	}
	return nil
}

// farewell stops a server that is not to be kept, and says how to go on where there is something to go on with.
func farewell(ctx context.Context, t *target, installed bool) error {
	playable := installed && ctx.Err() == nil
	if t.stop != nil && !(*keep && playable) {
		if err := t.stop(); err != nil {
			return fmt.Errorf("stop the server: %w", err)
		}
	}
	if !playable {
		return nil
	}
	fmt.Println()
	switch {
	case t.stop == nil:
		fmt.Println("The demo's own tables and keys are gone again; the schema lock stays. To go on playing:")
	case *keep:
		fmt.Printf("The server is up: %s\nTo stop it and remove its files:\n  %s\nTo go on playing:\n", t.url, t.stopLine)
	default:
		fmt.Printf("The server, %s, is stopped now. make demo KEEP=1 leaves one up, to go on playing with lines such as:\n", t.url)
	}
	fmt.Printf("  psql %s -c 'begin' -c \"select lock.exclusive('customer:42')\" -c 'select * from lock.activity' -c 'commit'\n", t.shell)
	return nil
}

// A demo is the state that all sections share.
type demo struct {
	url     string
	schema  string    // for the sections' own tables; dropped at the end
	conn    *pgx.Conn // for whatever show does; in autocommit
	started time.Time
	undos   []func(ctx context.Context, conn *pgx.Conn) error
}

// undo has something done at the end, whether the demo succeeds, fails or is interrupted; the last first.
func (d *demo) undo(fn func(ctx context.Context, conn *pgx.Conn) error) {
	d.undos = append(d.undos, fn)
}

func (d *demo) clean(ctx context.Context) error {
	if len(d.undos) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	conn, err := connect(ctx, d.url, d.schema+"/cleaner")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, fn := range slices.Backward(d.undos) {
		err = errors.Join(err, fn(ctx, conn))
	}
	return err
}

// say prints one line with the time since the demo's start.
func (d *demo) say(format string, arguments ...any) {
	say(d.started, "demo", format, arguments...)
}

func say(started time.Time, who, format string, arguments ...any) {
	// One write a line, so that the lines of several processes do not mix.
	fmt.Printf("  %6.3f  %-9s %s\n", time.Since(started).Seconds(), who, strings.TrimRight(fmt.Sprintf(format, arguments...), " "))
}

// in puts a section's SQL, whose own tables are in the schema demo, into the schema of this run.
func in(schema, sql string) string { return strings.ReplaceAll(sql, "demo.", schema+".") }

// connect opens a connection that also works behind a pooler.
func connect(ctx context.Context, url, application string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = application
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgx.ConnectConfig(ctx, config)
}
