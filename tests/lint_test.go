package tests

import "testing"

// TestLintPlpgsqlCheck looks into every branch of every function, run or not.
func TestLintPlpgsqlCheck(t *testing.T) {
	t.Parallel()
	check := `select coalesce(string_agg(format('%s line %s: %s: %s', functionid::regprocedure, lineno, level, message), E'\n' order by functionid, lineno), '')
		from pg_proc
		join pg_language on pg_language.oid = pg_proc.prolang and pg_language.lanname = 'plpgsql'
		left join (select distinct tgfoid, tgrelid from pg_trigger where not tgisinternal) used on used.tgfoid = pg_proc.oid
		cross join lateral plpgsql_check_function_tb(pg_proc.oid, coalesce(used.tgrelid, 0::oid),
			fatal_errors := false, extra_warnings := true, security_warnings := true, performance_warnings := false)
		where pronamespace in ('lock'::regnamespace, 'lock_internal'::regnamespace) and (prorettype <> 'trigger'::regtype or used.tgrelid is not null)
			-- A loop without an end needs no return behind it.
			and not (message like 'control reached end%' and prosrc ~ 'end loop;\s+end;\s*$')
			-- Its callers, the migrations, pass names and expressions, all of them literals.
			and not (message like '%is not sanitized' and proname = 'refuse_loss')
			-- What it executes are names that the catalogue gives, quoted.
			and not (message like '%is not sanitized' and proname = 'set_rights')`
	// On the advisory engine lock.locked_keys is a view; what locks and deletes its rows is looked into on the row engine.
	rowsAlone := " and not (proname in ('add_key', 'hold_row') or message = 'cannot delete from view \"locked_keys\"')"
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.sessionAs(t, e.super)
		if !get[bool](s, "select exists (select from pg_available_extensions where name = 'plpgsql_check')") {
			t.Skip("the extension plpgsql_check is not installed (Debian: postgresql-15-plpgsql-check)")
		}
		s.exec("create extension plpgsql_check")
		check := check
		if e.engine == advisory {
			check += rowsAlone
		}
		if found := get[string](s, check); found != "" {
			t.Error(found)
		}
		s.exec(`create function lock.planted() returns integer language plpgsql as $$ begin if false then perform no_such_column from lock.locked_keys; end if; return 1; end $$`)
		if get[string](s, check) == "" {
			t.Error("a wrong column in a dead branch is not seen: this check sees nothing")
		}
	})
}
