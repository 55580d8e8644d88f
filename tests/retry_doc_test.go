package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The shell function that docs/yugabytedb.md gives to psql users.
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
