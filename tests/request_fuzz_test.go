package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// requestFuzz lets producers and workers do all that is allowed, at random: any isolation of a producer, creates and updates of few entities
// in two queues, several in a transaction, rolled back in part or as a whole; captures of several entities in a transaction, some undone
// by a savepoint, settled in any way, rolled back, prepared; back ends are killed. It says what was lost, done twice, done by
// two at once, or out of order.
func requestFuzz(t *testing.T, e *env, rounds int) string {
	t.Helper()
	_, err := e.admin.Exec(ctx, `create table produced (request_id bigint primary key);
		create table worked (request_id bigint primary key);
		grant select, insert on produced, worked to locks_app;
		grant select on lock.request to locks_app`)
	must(t, err)
	var prepares bool
	must(t, e.admin.QueryRow(ctx, "select current_setting('max_prepared_transactions')::integer > 0 and version() not like '%-YB-%'").Scan(&prepares))
	pool := openPool(t, e.url, 12)
	queues := []string{"one", "two"}
	undo := errors.New("undo")

	produce := func() error {
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(levels[rand.N(len(levels))])}, func(tx pgx.Tx) error {
			for range 1 + rand.N(4) {
				kind := "update"
				if rand.N(8) == 0 {
					kind = "create"
				}
				err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "insert into produced select lock.enqueue($1, $2, queue_id => $3)", kind, fmt.Sprint("e", rand.N(4)), queues[rand.N(2)])
					if err == nil && rand.N(5) == 0 {
						return undo
					}
					return err
				})
				if err != nil && err != undo && code(err) != "23505" {
					return err
				}
			}
			if rand.N(6) == 0 {
				return undo
			}
			return nil
		})
	}

	// A worker's transaction: what it was about to settle is written down with it.
	work := func() (found bool, err error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return false, err
		}
		defer conn.Release()
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			return false, err
		}
		defer tx.Rollback(ctx)
		type request struct {
			RequestID        int64
			EntityID, Status string
			RequestType      string
		}
		for range 1 + rand.N(3) {
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				process, queue := requestProcess(), queues[rand.N(2)]
				after := int64(0)
				if rand.N(3) == 0 {
					after = rand.Int64N(500)
				}
				var there []int64
				if err := tx.QueryRow(ctx, "select array(select request_id from lock.request where queue_id = $1 and settled_at is null)", queue).Scan(&there); err != nil {
					return err
				}
				rows, err := tx.Query(ctx, "select request_id, entity_id, request_status::text, request_type::text from lock.capture_request($1, $2, $3, $4)", process, after, queue, []int{1, 2, 1000}[rand.N(3)])
				if err != nil {
					return err
				}
				batch, err := pgx.CollectRows(rows, pgx.RowToStructByPos[request])
				if err != nil || len(batch) == 0 {
					return err
				}
				found = true
				if err := requestAlone(ctx, tx, queue+batch[0].EntityID); err != nil {
					return err
				}
				for n, r := range batch {
					if r.EntityID != batch[0].EntityID || n > 0 && r.RequestID <= batch[n-1].RequestID || r.Status != "in-progress" || r.RequestType == "create" && len(batch) > 1 {
						return fmt.Errorf("violation: %v", batch)
					}
				}
				// What was there before the capture is in the batch, unless it is newer; and the entity does not wait.
				var passed, waits int
				err = tx.QueryRow(ctx, `select
						count(*) filter (where request_status = 'new' and request_type = 'update' and request_id < $4 and $5),
						count(*) filter (where available_at > clock_timestamp())
					from lock.request
					where queue_id = $1 and entity_id = $2 and settled_at is null and request_id = any ($3)`,
					queue, batch[0].EntityID, there, batch[len(batch)-1].RequestID, batch[0].RequestType == "update").Scan(&passed, &waits)
				if err != nil {
					return err
				} else if passed+waits > 0 {
					return fmt.Errorf("violation: %v, before %d older ones, with %d that are put back", batch, passed, waits)
				}
				if rand.N(8) == 0 {
					return undo
				}
				status, delay := []string{"complete", "complete", "error", "new"}[rand.N(4)], "0"
				if status == "new" && rand.N(2) == 0 {
					delay = []string{"3 milliseconds", "100 milliseconds"}[rand.N(2)]
				}
				var settled int
				if err := tx.QueryRow(ctx, "select lock.settle_request($1, $2, null, $3)", process, status, delay).Scan(&settled); err != nil {
					return err
				} else if settled != len(batch) {
					return fmt.Errorf("violation: settled %d of %v", settled, batch)
				}
				for _, r := range batch {
					if status == "new" {
						break
					}
					if _, err := tx.Exec(ctx, "insert into worked values ($1)", r.RequestID); err != nil {
						return fmt.Errorf("violation: %w", err)
					}
				}
				return nil
			})
			if err != nil && err != undo {
				return found, err
			}
		}
		switch n := rand.N(12); {
		case n == 0:
			return found, nil // rolled back
		case n == 1 && prepares:
			name := fmt.Sprintf("'%x'", requestProcess())
			if _, err := tx.Exec(ctx, "prepare transaction "+name); err != nil {
				return found, err
			}
			end := []string{"commit", "rollback"}[rand.N(2)] + " prepared " + name
			for { // whatever is killed
				if _, err := e.pool.Exec(ctx, end); err == nil || code(err) == "42704" {
					return found, nil
				}
			}
		}
		return found, tx.Commit(ctx)
	}

	// Only what says so is a violation: back ends are killed, and producers that are not READ COMMITTED conflict.
	var violation atomic.Pointer[string]
	failed := func(err error) bool {
		if err != nil && len(err.Error()) > 9 && err.Error()[:9] == "violation" && code(err) != "57P01" {
			text := err.Error()
			violation.CompareAndSwap(nil, &text)
		}
		return violation.Load() != nil
	}
	var producers, others sync.WaitGroup
	var over atomic.Bool
	var killed atomic.Int64
	for range 3 {
		producers.Go(func() {
			for n := 0; n < rounds && violation.Load() == nil; n++ {
				produce()
				holdsWithin(perseverance, func() bool {
					var left int
					err := e.admin.QueryRow(ctx, "select count(*) from lock.request where settled_at is null").Scan(&left)
					return err == nil && left <= 60 || violation.Load() != nil
				})
			}
		})
	}
	for range 6 {
		others.Go(func() {
			for !over.Load() && !failed(func() error { _, err := work(); return err }()) {
			}
		})
	}
	others.Go(func() {
		for worked := 0; !over.Load(); {
			var now int
			holdsWithin(perseverance, func() bool {
				return e.admin.QueryRow(ctx, "select count(*) from worked").Scan(&now) != nil || now > worked+15 || over.Load()
			})
			worked = now
			var n int64
			if e.admin.QueryRow(ctx, `select count(*) filter (where pg_terminate_backend(pid)) from (select pid from pg_stat_activity
				where usename = 'locks_app' and datname = current_database() and state <> 'idle' order by random() limit 1) as victim`).Scan(&n) == nil {
				killed.Add(n)
			}
		}
	})
	producers.Wait()
	if violation.Load() == nil {
		if left, ok := requestOutstanding(e.admin, 0); !ok {
			text := fmt.Sprint(left, " are left")
			violation.CompareAndSwap(nil, &text)
		}
	}
	over.Store(true)
	others.Wait()
	if violation.Load() != nil {
		return *violation.Load()
	}
	return requestFuzzVerdict(t, e.admin, killed.Load())
}

