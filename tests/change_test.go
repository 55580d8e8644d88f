package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// changes lists what is recorded and not settled: entity, operation, old and new value of a column.
func changes(s *session, column string) string {
	s.t.Helper()
	return requestRows(s, `select entity_id, payload ->> 'table', payload ->> 'operation', coalesce(payload -> 'old' ->> $1, '-'), coalesce(payload -> 'new' ->> $1, '-')
		from lock.request where request_status = 'new' and request_type = 'update' order by entity_id collate "C", request_id`, column)
}

// eachTrigger runs fn for statement triggers, for the row trigger of the row engine, and for partitioned tables.
func eachTrigger(t *testing.T, fn func(t *testing.T, e *env, s *session, partition string)) {
	t.Helper()
	for _, kind := range []string{"statement", "row", "partitioned"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			engine, partition := advisory, ""
			if kind == "row" {
				engine = row
			} else if kind == "partitioned" {
				partition = "partition by list (region)"
			}
			e := open(t, engine)
			s := e.sessionAs(t, e.super)
			s.exec("create table orders (id bigint not null, region text not null, amount numeric, tax numeric generated always as (amount * 0.1) stored, primary key (id, region)) " + partition)
			if partition != "" {
				s.exec("create table orders_eu partition of orders for values in ('eu')")
				s.exec("create table orders_other partition of orders default")
			}
			fn(t, e, s, partition)
		})
	}
}

