// Command locks installs the schema lock, says who holds what, and serves the console.
//
// It finds the database by --database, DATABASE_URL, or the variables of libpq (PGHOST, PGUSER ...).
// It asks nothing. Exit codes: 0 all is well; 1 it failed; 2 it was called wrongly; 3 it did what it
// was asked to, and found something: migrations that have not run, or what lock.check calls an error or a warning.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const (
	exitFailed = 1
	exitUsage  = 2
	exitFound  = 3
)

// errFound says that there is something to see to, which has been printed.
var errFound = errors.New("found")

// A usageError is a call that cannot be understood.
type usageError struct{ error }

func run(ctx context.Context, args []string, out, problems io.Writer) int {
	a := &app{out: out}
	root := a.command()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(problems)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return exitFound
	case errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command"):
		fmt.Fprintf(problems, "locks: %v\nSee: locks --help\n", err)
		return exitUsage
	}
	fmt.Fprintf(problems, "locks: %v\n", err)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Hint != "" {
		fmt.Fprintf(problems, "hint: %s\n", pg.Hint)
	}
	return exitFailed
}

// An app is one call of the program.
type app struct {
	out      io.Writer
	database string
	json     bool
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "locks",
		Short:         "Locks, throttles and queues in PostgreSQL: install them, and see who holds what",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVarP(&a.database, "database", "d", "",
		"the database's URL (default: DATABASE_URL, then libpq's PGHOST, PGUSER ...)")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, a line for each row")
	root.AddCommand(a.migrations()...)
	root.AddCommand(a.grant(), a.check(), a.clean(), consoleCommand())
	root.AddCommand(a.rows("who KEY", "who holds a key, and who waits for it", 1,
		"select * from lock.who($1::text)", "nobody has this key"))
	root.AddCommand(a.rows("blocked", "who waits, for what, and for whom", 0,
		`select kind, name, key, mode, pid, owner, since, root_pid, root_owner, root_state, root_since, root_query
		from lock.blocked order by since`, "nobody waits"))
	root.AddCommand(a.rows("queues", "what waits to be done", 0,
		"select * from lock.queue_depth", "no queue has anything in it"))
	return root
}

// released is the version that a release is built as.
var released string

func version() string {
	if released != "" {
		return released
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// arguments takes exactly so many.
func arguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%s takes %d arguments, not %d", cmd.CommandPath(), n, len(args))}
		}
		return nil
	}
}

// url is the address of the database. An empty one leaves it to libpq's variables.
func (a *app) url() string {
	if a.database != "" {
		return a.database
	}
	return os.Getenv("DATABASE_URL")
}

func (a *app) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(a.url())
	if err != nil {
		return nil, usageError{err}
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "locks"
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // poolers may be in between
	return pgx.ConnectConfig(ctx, config)
}

// rows is a command that shows what a query returns.
func (a *app) rows(use, short string, args int, sql, none string) *cobra.Command {
	return &cobra.Command{Use: use, Short: "Shows " + short, Args: arguments(args), RunE: func(cmd *cobra.Command, given []string) error {
		values := make([]any, len(given))
		for n := range given {
			values[n] = given[n]
		}
		_, err := a.show(cmd.Context(), none, sql, values...)
		return err
	}}
}

// show prints the rows of a query, and returns them.
func (a *app) show(ctx context.Context, none, sql string, args ...any) ([][]any, error) {
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var names []string
	for _, field := range rows.FieldDescriptions() {
		names = append(names, field.Name)
	}
	var all [][]any
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return nil, err
		}
		all = append(all, values)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return all, a.print(names, all, none)
}

// print prints a table for people, without the columns that are empty in all rows; or JSON.
func (a *app) print(names []string, rows [][]any, none string) error {
	if a.json {
		lines := json.NewEncoder(a.out)
		for _, row := range rows {
			object := map[string]any{}
			for n, name := range names {
				object[name] = plain(row[n])
			}
			if err := lines.Encode(object); err != nil {
				return err
			}
		}
		return nil
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(a.out, none)
		return err
	}
	var shown []int
	for n := range names {
		for _, row := range rows {
			if text(row[n]) != "" {
				shown = append(shown, n)
				break
			}
		}
	}
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	line := func(cell func(column int) string) {
		cells := make([]string, len(shown))
		for n, column := range shown {
			cells[n] = cell(column)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	line(func(column int) string { return names[column] })
	for _, row := range rows {
		line(func(column int) string { return text(row[column]) })
	}
	return table.Flush()
}

// plain is a value as programs read it: intervals are seconds.
func plain(value any) any {
	switch value := value.(type) {
	case time.Duration:
		return value.Seconds()
	case interface{ MarshalJSON() ([]byte, error) }, nil, bool, string, int64, int32, float64, []any:
		return value
	case fmt.Stringer:
		return value.String()
	}
	return value
}

// text is a value as people read it, on one line.
func text(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case time.Time:
		return value.Format("2006-01-02 15:04:05.000Z07:00")
	case []any:
		parts := make([]string, len(value))
		for n := range value {
			parts[n] = text(value[n])
		}
		return strings.Join(parts, " ")
	}
	return strings.Join(strings.Fields(fmt.Sprint(value)), " ")
}

func (a *app) grant() *cobra.Command {
	var monitor, operator bool
	cmd := &cobra.Command{
		Use: "grant ROLE", Short: "Lets a role use the locks; or only look, or act as an operator",
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := "lock.grant_to"
			switch {
			case monitor && operator:
				return usageError{errors.New("--monitor and --operator are two things: pass one, and the other in another call")}
			case monitor:
				what = "lock.grant_monitor_to"
			case operator:
				what = "lock.grant_operator_to"
			}
			conn, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(cmd.Context()))
			if _, err := conn.Exec(cmd.Context(), "select "+what+"($1)", args[0]); err != nil {
				return err
			}
			return a.print([]string{"role", "granted_by"}, [][]any{{args[0], what}}, "")
		},
	}
	cmd.Flags().BoolVar(&monitor, "monitor", false, "it may look at everything, and change nothing")
	cmd.Flags().BoolVar(&operator, "operator", false, "it may also release, pause, retry and purge")
	return cmd
}

func (a *app) check() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Shows what is wrong with this server; exit code 3 when it is more than a notice",
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings, err := a.show(cmd.Context(), "nothing is wrong", "select severity, subject, finding, remedy from lock.check()")
			for _, finding := range findings {
				if err == nil && finding[0] != "notice" {
					err = errFound
				}
			}
			return err
		},
	}
}

func (a *app) clean() *cobra.Command {
	var older time.Duration
	var most int32
	cmd := &cobra.Command{
		Use: "clean", Short: "Removes what nobody needs any more, of every kind",
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := a.show(cmd.Context(), "there was nothing to remove", "select * from lock.clean($1, $2)", older, most)
			return err
		},
	}
	cmd.Flags().DurationVar(&older, "older-than", 30*24*time.Hour, "how long nobody has needed it")
	cmd.Flags().Int32Var(&most, "max", 10000, "most rows of each kind")
	return cmd
}
