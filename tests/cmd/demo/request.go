//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

func init() {
	sections = append(sections,
		section{kind: "request", title: "back ends share spreadsheets, each worked on by one at a time; 50 clicks are one piece of work", show: showRequests},
		section{kind: "change", title: "a table's changes become requests, the rolled back ones do not", show: showChanges})
}

// A backEnd captures from the queue of this run in transactions of its own.
type backEnd struct {
	d    *demo
	name string
	conn *pgx.Conn
	tx   pgx.Tx
	id   pgtype.UUID
	line int64
}

func (d *demo) backEnd(ctx context.Context, name string) (*backEnd, error) {
	conn, err := connect(ctx, d.url, d.schema+"/"+name)
	return &backEnd{d: d, name: name, conn: conn}, err
}

// capture takes the next work behind the line, and fails when it is not what is wanted.
func (b *backEnd) capture(ctx context.Context, want ...string) (err error) {
	if b.tx, err = b.conn.Begin(ctx); err != nil {
		return err
	}
	b.id.Valid = true
	rand.Read(b.id.Bytes[:])
	batch, err := db.New(b.tx).CaptureRequest(ctx, db.CaptureRequestParams{ProcessID: b.id, After: b.line, QueueID: b.d.schema})
	if err != nil {
		return err
	}
	var got []string
	for _, request := range batch {
		got = append(got, string(request.RequestType)+" "+request.EntityID)
	}
	switch {
	case !slices.Equal(got, want):
		return fmt.Errorf("%s took %q, and %q was expected", b.name, got, want)
	case len(batch) == 0:
		say(b.d.started, b.name, "finds nothing behind its line")
		return b.tx.Rollback(ctx)
	}
	b.line = batch[0].RequestID
	say(b.d.started, b.name, "takes %d x %s, in-progress until it commits", len(got), got[0])
	return nil
}

func (b *backEnd) settle(ctx context.Context) error {
	settled, err := db.New(b.tx).SettleRequest(ctx, db.SettleRequestParams{ProcessID: b.id})
	if err != nil {
		return err
	}
	say(b.d.started, b.name, "settles %d, and commits", settled)
	return b.tx.Commit(ctx)
}

// again goes back to the beginning of the queue.
func (b *backEnd) again() { b.line = 0 }

// requestLeavings removes a queue, and on the row engine the rows that are its entities' locks.
const requestLeavings = `with requests as (delete from lock.request where queue_id = $1)
	select lock.unlock(key) from lock.locked_keys where starts_with(name, 'request ' || $1 || ' ')`

func showRequests(ctx context.Context, d *demo) error {
	d.undo(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, requestLeavings, d.schema)
		return err
	})
	q := db.New(d.conn)
	for _, r := range []db.EnqueueParams{
		{RequestType: db.RequestCreate, EntityID: "red"},
		{RequestType: db.RequestUpdate, EntityID: "red"},
		{RequestType: db.RequestUpdate, EntityID: "red"},
		{RequestType: db.RequestUpdate, EntityID: "blue"},
		{RequestType: db.RequestUpdate, EntityID: "blue"},
	} {
		r.QueueID = d.schema
		if _, err := q.Enqueue(ctx, r); err != nil {
			return err
		}
	}
	d.say("requests: create red, update red, update red, update blue, update blue")
	a, err := d.backEnd(ctx, "A")
	if err != nil {
		return err
	}
	defer a.conn.Close(context.WithoutCancel(ctx))
	b, err := d.backEnd(ctx, "B")
	if err != nil {
		return err
	}
	defer b.conn.Close(context.WithoutCancel(ctx))
	for _, step := range []func() error{
		func() error { return a.capture(ctx, "create red") },
		func() error { return b.capture(ctx, "update blue", "update blue") }, // the red ones are skipped while A creates it
		func() error { return b.settle(ctx) },
		func() error { return b.capture(ctx) },
		func() error { return a.settle(ctx) },
		func() error { b.again(); return b.capture(ctx, "update red", "update red") },
		func() error { return b.settle(ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}

	for range 50 {
		if _, err := q.Enqueue(ctx, db.EnqueueParams{RequestType: db.RequestUpdate, EntityID: "blue", QueueID: d.schema}); err != nil {
			return err
		}
	}
	d.say("a user clicks 50 times")
	return d.work(ctx, 1, func(batch []db.Request) error {
		say(d.started, "worker", "calls the handler once, with %d requests for %s", len(batch), batch[0].EntityID)
		if len(batch) != 50 {
			return fmt.Errorf("a batch of %d", len(batch))
		}
		return nil
	})
}

func showChanges(ctx context.Context, d *demo) error {
	d.undo(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, requestLeavings, d.schema)
		return err
	})
	for _, sql := range []string{
		"create table demo.orders (id bigint primary key, customer text, amount numeric)",
		"select lock.track_changes('demo.orders', 'customer', '" + d.schema + "')",
		"insert into demo.orders values (1, 'Ada', 10), (2, 'Ada', 20), (3, 'Bob', 30)",
		"update demo.orders set amount = 11 where id = 1",
		"begin; delete from demo.orders; rollback",
		"update demo.orders set customer = 'Bob' where id = 2",
	} {
		if _, err := d.conn.Exec(ctx, in(d.schema, sql), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		fmt.Printf("  %s;\n", sql)
	}
	counts := map[string]int{"Ada": 4, "Bob": 2}
	return d.work(ctx, len(counts), func(batch []db.Request) error {
		customer := batch[0].EntityID
		say(d.started, "worker", "gets %d changes of %s's orders, the last: %s", len(batch), customer, batch[len(batch)-1].Payload)
		if len(batch) != counts[customer] {
			return fmt.Errorf("%d changes of %s, and %d were made", len(batch), customer, counts[customer])
		}
		return nil
	})
}

// work runs locks.WorkRequests on the queue of this run until it has handled so many batches.
func (d *demo) work(ctx context.Context, batches int, handle func(batch []db.Request) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["application_name"] = d.schema + "/work"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer d.conn.Exec(context.WithoutCancel(ctx), "delete from lock.idle_worker where queue_id = $1", d.schema)
	var failed error
	err = locks.WorkRequests(ctx, pool, d.schema, func(_ context.Context, _ pgx.Tx, batch []db.Request) error {
		err := handle(batch)
		failed = errors.Join(failed, err)
		if batches--; batches == 0 || failed != nil {
			cancel()
		}
		return err
	}, nil)
	if failed == nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return failed
}