func wantChanges(t *testing.T, s *session, column string, want ...string) {
	t.Helper()
	got := changes(s, column)
	if s.e.engine != "" && strings.Contains(got, "orders_") {
		t.Errorf("a partition's name is recorded:\n%s", got)
	}
	if got != strings.Join(want, "\n") {
		t.Fatalf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	s.exec("delete from lock.request")
}

func TestChange(t *testing.T) {
	t.Parallel()
	eachTrigger(t, func(t *testing.T, e *env, s *session, partition string) {
		s.exec("insert into orders values (1, 'eu', 10), (2, 'us', 20)")
		s.exec("select lock.track_changes('orders', 'id')")
		wantChanges(t, s, "amount", "")
		s.exec("insert into orders values (3, 'eu', 30)")
		s.exec("update orders set amount = amount + 1")
		s.exec("delete from orders where id = 1")
		wantChanges(t, s, "amount", "1 public.orders UPDATE 10 11", "1 public.orders DELETE 11 -", "2 public.orders UPDATE 20 21",
			"3 public.orders INSERT - 30", "3 public.orders UPDATE 30 31")

		// Both entities hear of a change of the entity; a worker sees the same change in both.
		s.exec("update orders set id = 4 where id = 3")
		wantChanges(t, s, "id", "3 public.orders UPDATE 3 4", "4 public.orders UPDATE 3 4")
		s.exec("insert into orders values (4, 'eu', 7) on conflict (id, region) do update set amount = excluded.amount")
		s.exec("insert into orders values (5, 'eu', 5) on conflict do nothing")
		wantChanges(t, s, "tax", "4 public.orders UPDATE 3.1 0.7", "5 public.orders INSERT - 0.5")
		_, err := s.conn.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id", "region", "amount"}, pgx.CopyFromRows([][]any{{int64(6), "eu", 6}}))
		must(t, err)
		wantChanges(t, s, "amount", "6 public.orders INSERT - 6")

		// What is rolled back was never there.
		s.exec("begin")
		s.exec("update orders set amount = 0")
		s.exec("rollback")
		s.exec("begin")
		s.exec("savepoint s")
		s.exec("update orders set amount = 0")
		s.exec("rollback to savepoint s")
		s.exec("update orders set amount = 1 where id = 2")
		s.exec("commit")
		wantChanges(t, s, "amount", "2 public.orders UPDATE 21 1")

		s.exec("alter table orders add column note text default 'none'")
		s.exec("update orders set note = 'new' where id = 2")
		wantChanges(t, s, "note", "2 public.orders UPDATE none new")

		if partition != "" {
			s.exec("update orders_other set amount = 2")
			s.exec("create table orders_asia partition of orders for values in ('asia')")
			s.exec("insert into orders_asia values (9, 'asia', 1)")
			s.exec("update orders set region = 'eu' where id = 9")
			wantChanges(t, s, "region", "2 public.orders UPDATE us us", "9 public.orders INSERT - asia",
				"9 public.orders DELETE asia -", "9 public.orders INSERT - eu")
		}

		// More rows than go one by one: the order within an entity kept.
		s.exec("select lock.track_changes('orders', 'region', 'regions')")
		s.exec("insert into orders select n, case when n % 2 = 0 then 'eu' else 'us' end, n from generate_series(100, 499) n")
		s.exec("update orders set amount = amount + 1 where id >= 100")
		answers(s, "eu 401|us 401", `select string_agg(entity_id || ' ' || n, '|' order by entity_id) from (
			select entity_id, count(*) + 1 as n from lock.request where queue_id = 'regions' and (payload -> 'old' is null
				or payload -> 'old' = 'null' or (payload -> 'old' ->> 'amount')::numeric + 1 = (payload -> 'new' ->> 'amount')::numeric)
			and payload -> 'new' ->> 'region' = entity_id group by 1) as entity`)
		answers(s, "new", "select string_agg(distinct request_status::text, ' ') from lock.request where queue_id = 'regions' and created_at > now() - interval '1 hour'")
		w := newRequestWorker(t, e)
		if got := w.capture("regions"); len(got) != 400 {
			t.Errorf("a batch of %d, want 400", len(got))
		}
		w.exec("rollback")
		s.exec("delete from lock.request")

		s.exec("truncate orders")
		truncated := "public.orders public.orders TRUNCATE - -"
		if partition != "" {
			answers(s, int64(4), "select count(*) from lock.request where entity_id = 'public.orders' and payload ->> 'operation' = 'TRUNCATE'")
			s.exec("delete from lock.request")
		} else {
			wantChanges(t, s, "id", truncated)
		}

		s.exec("alter table orders rename column region to area")
		if partition == "" {
			s.fails("42703", "insert into orders values (1, 'eu', 1)")
		}
		s.exec("select lock.untrack_changes('orders')")
		s.exec("insert into orders values (1, 'eu', 1)")
		wantChanges(t, s, "id", "")
		answers(s, int64(0), "select count(*) from pg_trigger where not tgisinternal and tgrelid::regclass::text like 'orders%'")
	})
}

func TestChangeNames(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{advisory, row} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			e := open(t, engine)
			s := e.sessionAs(t, e.super)
			s.exec(`create schema "My Shop"`)
			s.exec(`create table "My Shop"."Order's" ("Order ID" uuid, "select" integer, note text)`)
			s.exec(`select lock.track_changes('"My Shop"."Order''s"', 'Order ID', 'it''s')`)
			s.exec(`insert into "My Shop"."Order's" values ('00000000-0000-0000-0000-000000000001', 1), (null, 2)`)
			wantChanges(t, s, "select", `"My Shop"."Order's" "My Shop"."Order's" INSERT - 2`,
				`00000000-0000-0000-0000-000000000001 "My Shop"."Order's" INSERT - 1`)
			s.exec(`select lock.track_changes('"My Shop"."Order''s"', 'note')`)
			s.exec(`insert into "My Shop"."Order's" values (null, 1, ''), (null, 2, repeat('x', 1025)), (null, 3, repeat('y', 1024))`)
			answers(s, int64(2), `select count(*) from lock.request where entity_id = '"My Shop"."Order''s"'`)
			answers(s, int64(1), "select count(*) from lock.request where entity_id = repeat('y', 1024)")
		})
	}
}

