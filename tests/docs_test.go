package tests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// docsBlocks are the code blocks of the README and of the pages in docs and docs/internals, by the page's path from docs. Pages
// elsewhere quote files that are tested themselves.
func docsBlocks(t *testing.T, language string) map[string][]string {
	t.Helper()
	blocks := map[string][]string{}
	for _, path := range projectFiles(t, ".md") {
		page, found := strings.CutPrefix(path, "docs/")
		if folder := filepath.Dir(page); path != "README.md" && (!found || folder != "." && folder != "internals") {
			continue
		}
		parts := strings.Split("\n"+projectFile(t, path), "\n```")
		for n := 1; n < len(parts); n += 2 {
			if name, block, _ := strings.Cut(parts[n], "\n"); name == language {
				blocks[page] = append(blocks[page], block)
			}
		}
	}
	return blocks
}

// docsTables are what the examples' own tables and roles are.
var docsTables = map[string]string{
	"change.md": `create table orders (id integer primary key, customer_id integer not null, amount numeric);
		insert into orders values (1, 42, 6);
		do $$ begin create role app_owner; exception when duplicate_object or unique_violation then end $$`,
	"lease.md": "create table invoice (id integer primary key, paid_at timestamptz); insert into invoice values (12)",
}

var docsStatement = regexp.MustCompile(`(?m)^(.+?;) *(?:-- (.*))?$`)

// docsTry runs a page's statements, in their order, and returns what is not as the page says: true and false, and rows, whose
// columns stand between bars.
func docsTry(t *testing.T, e *env, page string, blocks []string) (wrong []string, answered int) {
	t.Helper()
	s := e.sessionAs(t, e.super)
	s.exec(docsTables[page])
	for _, block := range blocks {
		for _, line := range docsStatement.FindAllStringSubmatch(block, -1) {
			rows, _ := s.conn.Query(ctx, line[1], pgx.QueryExecModeSimpleProtocol)
			got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
				var columns []string
				for n, text := range row.RawValues() {
					if value := string(text); row.FieldDescriptions()[n].DataTypeOID != 16 {
						columns = append(columns, value)
					} else {
						columns = append(columns, map[string]string{"t": "true", "f": "false"}[value])
					}
				}
				return strings.Join(columns, " | "), nil
			})
			want, _, _ := strings.Cut(line[2], ":")
			want, _, _ = strings.Cut(want, ";")
			if strings.Contains(line[2], " | ") {
				want = line[2]
			}
			switch {
			case err != nil:
				wrong = append(wrong, fmt.Sprintf("%s: %s: %v", page, line[1], err))
			case want == "true" || want == "false" || strings.Contains(want, " | "):
				if answered++; (len(got) != 1 || got[0] != want) && docsShown(line[1]) {
					wrong = append(wrong, fmt.Sprintf("%s: %s: got %q, want %q", page, line[1], got, want))
				}
			}
		}
	}
	return wrong, answered
}

func TestDocsSQL(t *testing.T) {
	t.Parallel()
	t.Run("every statement does what its page says", func(t *testing.T) {
		t.Parallel()
		answered := 0
		for page, blocks := range docsBlocks(t, "sql") {
			if page == "runbooks.md" {
				continue // TestRunbooks makes the trouble first
			}
			wrong, n := docsTry(t, open(t, engines()[0]), page, blocks)
			for _, text := range wrong {
				t.Error(text)
			}
			answered += n
		}
		if answered < 6 {
			t.Errorf("only %d answers were compared", answered)
		}
	})
	t.Run("the checker catches a wrong name and a wrong answer", func(t *testing.T) {
		t.Parallel()
		wrong, _ := docsTry(t, open(t, engines()[0]), "", []string{"select lock.acquire_mutex('a', 'me');   -- false\nselect lock.acquire('a');\nselect 1, 2; -- 1 | 3"})
		if len(wrong) != 3 {
			t.Errorf("got %q", wrong)
		}
	})
}

var docsPrompt = regexp.MustCompile(`(?m)^(\w*)([=-])> (.*)\n?`)

