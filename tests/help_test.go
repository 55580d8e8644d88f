package tests

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed4787c507/locks/db"
)

func TestHelp(t *testing.T) {
	t.Parallel()
	e := open(t, engines()[0])
	q := db.New(e.pool)
	s := e.session(t)
	squeeze := func(lines []string) string { return strings.Join(strings.Fields(strings.Join(lines, " ")), " ") }
	t.Run("prints every function and view with its comment, in lines of 80", func(t *testing.T) {
		lines, err := q.Help(ctx)
		must(t, err)
		manual := squeeze(lines)
		rows, err := s.conn.Query(ctx, `
			select 'lock.' || proname || '(' || pg_get_function_arguments(oid) || ') returns ' || pg_get_function_result(oid) || ' ' || obj_description(oid, 'pg_proc'), proname::text
			from pg_proc where pronamespace = 'lock'::regnamespace and prorettype <> 'trigger'::regtype
			union all
			select 'view lock.' || relname || ' (' || attname || ' ', relname::text from pg_class join pg_attribute on attrelid = pg_class.oid and attnum = 1
			where relnamespace = 'lock'::regnamespace and relkind = 'v'
			union all
			select obj_description(oid, 'pg_class'), relname::text from pg_class where relnamespace = 'lock'::regnamespace and relkind = 'v'`)
		must(t, err)
		defer rows.Close()
		entries := map[string][]string{}
		for rows.Next() {
			var want, name string
			must(t, rows.Scan(&want, &name))
			want = squeeze([]string{want})
			if !strings.Contains(manual, want) {
				t.Errorf("not in the manual: %s", want)
			}
			entries[name] = append(entries[name], want)
		}
		must(t, rows.Err())
		if len(entries) < 60 {
			t.Errorf("only %d names", len(entries))
		}
		for name, wanted := range entries {
			lines, err := q.HelpFunction(ctx, name)
			must(t, err)
			text := squeeze(lines)
			for _, want := range wanted {
				if !strings.Contains(text, want) {
					t.Errorf("lock.help('%s') lacks %s", name, want)
				}
			}
			if strings.Count(text, "lock."+name+" (")+strings.Count(text, "lock."+name+"(") == 0 {
				t.Errorf("lock.help('%s') is %s", name, text)
			}
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > 80 || strings.TrimRight(line, " ") != line {
				t.Errorf("%d characters: %q", utf8.RuneCountInString(line), line)
			}
		}
	})
	t.Run("breaks a word that is too long, and keeps the comment's own lines", func(t *testing.T) {
		super := e.sessionAs(t, e.super)
		answers(super, "    1234 "+strings.Repeat("ä", 71)+"|      "+strings.Repeat("ä", 74)+"|      ä b", "select string_agg(w, '|') from lock_internal.wrap('1234 ' || repeat('ä', 71) || ' ' || repeat('ä', 75) || E'\\n b', 4, 6) w")
		owner := e.sessionAs(t, e.owner)
		owner.exec("create view lock.planted as select 1 as one; comment on view lock.planted is E'First.\\nSecond.'")
		answers(owner, "view lock.planted (one integer)|    First.|    Second.", "select string_agg(line, '|') from lock.help('planted') line")
		owner.exec("comment on view lock.planted is null")
		answers(owner, "view lock.planted (one integer)", "select string_agg(line, '|') from lock.help('planted') line")
		owner.exec("drop view lock.planted")
	})
	t.Run("takes a name as people write it", func(t *testing.T) {
		for _, name := range []string{"lock.capture", "CAPTURE", " capture ", "lock.capture(10)"} {
			answers(s, "lock.capture(", "select left(line, 13) from lock.help($1) line limit 1", name)
		}
	})
	t.Run("an unknown name has a hint of near ones", func(t *testing.T) {
		for name, hint := range map[string]string{
			"aquire_mutex": "acquire_mutex", "captured": "capture,", "release_locks": "release_lease", "lock.tasks": "create_task", "qqq": "Hint: select lock.help()", "%": "select lock.help()",
		} {
			pg := s.fails("P0002", "select lock.help($1::text)", name)
			if !strings.Contains("Hint: "+pg.Hint, hint) {
				t.Errorf("%s: %s", name, pg.Hint)
			}
		}
		// What is internal is not shown.
		s.fails("P0002", "select lock.help('hold_key')")
		s.fails("P0002", "select lock.help('record_change')")
	})
	t.Run("refuses what is no name", func(t *testing.T) {
		s.fails("22004", "select lock.help(null)")
		s.fails("22023", "select lock.help('')")
		pg := s.fails("22023", "select lock.help($1::text)", strings.Repeat("x", 10<<20))
		if len(pg.Message)+len(pg.Hint) > 1000 {
			t.Errorf("%d bytes come back", len(pg.Message)+len(pg.Hint))
		}
	})
	t.Run("backslashes may mean what they meant in old days", func(t *testing.T) {
		now, before := e.sessionAs(t, e.super), e.sessionAs(t, e.super)
		before.exec("set standard_conforming_strings = off")
		for _, sql := range []string{"lock.help()", "lock.help('lock.capture(1)')", "lock.check()"} {
			sql = "select md5(coalesce(string_agg(line::text, ' '), '')) from " + sql + " line"
			answers(before, get[string](now, sql), sql)
		}
		// A text with a backslash is written as E'', which is the same under both settings.
		const plain = `select coalesce(string_agg(oid::regprocedure::text, ' '), '') from pg_proc
			where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace) and strpos(regexp_replace(prosrc, $r$\mE'(\\.|''|[^'])*'$r$, '', 'g'), $r$\$r$) > 0`
		owner := e.sessionAs(t, e.owner)
		answers(owner, "", plain)
		owner.exec(`create function lock_internal.planted() returns text language sql as $$ select '\s' $$`)
		answers(owner, "lock_internal.planted()", plain)
		owner.exec("drop function lock_internal.planted()")
	})
	t.Run("an outsider has no right to it", func(t *testing.T) {
		outsider(t, e).fails("42501", "select lock.help()")
	})
}
