package tests

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A language starts examples/languages/tasks.* for one of its three tasks; why says what is missing, if anything.
type language struct {
	name  string
	start func(address, task string) *exec.Cmd
	why   func() error
}

// languages are those whose programs run here.
func languages() []language {
	const jar = "/usr/share/java/postgresql.jar"
	file := func(name string) string {
		path, err := filepath.Abs(filepath.Join("..", "examples", "languages", name))
		if err != nil {
			panic(err)
		}
		return path
	}
	needs := func(missing string, command ...string) func() error {
		return func() error {
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", missing, err, out)
			}
			return nil
		}
	}
	return []language{
		{
			"js",
			func(address, task string) *exec.Cmd {
				cmd := exec.Command("node", file("tasks.js"), address, task)
				modules, err := filepath.Abs("../.bin/node/node_modules")
				if err != nil {
					panic(err)
				}
				cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
				return cmd
			},
			func() error {
				_, err := nodeWorker() // installs pg
				return err
			},
		},
		{
			"py",
			func(address, task string) *exec.Cmd {
				return exec.Command("/usr/bin/python3", file("tasks.py"), address, task)
			},
			needs("python3-psycopg", "/usr/bin/python3", "-c", "import psycopg"),
		},
		{
			"rb",
			func(address, task string) *exec.Cmd { return exec.Command("ruby", file("tasks.rb"), address, task) },
			needs("ruby-pg", "ruby", "-e", "require 'pg'"),
		},
		{
			"java",
			func(address, task string) *exec.Cmd {
				u, err := url.Parse(address)
				if err != nil {
					panic(err)
				}
				query := u.Query()
				query.Set("user", u.User.Username())
				if password, ok := u.User.Password(); ok {
					query.Set("password", password)
				}
				u.User, u.RawQuery = nil, query.Encode()
				return exec.Command("java", "-cp", jar, file("Tasks.java"), "jdbc:"+strings.Replace(u.String(), "postgres:", "postgresql:", 1), task)
			},
			func() error {
				if _, err := os.Stat(jar); err != nil {
					return fmt.Errorf("libpostgresql-jdbc-java: %w", err)
				}
				return needs("a JDK", "javac", "-version")()
			},
		},
	}
}

// stumbling makes the first changes of a table fail with an SQLSTATE, as often as public.stumbles says.
const stumbling = `
	create table public.stumbles (name text primary key, code text not null, times bigint not null);
	create function public.stumble() returns trigger language plpgsql security definer as $$
	declare code text;
	begin
		select stumbles.code into code from public.stumbles where name = tg_argv[0] and nextval('public.stumbled_' || tg_argv[0]) <= times;
		if found then raise exception 'stumbled' using errcode = code; end if;
		return new;
	end; $$;`

// TestLanguages runs the three tasks of examples/languages: each waits, is denied and is retried as it should be.
func TestLanguages(t *testing.T) {
	t.Parallel()
	for _, language := range languages() {
		t.Run(language.name, func(t *testing.T) {
			t.Parallel()
			if err := language.why(); err != nil {
				t.Skip(err)
			}
			e := opened(t, "create table counter (n integer not null); insert into counter values (0)")
			super, s := e.sessionAs(t, e.super), e.session(t)
			super.exec(stumbling)
			stumble := func(name, table, when string) {
				super.exec(fmt.Sprintf("create sequence public.stumbled_%[1]s; create trigger stumble_%[1]s before update on %[2]s for each row %[3]s execute function public.stumble('%[1]s')", name, table, when))
			}
			stumble("counter", "public.counter", "")
			stumble("throttle", "lock.throttled_resource", "")
			stumble("capture", "lock.task", "when (new.status = 'in_progress')")
			stumble("settle", "lock.task", "when (new.status in ('done', 'failed'))")
			// fails lets a name fail from now on, and attempts is how often it was tried since.
			fails := func(name, code string, times int) {
				super.exec("insert into public.stumbles values ($1, $2, $3) on conflict (name) do update set code = excluded.code, times = excluded.times", name, code, times)
				super.exec("alter sequence public.stumbled_" + name + " restart")
			}
			attempts := func(name string) int {
				return get[int](super, "select case when is_called then last_value else 0 end from public.stumbled_"+name)
			}
			run := func(task string) *program { return launch(t, language.start(e.url, task)) }

			gate := e.session(t)
			gate.exec("begin")
			gate.exec("select lock.exclusive('counter')")
			waiting := run("exclusive")
			eventually(t, "it waits for its turn", func() bool {
				return target.yugabyte || get[int](super, "select count(*) from lock.who('counter') where not granted") == 1
			})
			gate.exec("update counter set n = 41")
			gate.exec("commit")
			if said := waiting.succeeds(); said != "42\n" {
				t.Errorf("after its turn it said %q", said)
			}
			fails("counter", "40001", 2)
			if said := run("exclusive").succeeds(); said != "43\n" || attempts("counter") != 3 {
				t.Errorf("after two conflicts and %d attempts it said %q", attempts("counter"), said)
			}
			fails("counter", "40P01", 1000)
			if run("exclusive").ended() == nil || attempts("counter") != 10 {
				t.Errorf("%d attempts, when it always fails", attempts("counter"))
			}
			fails("counter", "23514", 1000)
			if run("exclusive").ended() == nil || attempts("counter") != 1 {
				t.Errorf("%d attempts after a mistake", attempts("counter"))
			}
			answers(s, 43, "select n from counter")

			s.exec("select lock.create_throttled_resource('rebuild', '1 hour')")
			fails("throttle", "40001", 2)
			for _, want := range []string{"granted\n", "denied\n"} {
				if said := run("throttle").succeeds(); said != want {
					t.Errorf("%q, want %q", said, want)
				}
			}
			answers(s, "host 1", "select last_locker_details from lock.throttled_resource_status where throttled")

			// What the worker captures as lost has another attempt by then, as if it had been taken over.
			super.exec(`create function public.steal() returns trigger language plpgsql as $$
				begin update lock.task set attempt = attempt + 1 where id = 'lost' and queue_id = 'print'; return null; end; $$;
				create trigger steal after update on lock.task for each row when (new.id = 'lost' and old.status = 'new' and new.status = 'in_progress') execute function public.steal()`)
			s.exec(`select lock.create_task('bad', 'print', timeout => '1 hour', payload => '{"fail": "no paper"}')`)
			s.exec("select lock.create_tasks('{good,lost}', 'print', timeout => '1 hour')")
			fails("capture", "40001", 2)
			fails("settle", "40P01", 2)
			said := run("work").succeeds()
			for _, line := range []string{"bad settled", "good settled", "lost lost"} {
				if strings.Count(said, line) != 1 {
					t.Errorf("%q is not once in %q", line, said)
				}
			}
			answers(s, "bad failed, good done, lost in_progress", `select string_agg(id || ' ' || status, ', ' order by id)
				from unnest('{bad,good,lost}'::text[]) as name, lock.get_task(name, 'print')`)
			answers(s, true, "select message like '%no paper%' and available_at > changed_at + interval '9 seconds' from lock.get_task('bad', 'print')")
		})
	}
}