// docsPsql runs what stands behind the prompts of a page's psql blocks, and returns where psql shows something else. A word
// before a prompt names one of several sessions.
func docsPsql(t *testing.T, e *env, page string, blocks []string) (wrong []string, shown int) {
	t.Helper()
	e.sessionAs(t, e.super).exec(docsTables[page])
	sessions := map[string]func(sql string) string{}
	for _, block := range blocks {
		prompts := docsPrompt.FindAllStringSubmatchIndex(block, -1)
		if len(prompts) == 0 || strings.TrimSpace(block[:prompts[0][0]]) != "" {
			wrong = append(wrong, page+": a block of psql begins with a prompt")
		}
		sql := ""
		for n, at := range prompts {
			end := len(block)
			if n+1 < len(prompts) {
				end = prompts[n+1][0]
			}
			sql += block[at[6]:at[7]] + "\n"
			if n+1 < len(prompts) && block[prompts[n+1][4]:prompts[n+1][5]] == "-" {
				continue
			}
			name := block[at[2]:at[3]]
			if sessions[name] == nil {
				sessions[name] = psqlSession(t, e.super)
			}
			got, want := sessions[name](sql), docsTrim(block[at[1]:end])
			if shown++; got != want && docsShown(sql) {
				wrong = append(wrong, fmt.Sprintf("%s: %spsql shows\n%s\nand not\n%s", page, sql, got, want))
			}
			sql = ""
		}
	}
	return wrong, shown
}

// docsShown says whether a statement answers as its page says: who holds a key shows after a second on YugabyteDB, and not the same.
func docsShown(sql string) bool { return !target.yugabyte || !strings.Contains(sql, "lock.who(") }

// docsTrim is what can be seen of an output.
func docsTrim(text string) string {
	return strings.TrimRight(regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(text, ""), "\n")
}

// psqlSession starts a psql that runs one text after the other, and returns what it shows.
func psqlSession(t *testing.T, url string) func(sql string) string {
	t.Helper()
	cmd := exec.Command("psql", "-X", "-d", url)
	cmd.Env = append(os.Environ(), "PGOPTIONS=", "PGTZ=UTC")
	in, err := cmd.StdinPipe()
	must(t, err)
	read, write, err := os.Pipe()
	must(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	must(t, cmd.Start())
	write.Close()
	out := bufio.NewReader(read)
	t.Cleanup(func() { in.Close(); cmd.Wait(); read.Close() })
	return func(sql string) string {
		fmt.Fprintf(in, "%s\\echo end-of-output\n", sql)
		var text strings.Builder
		for {
			line, err := out.ReadString('\n')
			must(t, err)
			if line == "end-of-output\n" {
				return docsTrim(text.String())
			}
			text.WriteString(line)
		}
	}
}

// What a page shows of psql is what psql shows.
func TestDocsPsql(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("psql is not installed")
	}
	blocks, all := docsBlocks(t, "psql"), 0
	for page := range blocks {
		wrong, shown := docsPsql(t, open(t, engines()[0]), page, blocks[page])
		for _, text := range wrong {
			t.Error(text)
		}
		all += shown
	}
	if len(blocks) < 10 || all < 50 {
		t.Errorf("only %d statements of %d pages were compared", all, len(blocks))
	}
	wrong, _ := docsPsql(t, open(t, engines()[0]), "", []string{
		"=> select 1 as a;\n a\n---\n 1\n(1 row)\n\n=> select 2 as a;\n a\n---\n 1\n(1 row)\n",
		"one=> begin;\nBEGIN\ntwo=> commit;\nCOMMIT\n=> select lock.exclude();\n exclude\n",
	})
	if len(wrong) != 3 {
		t.Errorf("the checker finds %q", wrong)
	}
}

// docsGo is a Go file with each block as a function, and what the blocks take for granted.
func docsGo(blocks map[string][]string) string {
	file := `package docs

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"expvar"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
	"github.com/seed4787c507/locks/lockstest"
)

var (
	_      = []any{errors.Is, expvar.NewMap, slog.Warn, log.Printf, time.Now, pgx.BeginFunc, locks.NewDurableMutex, db.New, goose.NewProvider,
		lock.NewPostgresSessionLocker, lockstest.Pool, cmp.Or[error], math.Ceil, net.SplitHostPort, http.Error, strconv.Itoa}
	t      *testing.T
	ctx    context.Context
	pool   *pgxpool.Pool
	tx     pgx.Tx
	rows   pgx.CopyFromSource
	at     time.Time
	sqlDB  *sql.DB
	limit  locks.RateLimit
	next   http.Handler
	handle func(context.Context, db.Task) error
	lead   func(context.Context, locks.Lease) error
	report func(context.Context, Report) error
	send   func(context.Context, string) error
	write  func(context.Context, pgx.Tx, []db.Request) error
	edit   func(context.Context, pgx.Tx, []locks.Request[Edit]) error
)

type Mail struct{ To string }

type Report struct{ Month int }

type Edit struct{ Cell string }
`
	for page, texts := range blocks {
		if page == "orm.md" {
			continue // it quotes a program: TestDocsORM
		}
		for _, text := range texts {
			file += "\n// " + page + "\nfunc _() {\n" + regexp.MustCompile(`(?m)^import .*$`).ReplaceAllString(text, "") + "\n}\n"
		}
	}
	return file
}

