package tests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// What the server says of itself. The number of PostgreSQL in it is what YugabyteDB's has, whatever this server is.
const disguisedAs = "15.12-YB-2025.2.3.0-b136"

// disguise makes every database of a server of our own, and every one made from its templates, call itself YugabyteDB: by
// version(), by server_version and by the settings that only YugabyteDB has. So all branches for it are run. It goes on being
// PostgreSQL: docs/internals/yugabytedb.md says what that leaves out.
func disguise() error {
	library, err := ybModule()
	if err != nil {
		return err
	}
	for _, database := range []string{"postgres", "template1", "template0"} {
		conn, err := pgx.Connect(ctx, target.url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "alter database "+database+" allow_connections true")
		conn.Close(ctx)
		if err != nil {
			return err
		}
		if conn, err = pgx.Connect(ctx, as(target.url, "postgres", database)); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, fmt.Sprintf(`
			create or replace function pg_catalog.version() returns text language sql stable
				return 'PostgreSQL %s on disguise';
			create function pg_catalog.yb_get_effective_transaction_isolation_level() returns text language sql stable
				return case when current_setting('transaction_isolation') = 'read committed'
					and not coalesce(current_setting('yb_enable_read_committed_isolation', true), 'on')::boolean
					then 'repeatable read' else current_setting('transaction_isolation') end`, disguisedAs))
		conn.Close(ctx)
		if err != nil {
			return fmt.Errorf("disguise %s: %w", database, err)
		}
	}
	conn, err := pgx.Connect(ctx, target.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		"alter role all set session_preload_libraries = '" + library + "'",
		"alter role all set lock.disguised_as = '" + disguisedAs + "'",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// writeOutside makes an insert of a key happen outside its transaction while yb_disable_transactional_writes is on, as it does on
// YugabyteDB: another connection makes it and commits.
func writeOutside(database string) error {
	conn, err := pgx.Connect(ctx, as(target.url, "postgres", database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, strings.ReplaceAll(`
		create extension dblink schema public;
		create function public.write_outside() returns trigger language plpgsql security definer set search_path = pg_catalog as $$
		begin
			if not current_setting('yb_disable_transactional_writes')::boolean then
				return new;
			end if;
			if public.dblink_get_connections() is null then
				perform public.dblink_connect('outside', format('host=127.0.0.1 port=%s dbname=%s user=postgres',
					current_setting('port'), current_database()));
			end if;
			perform public.dblink_exec('outside', format('insert into lock.locked_keys (key, name, ts) values (%L, %L, %L) on conflict do nothing', new.key, new.name, new.ts));
			return null;
		end $$;
		create trigger write_outside before insert on lock.locked_keys for each row execute function public.write_outside()`,
		"\t\t", ""))
	return err
}

// writeInside takes that back, for a test that looks at the setting or at the catalogue.
func (e *env) writeInside(t *testing.T) {
	t.Helper()
	if target.disguised {
		admin(t, e, "drop trigger write_outside on lock.locked_keys")
	}
}

// eachServer runs fn against PostgreSQL and against what its clients take for YugabyteDB.
func eachServer(t *testing.T, fn func(t *testing.T, e *env, yugabyte bool)) {
	t.Helper()
	t.Run("PostgreSQL", func(t *testing.T) {
		onlyPostgreSQL(t, "it is the other half that is")
		fn(t, open(t, advisory), false)
	})
	t.Run("YugabyteDB", func(t *testing.T) {
		if target.yugabyte {
			fn(t, open(t, row), true)
			return
		}
		e := openYB(t)
		admin(t, e, fmt.Sprintf("do $$ begin execute format('alter database %%I set lock.disguised_as = %%L', current_database(), '%s'); end $$", disguisedAs))
		must(t, writeOutside(e.pool.Config().ConnConfig.Database))
		fn(t, e, true)
	})
}
