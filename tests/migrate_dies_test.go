package tests

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/tests/migrations"
)

// A migrationHalf is the Up or the Down of a migration, cut behind every statement.
type migrationHalf struct {
	statements []string
	byHand     []bool // neither a frozen copy of a function nor a comment
}

var comment = regexp.MustCompile(`(?m)^comment on `)

// cut splits a half where goose does: behind StatementEnd, and behind a line that ends with a semicolon outside of such a block.
func cut(text string) migrationHalf {
	var half migrationHalf
	var current strings.Builder
	inBlock, inSection := false, false
	for line := range strings.Lines(text) {
		current.WriteString(line)
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "-- +goose StatementBegin":
			inBlock = true
		case strings.HasPrefix(trimmed, "-- functions"):
			inSection = true
		case strings.HasPrefix(trimmed, "-- end of functions"):
			inSection = false
		}
		if trimmed == "-- +goose StatementEnd" {
			inBlock = false
		} else if inBlock || strings.HasPrefix(trimmed, "--") || !strings.HasSuffix(trimmed, ";") {
			continue
		}
		half.statements = append(half.statements, current.String())
		half.byHand = append(half.byHand, !inSection && !comment.MatchString(current.String()))
		current.Reset()
	}
	return half
}

// dies runs one migration without a transaction, and lets the server end the connection behind its first n statements.
func dies(t *testing.T, url string, migration migrations.Migration, up bool, half migrationHalf, n int) {
	t.Helper()
	files := fstest.MapFS{}
	must(t, fs.WalkDir(locks.Migrations(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(locks.Migrations(), name)
		files[name] = &fstest.MapFile{Data: text}
		return err
	}))
	killed := strings.Join(half.statements[:n], "") + "\nselect pg_terminate_backend(pg_backend_pid());\n"
	text := "-- +goose NO TRANSACTION\n-- +goose Up\n" + killed + "-- +goose Down\nselect 1;\n"
	if !up {
		text = "-- +goose NO TRANSACTION\n-- +goose Up\nselect 1;\n-- +goose Down\n" + killed
	}
	name := path.Base(migration.Path)
	if files[name] == nil {
		t.Fatalf("%s is not among the embedded migrations", name)
	}
	files[name] = &fstest.MapFile{Data: []byte(text)}
	config, err := pgx.ParseConfig(url)
	must(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(versionTable))
	must(t, err)
	if up {
		_, err = provider.UpTo(ctx, migration.Version)
	} else {
		_, err = provider.Down(ctx)
	}
	if code(err) != "57P01" {
		t.Fatalf("%s, up %v, killed behind statement %d of %d: %v", name, up, n, len(half.statements), err)
	}
}

// A migration that died behind any of its statements, where nothing rolls back, is finished by the next run. Each statement is run by itself;
// behind those that are neither a copy of a function nor a comment, and some others, the whole migration follows in a transaction, which is
// looked at and undone. A death behind the last one, and the run that follows, are goose's own.
func TestMigrateAfterADeath(t *testing.T) {
	t.Parallel()
	onlyPostgreSQL(t, "it undoes DDL; the statements are the same")
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			all, err := migrations.Migrations(root(t))
			must(t, err)
			e := openEmpty(t, engine)
			owner := e.sessionAs(t, e.owner)
			step := func(url string, up bool, migration migrations.Migration) {
				t.Helper()
				provider, closeDB, err := gooseProvider(url)
				must(t, err)
				defer closeDB()
				if up {
					_, err = provider.UpTo(ctx, migration.Version)
				} else {
					_, err = provider.DownTo(ctx, migration.Previous)
				}
				must(t, err)
			}
			same := func(t *testing.T, want, got []string) {
				t.Helper()
				for _, line := range differences(want, got) {
					t.Errorf("the next run ends elsewhere: %s", line)
				}
			}
			states := [][]string{snapshot(t, e)}
			deaths, ends := 0, 0
			// walk lets the migration die everywhere and compares every end with want.
			walk := func(migration migrations.Migration, up bool, want []string) {
				upText, downText, _ := strings.Cut(migration.Text, "-- +goose Down")
				text := strings.TrimPrefix(upText, "-- +goose Up")
				if !up {
					text = downText
				}
				half := cut(text)
				for n, statement := range half.statements {
					owner.exec(statement, pgx.QueryExecModeSimpleProtocol)
					deaths++
					if !half.byHand[n] && n%20 != 19 {
						continue
					}
					ends++
					t.Run(fmt.Sprintf("%d up %v, killed behind statement %d", migration.Number, up, n+1), func(t *testing.T) {
						tx, err := owner.conn.Begin(ctx)
						must(t, err)
						defer tx.Rollback(ctx)
						if _, err := tx.Exec(ctx, strings.Join(half.statements, ""), pgx.QueryExecModeSimpleProtocol); err != nil {
							t.Fatalf("the next run failed: %v", err)
						}
						same(t, want, snapshotBy(t, tx))
					})
				}
				dies(t, e.owner, migration, up, half, len(half.statements))
				step(e.owner, up, migration)
				same(t, want, snapshot(t, e))
			}
			reference := openEmpty(t, engine)
			for _, migration := range all {
				step(reference.owner, true, migration)
				states = append(states, snapshot(t, reference))
			}
			for _, migration := range all {
				walk(migration, true, states[migration.Number])
			}
			for i := len(all) - 1; i >= 0; i-- {
				walk(all[i], false, states[i])
			}
			t.Logf("%d deaths, %d of them brought to the end", deaths, ends)
			if deaths < 100 || ends < 50 {
				t.Error("too few statements")
			}
		})
	}
	t.Run("sees a statement that cannot be run again", func(t *testing.T) {
		t.Parallel()
		e := openEmpty(t, advisory)
		all, err := migrations.Migrations(root(t))
		must(t, err)
		planted := all[0]
		half := cut("create schema lock;\nselect 1;\n")
		dies(t, e.owner, planted, true, half, 1)
		if err := migrate(e.owner, 0); err != nil {
			t.Fatalf("the project's own first statement: %v", err)
		}
		var pg string
		func() {
			config, err := pgx.ParseConfig(e.owner)
			must(t, err)
			db := stdlib.OpenDB(*config)
			defer db.Close()
			_, err = db.ExecContext(ctx, half.statements[0])
			pg = code(err)
		}()
		if pg != "42P06" {
			t.Errorf("create schema without if not exists ran twice: %q", pg)
		}
	})
}