// changeFire lets writers change a table, roll back and die, while workers see the changes, and says in what the two differ. With leak
// the writers' rolled back changes are recorded all the same.
func changeFire(t *testing.T, e *env, s *session, partition string, leak bool) string {
	t.Helper()
	s.exec("create table account (id bigint, region text, version bigint not null default 1, primary key (id, region)) " + partition)
	if partition != "" {
		s.exec("create table account_all partition of account default")
	}
	s.exec("create table seen (step bigint generated always as identity, id bigint, version bigint)")
	s.exec("grant select, insert, update on account, seen to locks_app")
	s.exec("select lock.track_changes('account', 'id', 'default')")
	inner, stop := context.WithCancel(ctx)
	var workers, writers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	for range 2 {
		workers.Go(func() {
			locks.WorkRequests(inner, e.pool, "default", func(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
				for _, request := range batch {
					if _, err := tx.Exec(ctx, "insert into seen (id, version) select (row ->> 'id')::bigint, (row ->> 'version')::bigint from (select $1::jsonb -> 'new') as body (row)", request.Payload); err != nil {
						return err
					}
				}
				return nil
			}, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: time.Second}})
		})
	}
	rolledBack := errors.New("rolled back")
	change := func(tx pgx.Tx) error {
		first := rand.N(20)
		_, err := tx.Exec(ctx, `insert into account (id, region) select n, 'eu' from generate_series($1::bigint, $2) as n
			on conflict (id, region) do update set version = account.version + 1`, first, first+rand.N(3))
		return err
	}
	for range 4 {
		writers.Go(func() {
			for range 50 {
				err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
					if rand.N(3) == 0 { // a savepoint's rollback
						err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { return errors.Join(change(inner), rolledBack) })
						if !errors.Is(err, rolledBack) || code(err) != "" {
							return err
						}
					}
					if err := change(tx); err != nil {
						return err
					}
					switch rand.N(6) {
					case 0:
						return rolledBack
					case 1:
						tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
					}
					return nil
				})
				if errors.Is(err, rolledBack) && leak {
					_, err := e.admin.Exec(ctx, "insert into lock.request (request_type, entity_id, payload) values ('update', '1', '{\"new\": {\"id\": 1, \"version\": 1}}')")
					if err != nil {
						t.Error(err)
					}
				} else if err != nil && !errors.Is(err, rolledBack) && code(err) != "40P01" && code(err) != "57P01" && !strings.Contains(err.Error(), "closed") {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	within(t, perseverance, "everything is settled", func() bool {
		return get[int64](s, "select count(*) from lock.request where settled_at is null") == 0
	})
	return get[string](s, `with happened as (select id, generate_series(1, version) as version from account),
		counted as (select id, version, count(happened.id) as happened, (select count(*) from seen where seen.id = happened.id and seen.version = happened.version) as seen
			from happened group by id, version)
		select concat_ws(', ',
			(select 'nothing happened' where (select count(*) from happened) < 50),
			(select 'committed, not seen' from counted where seen = 0 limit 1),
			(select 'seen twice' from counted where seen > 1 limit 1),
			(select 'seen, not committed' from seen where not exists (select from happened where happened.id = seen.id and happened.version = seen.version) limit 1),
			(select 'out of order' from (select version - lag(version) over (partition by id order by step) as ahead from seen) as pair where ahead < 1 limit 1),
			(select 'in error: ' || message from lock.request where request_status <> 'complete' limit 1))`)
}

func TestChangeUnderFire(t *testing.T) {
	t.Parallel()
	eachTrigger(t, func(t *testing.T, e *env, s *session, partition string) {
		if verdict := changeFire(t, e, s, partition, false); verdict != "" {
			t.Error(verdict)
		}
	})
}

func TestChangeCheckers(t *testing.T) {
	t.Parallel()
	t.Run("catch changes that are lost", func(t *testing.T) {
		t.Parallel()
		eachTrigger(t, func(t *testing.T, e *env, s *session, partition string) {
			mutate(t, e, "record_change", "perform lock_internal.record_image", "if random() < 0.1 then return null; end if; perform lock_internal.record_image")
			mutate(t, e, "record_changes", "perform lock_internal.check_tracked", "if random() < 0.1 then return null; end if; perform lock_internal.check_tracked")
			if verdict := changeFire(t, e, s, partition, false); !strings.HasPrefix(verdict, "committed, not seen") {
				t.Errorf("verdict: %q", verdict)
			}
		})
	})
	t.Run("catch changes that were rolled back", func(t *testing.T) {
		t.Parallel()
		e := open(t, advisory)
		if verdict := changeFire(t, e, e.sessionAs(t, e.super), "", true); !strings.HasPrefix(verdict, "seen twice") {
			t.Errorf("verdict: %q", verdict)
		}
	})
}

// A column may have the name of anything that the functions' own texts name.
func TestChangeColumnNames(t *testing.T) {
	t.Parallel()
	eachTrigger(t, func(t *testing.T, e *env, s *session, partition string) {
		s.exec("create type mood as enum ('good', 'bad')")
		names := strings.Fields(`changed tg_op tg_argv created columns many olds news old_path new_path old new image images line body payload ordinal former latter
			pair built change entity id_ lock_new_rows lock_old_rows queue_id entity_id request_type created_at operation "table" recorded_columns changes`)
		for _, extra := range []string{"text", "mood"} {
			for _, name := range names {
				s.exec("create table named (id text, region text, " + name + " timestamptz, extra " + extra + ") " + partition)
				if partition != "" {
					s.exec("create table named_all partition of named default")
				}
				s.exec("select lock.track_changes('named', 'id', 'named')")
				s.exec("insert into named values ('e', 'eu', '2026-01-01', 'good')")
				s.exec("update named set extra = 'bad'")
				s.exec("delete from named")
				answers(s, "INSERT -/good UPDATE good/bad DELETE bad/-", `select string_agg(concat_ws(' ', payload ->> 'operation',
					coalesce(payload -> 'old' ->> 'extra', '-') || '/' || coalesce(payload -> 'new' ->> 'extra', '-')), ' ' order by request_id)
					from lock.request where entity_id = 'e' and payload ->> 'table' = 'public.named' and coalesce(nullif(payload -> 'old', 'null'), payload -> 'new') ? 'region'`)
				s.exec("drop table named; delete from lock.request")
			}
		}
	})
}

// One value is one entity, whatever the writer's session is set to.
func TestChangeSettings(t *testing.T) {
	t.Parallel()
	eachTrigger(t, func(t *testing.T, e *env, s *session, partition string) {
		s.exec("create table reading (at timestamptz, took interval, hash bytea, mass float8, days daterange, region text) " + partition)
		if partition != "" {
			s.exec("create table reading_all partition of reading default")
		}
		for n, column := range []string{"at", "took", "hash", "mass", "days", "region"} {
			s.exec("select lock.track_changes('reading', $1::name, $1::text)", column)
			for _, settings := range []string{
				"set timezone = 'UTC'; set intervalstyle = 'postgres'; set bytea_output = 'hex'; set extra_float_digits = 1; set datestyle = 'ISO, MDY'; set quote_all_identifiers = off",
				"set timezone = 'Europe/Berlin'; set intervalstyle = 'iso_8601'; set bytea_output = 'escape'; set extra_float_digits = -3; set datestyle = 'German'; set quote_all_identifiers = on",
			} {
				s.exec(settings)
				s.exec("insert into reading values ('2024-06-01 12:00+00', '1 day 02:00', '\\x00ff', 0.1::float8 + 0.2, daterange('2026-01-02', '2026-02-03'))")
				s.exec("delete from reading")
			}
			s.exec("reset all")
			answers(s, int64(1), "select count(distinct entity_id) from lock.request where queue_id = $1", column)
			answers(s, int64(4*(n+1)), "select count(*) from lock.request")
		}
	})
}

func TestChangeRenamed(t *testing.T) {
	t.Parallel()
	eachTrigger(t, func(t *testing.T, e *env, s *session, partition string) {
		s.exec("select lock.track_changes('orders', 'id')")
		s.exec("alter table orders rename to purchase")
		s.exec("insert into purchase values (1, 'eu', 1)")
		s.exec("truncate purchase")
		answers(s, "1 public.purchase|public.purchase public.purchase", `select string_agg(distinct entity_id || ' ' || (payload ->> 'table'), '|')
			from lock.request where payload ->> 'table' not like '%orders\_%'`)
		answers(s, int64(0), "select count(*) from lock.request where entity_id like '%orders%'")
		s.exec("select lock.untrack_changes('purchase')")
	})
}

func TestChangeRights(t *testing.T) {
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	s.exec("create role change_writer_" + s.conn.Config().Database + " login")
	t.Cleanup(func() {
		// The database is gone by then only if cleanups ran in another order: rights in it go first.
		s.conn.Exec(ctx, "drop owned by change_writer_"+s.conn.Config().Database)
		if _, err := s.conn.Exec(ctx, "drop role change_writer_"+s.conn.Config().Database); err != nil {
			t.Error(err)
		}
	})
	s.exec("create schema app authorization locks_app")
	owner := e.session(t)
	owner.exec("create table app.orders (id bigint primary key)")
	owner.exec("grant usage on schema app to public")
	owner.exec("grant select, insert, update, delete on app.orders to public")
	if refused := owner.fails("42501", "select lock.track_changes('app.orders', 'id')"); !strings.Contains(refused.Hint, "grant_tracking_to") {
		t.Errorf("hint: %q", refused.Hint)
	}
	s.exec("select lock.grant_tracking_to('locks_app')")
	owner.exec("select lock.track_changes('app.orders', 'id')")

	writer := e.sessionAs(t, as(e.url, "change_writer_"+s.conn.Config().Database, s.conn.Config().Database))
	writer.fails("42501", "select lock.engine()")
	writer.exec("insert into app.orders select generate_series(1, 200)")
	writer.exec("update app.orders set id = id where id = 1")
	answers(s, int64(201), "select count(*) from lock.request where queue_id = 'changes'")

	for _, bad := range []struct{ code, sql string }{
		{"22004", "select lock.track_changes(null, 'id')"},
		{"22004", "select lock.track_changes('app.orders', null)"},
		{"22004", "select lock.track_changes('app.orders', 'id', null)"},
		{"22023", "select lock.track_changes('app.orders', 'id', '')"},
		{"42703", "select lock.track_changes('app.orders', 'ID')"},
		{"42703", "select lock.track_changes('app.orders', 'ctid')"},
		{"42P01", "select lock.track_changes('app.nothing', 'id')"},
		{"42809", "select lock.track_changes('app.orders_pkey', 'id')"},
		{"42809", "select lock.track_changes('lock.request', 'entity_id')"},
		{"22004", "select lock.untrack_changes(null)"},
	} {
		if got := s.fails(bad.code, bad.sql); got.Hint == "" && bad.code != "42P01" {
			t.Errorf("%s: no hint", bad.sql)
		}
	}
	writer.fails("42501", "select lock.track_changes('app.orders', 'id')")
}

func TestChangeSeventeenTables(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		s := e.sessionAs(t, e.super)
		for n := range 17 {
			s.exec(fmt.Sprintf("create table part_%d (part_id bigint generated always as identity primary key, order_id bigint, detail text)", n))
			s.exec(fmt.Sprintf("select lock.track_changes('part_%d', 'order_id', 'orders')", n))
		}
		for n := range 17 {
			s.exec(fmt.Sprintf("insert into part_%d (order_id, detail) select n, 'first' from generate_series(1, 20) n", n))
			err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, fmt.Sprintf("update part_%d set detail = 'never'", n))
				return errors.Join(err, errors.New("roll back"))
			})
			if err == nil || code(err) != "" {
				t.Fatal(err)
			}
			s.exec(fmt.Sprintf("update part_%d set detail = 'second' where order_id %% 2 = 0", n))
		}
		w := newRequestWorker(t, e)
		batches := 0
		for w.line = 0; ; batches++ {
			ids := w.capture("orders")
			if len(ids) == 0 {
				break
			}
			// All that happened to one order, from all tables, in one batch.
			want := int64(17)
			if entity := get[int64](s, "select entity_id::bigint from lock.request where request_id = $1", ids[0]); entity%2 == 0 {
				want = 34
			}
			w.settles("complete", want)
		}
		if batches != 20 {
			t.Errorf("%d batches, want one for each of 20 orders", batches)
		}
		answers(s, int64(0), "select count(*) from lock.request where request_status <> 'complete' or payload -> 'new' ->> 'detail' = 'never'")
		answers(s, int64(34), "select count(*) from lock.request_history('8', 'orders')")
	})
}