func requestFuzzVerdict(t *testing.T, admin *pgxpool.Pool, killed int64) (verdict string) {
	t.Helper()
	var settled int
	must(t, admin.QueryRow(ctx, `select count(*) from lock.request where settled_at is not null`).Scan(&settled))
	t.Logf("%d requests settled, %d back ends killed", settled, killed)
	must(t, admin.QueryRow(ctx, `select concat_ws('; ',
		(select count(*) || ' produced, not there' from produced where not exists (select from lock.request where request.request_id = produced.request_id) having count(*) > 0),
		(select count(*) || ' there, not produced' from lock.request where not exists (select from produced where request.request_id = produced.request_id) having count(*) > 0),
		(select count(*) || ' settled, not worked on' from lock.request where not exists (select from worked where worked.request_id = request.request_id) having count(*) > 0),
		(select count(*) || ' worked on, not settled' from worked where not exists (select from lock.request where worked.request_id = request.request_id and settled_at is not null) having count(*) > 0),
		(select count(*) || ' batches left' from lock.request_batch having count(*) > 0))`).Scan(&verdict))
	return verdict
}

func TestRequestFuzz(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, e *env) {
		if verdict := requestFuzz(t, e, 150); verdict != "" {
			t.Error(verdict)
		}
	})
	for name, broken := range map[string][]string{
		"a worker that asks neither for the lock nor for the newest status": {"capture_request", "continue when not lock_internal.try_entity(capture_request.queue_id, candidate.entity_id);", "", "and request.request_status = 'new'\n                    returning", "returning"},
		"a capture of the newest first":                                     {"capture_request", "order by request.request_id + 0\n                    limit capture_request.max", "order by request.request_id + 0 desc\n                    limit capture_request.max"},
		"a capture that asks nowhere who waits": {
			"capture_request", "continue when candidate.waits;", "", "and request.available_at > moment\n                    );\n                if", "and false);\n                if",
		},
		"a capture that hides what it takes": {"capture_request", "order by captured.request_id", "order by captured.request_id limit 1"},
	} {
		t.Run("catches "+name, func(t *testing.T) {
			t.Parallel()
			onlyPostgreSQL(t, "its conflicts start a statement again")
			e := open(t, advisory)
			mutate(t, e, broken[0], broken[1:]...)
			verdict := requestFuzz(t, e, 150)
			t.Log(verdict)
			if verdict == "" {
				t.Error("found nothing")
			}
		})
	}
}
