package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/spf13/cobra"

	"github.com/seed4787c507/locks"
)

const versionTable = "public.lock_goose_version"

func (a *app) migrations() []*cobra.Command {
	var dryUp, dryDown, all, drop bool
	up := &cobra.Command{
		Use: "up", Short: "Installs the schema, or brings it up to this program's version",
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.migrate(cmd.Context(), nil, func(ctx context.Context, p *goose.Provider) error {
				if dryUp {
					return a.pending(ctx, p, "up")
				}
				results, err := p.Up(ctx)
				return a.applied(results, err, "nothing to do: the schema is up to date")
			})
		},
	}
	up.Flags().BoolVar(&dryUp, "dry-run", false, "print what would run, and change nothing")
	down := &cobra.Command{
		Use: "down", Short: "Goes back by one migration; refuses where something would be lost",
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings := map[string]string{}
			if drop {
				settings["lock.drop"] = "everything"
			}
			return a.migrate(cmd.Context(), settings, func(ctx context.Context, p *goose.Provider) error {
				if dryDown {
					return a.pending(ctx, p, "down")
				}
				if all {
					results, err := p.DownTo(ctx, 0)
					return a.applied(results, err, "nothing to do: there is no schema")
				}
				result, err := p.Down(ctx)
				if errors.Is(err, goose.ErrNoNextVersion) {
					return a.applied(nil, nil, "nothing to do: there is no schema")
				}
				return a.applied([]*goose.MigrationResult{result}, err, "")
			})
		},
	}
	down.Flags().BoolVar(&dryDown, "dry-run", false, "print what would run, and change nothing")
	down.Flags().BoolVar(&all, "all", false, "go back to before the first migration")
	down.Flags().BoolVar(&drop, "drop-everything", false, "drop what is still needed, too")
	status := &cobra.Command{
		Use: "status", Short: "Shows which migrations have run; exit code 3 when some have not",
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.migrate(cmd.Context(), nil, a.status)
		},
	}
	script := &cobra.Command{
		Use: "sql", Short: "Prints the whole schema as one file, for psql -1 -f or another migration tool",
		Args: arguments(0),
		RunE: func(*cobra.Command, []string) error {
			text, err := oneFile()
			if err == nil {
				_, err = fmt.Fprint(a.out, text)
			}
			return err
		},
	}
	return []*cobra.Command{up, down, status, script}
}

// migrate calls goose as the only migrator of the database.
func (a *app) migrate(ctx context.Context, settings map[string]string,
	work func(context.Context, *goose.Provider) error,
) error {
	config, err := pgx.ParseConfig(a.url())
	if err != nil {
		return usageError{err}
	}
	for name, value := range settings {
		config.RuntimeParams[name] = value
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	handle := stdlib.OpenDB(*config)
	defer handle.Close()
	provider, err := newProvider(handle, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	return work(ctx, provider)
}

func newProvider(handle *sql.DB, opts ...goose.ProviderOption) (*goose.Provider, error) {
	opts = append(opts, goose.WithTableName(versionTable))
	return goose.NewProvider(goose.DialectPostgres, handle, locks.Migrations(), opts...)
}

func (a *app) applied(results []*goose.MigrationResult, err error, none string) error {
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results, err = partial.Applied, fmt.Errorf("%s: %w", partial.Failed.Source.Path, partial.Err)
	}
	var rows [][]any
	for _, r := range results {
		if r != nil {
			rows = append(rows, []any{r.Source.Version, r.Source.Path, r.Direction, r.Duration})
		}
	}
	if err != nil && len(rows) == 0 {
		return err
	}
	return errors.Join(err, a.print([]string{"version", "migration", "direction", "took"}, rows, none))
}

// pending prints what up or down would run.
func (a *app) pending(ctx context.Context, p *goose.Provider, direction string) error {
	statuses, err := p.Status(ctx)
	if err != nil {
		return err
	}
	var rows [][]any
	for _, s := range statuses {
		if (s.State == goose.StatePending) == (direction == "up") {
			rows = append(rows, []any{s.Source.Version, s.Source.Path, direction})
		}
	}
	if direction == "down" && len(rows) > 0 {
		rows = rows[len(rows)-1:]
	}
	return a.print([]string{"version", "migration", "direction"}, rows, "nothing to do")
}

func (a *app) status(ctx context.Context, p *goose.Provider) error {
	statuses, err := p.Status(ctx)
	if err != nil {
		return err
	}
	rows, left := make([][]any, len(statuses)), false
	for n, s := range statuses {
		left = left || s.State == goose.StatePending
		rows[n] = []any{s.Source.Version, s.Source.Path, string(s.State), nil}
		if s.State == goose.StateApplied {
			rows[n][3] = s.AppliedAt
		}
	}
	err = a.print([]string{"version", "migration", "state", "applied_at"}, rows, "")
	if err == nil && left {
		return errFound
	}
	return err
}

const head = `-- The schema lock, whole: made by "locks sql" from the migrations. Run it in one transaction:
--
--     psql -v ON_ERROR_STOP=1 -1 -f locks.sql
--
-- It fills goose's version table, too. So goose, or "locks up", goes on from here later.
create table if not exists public.lock_goose_version (
    id          integer    primary key generated by default as identity,
    version_id  bigint     not null,
    is_applied  boolean    not null,
    tstamp      timestamp  not null default now()
);
do $$
begin
    if exists (select from public.lock_goose_version where version_id > 0) then
        raise exception 'the schema lock is here already, at version %', (select max(version_id) from public.lock_goose_version)
            using errcode = 'duplicate_schema',
                  hint = 'Run goose up, or: locks up. This file is for a database without the schema.';
    end if;
end;
$$;
insert into public.lock_goose_version (version_id, is_applied)
select 0, true
where not exists (select from public.lock_goose_version);
`

// oneFile is the way up of all migrations, in their order.
func oneFile() (string, error) {
	migrations := locks.Migrations()
	names, err := fs.Glob(migrations, "*.sql")
	if err != nil {
		return "", err
	}
	var file strings.Builder
	file.WriteString(head)
	for _, name := range names {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			return "", err
		}
		up, _, whole := strings.Cut(string(text), "-- +goose Down\n")
		version, _, named := strings.Cut(name, "_")
		if !whole || !named || !strings.HasPrefix(up, "-- +goose Up\n") {
			return "", fmt.Errorf("%s is no migration", name)
		}
		fmt.Fprintf(&file, "\n-- %s\n", name)
		for line := range strings.Lines(up) {
			if !strings.HasPrefix(line, "-- +goose ") {
				file.WriteString(line)
			}
		}
		fmt.Fprintf(&file, "insert into public.lock_goose_version (version_id, is_applied) values (%s, true);\n", version)
	}
	return file.String(), nil
}