// A table with a column of an enum takes no more memory than one without: its images are not gathered.
func TestChangeMemory(t *testing.T) {
	onlyPostgreSQL(t, "a row is recorded at a time there")
	t.Parallel()
	e := open(t, advisory)
	s := e.sessionAs(t, e.super)
	s.exec("create type mood as enum ('sad', 'glad')")
	// peak is the most memory that a session of its own has had, in MB.
	peak := func(kind, sql string) int {
		config, err := pgx.ParseConfig(e.super)
		must(t, err)
		most := 0
		config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
			if found := regexp.MustCompile(`(\d+) kB max resident size`).FindStringSubmatch(notice.Detail); found != nil {
				n, err := strconv.Atoi(found[1])
				must(t, err)
				most = max(most, n>>10)
			}
		}
		conn, err := pgx.ConnectConfig(ctx, config)
		must(t, err)
		defer conn.Close(ctx)
		for _, sql := range []string{"set log_statement_stats = on; set client_min_messages = log", strings.ReplaceAll(sql, "#", kind)} {
			_, err = conn.Exec(ctx, sql)
			must(t, err)
		}
		if most == 0 {
			t.Skip("the server does not tell")
		}
		return most
	}
	for _, kind := range []string{"text", "mood"} {
		s.exec("create table changed_" + kind + " (id bigint, body text, mood " + kind + ")")
		s.exec("select lock.track_changes('changed_" + kind + "', 'id')")
	}
	for _, sql := range []string{
		"insert into changed_# select n, repeat('x', 8000), 'sad' from generate_series(1, 4000) n",
		"update changed_# set mood = 'glad'",
		"delete from changed_#",
	} {
		if text, mood := peak("text", sql), peak("mood", sql); mood > text+60 {
			t.Errorf("%s: %d MB, and %d MB with text", sql, mood, text)
		}
	}
	answers(s, int64(24000), "select count(*) from lock.request")
}