// docsCompile returns what the compiler says against a file, apart from variables that an example leaves unused.
func docsCompile(t *testing.T, file string) (wrong []string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "docs.go")
	must(t, os.WriteFile(path, []byte(file), 0o644))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root(t), "tests", "docs", "docs.go"): path}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	cmd := exec.Command("go", "build", "-gcflags=-e", "-overlay", filepath.Join(dir, "overlay.json"), "./docs")
	cmd.Dir = filepath.Join(root(t), "tests")
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "declared and not used") {
			wrong = append(wrong, line)
		}
	}
	if err != nil && len(out) == 0 {
		wrong = append(wrong, err.Error())
	}
	return wrong
}

func TestDocsGo(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is not installed")
	}
	blocks := docsBlocks(t, "go")
	if len(blocks) < 9 {
		t.Errorf("only %d pages have Go", len(blocks))
	}
	for _, text := range docsCompile(t, docsGo(blocks)) {
		t.Error(text)
	}
	blocks["wrong.md"] = []string{"locks.Exclusive(ctx, pool, 1)", "locks.Exclude()"}
	if wrong := docsCompile(t, docsGo(blocks)); len(wrong) < 2 {
		t.Errorf("the checker finds %q", wrong)
	}
}

// What is read first is what is copied: it waits for a bounded time.
func TestDocsLeadWithBounds(t *testing.T) {
	t.Parallel()
	for file, forms := range map[string][2]string{
		"README.md":           {"locks.TryExclusive(", "locks.Exclusive"},
		"docs/key.md":         {"locks.TryExclusive(", "locks.Exclusive"},
		"doc.go":              {"[TryExclusive]", "[Exclusive]"},
		"example_key_test.go": {"locks.TryExclusive(", "locks.Exclusive("},
	} {
		text, err := os.ReadFile(filepath.Join(root(t), file))
		must(t, err)
		bounded, other := strings.Index(string(text), forms[0]), strings.Index(string(text), forms[1])
		if bounded < 0 || other < 0 || bounded > other {
			t.Errorf("%s does not lead with %s", file, forms[0])
		}
	}
}

// The shell function that docs/yugabytedb.md gives to psql users.
// TestDocsWorkers compares the workers that a page quotes with the files that are tested.
func TestDocsWorkers(t *testing.T) {
	t.Parallel()
	for language, file := range map[string]string{"js": "worker.js", "python": "worker.py"} {
		text, err := os.ReadFile(filepath.Join(root(t), "examples", file))
		must(t, err)
		if got := docsBlocks(t, language)["workers.md"]; len(got) != 1 || got[0]+"\n" != string(text) {
			t.Errorf("docs/workers.md quotes another examples/%s:\n%s", file, strings.Join(got, "\n"))
		}
	}
}

func TestRetryFromPsql(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("psql is not installed")
	}
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "yugabytedb.md"))
	must(t, err)
	_, rest, _ := strings.Cut(string(page), "\ntransaction() {\n")
	body, _, found := strings.Cut(rest, "\n}\n")
	if !found {
		t.Fatal("the page has no function transaction")
	}
	e := open(t, row)
	e.sessionAs(t, e.super).exec("create sequence public.n; create table public.done (n bigint); grant all on sequence public.n to public; grant all on public.done to public")
	s := e.session(t)
	for _, c := range []struct {
		name, sql, output string
		attempts          int64
		ok                bool
	}{
		{"at once", "insert into public.done values (nextval('public.n')); select lock.exclusive(1)", "exclusive", 1, true},
		{"at the third attempt", "do $$ begin if nextval('public.n') % 10 < 2 then raise exception 'x' using errcode = '40001'; end if; end $$; select 'third'", "third", 3, true},
		{"never after a mistake", "select nextval('public.n'); insert into public.done values (9); select lock.exclusive(null::bigint)", "22004", 1, false},
		{"not for ever", "do $$ begin perform nextval('public.n'); raise exception 'x' using errcode = '40P01'; end $$", "40P01", 5, false},
	} {
		s.exec("select setval('public.n', 10, false); truncate public.done")
		file := filepath.Join(t.TempDir(), "work.sql")
		must(t, os.WriteFile(file, []byte(c.sql+";"), 0o644))
		cmd := exec.Command("bash", "-c", "psql() { command psql \"$URL\" \"$@\"; }\ntransaction() {\n"+body+"\n}\ntransaction \"$0\"", file)
		cmd.Env = append(os.Environ(), "URL="+e.url)
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.ok || !strings.Contains(string(out), c.output) {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
		if got := get[int64](s, "select last_value - 9 from public.n"); got != c.attempts {
			t.Errorf("%s: %d attempts, want %d", c.name, got, c.attempts)
		}
		if n := get[int64](s, "select count(*) from public.done"); n > 0 && !c.ok {
			t.Errorf("%s: left %d rows", c.name, n)
		}
	}
}
