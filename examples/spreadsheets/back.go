package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

// A back end does what the requests of the queue ask for.
type back struct {
	files string // the directory of all files
}

// work works until ctx ends, and finishes what it is at then.
func (b *back) work(ctx context.Context, pool *pgxpool.Pool, poll time.Duration) error {
	err := locks.WorkRequests(ctx, pool, queue, b.handle, &locks.RequestOptions{WorkerOptions: locks.WorkerOptions{Poll: poll}})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// handle does a batch: it writes the next version of a sheet. While tx is open nobody else works on this sheet, and when it commits,
// the requests are settled and the new version is the sheet, at once.
//
// If this process dies before, nothing has happened but that a file lies about which no row names, and somebody else does the batch
// again, from the version that the row names still. So a file is never changed once it is written, and its name is its own: even a
// back end that was cut off from the database without knowing, and goes on with what others have done meanwhile, spoils nothing.
func (b *back) handle(ctx context.Context, tx pgx.Tx, batch []db.Request) error {
	sheet, file := batch[0].EntityID, version(batch[0].ProcessID)
	if batch[0].RequestType == db.RequestCreate {
		fmt.Printf("%s: create\n", sheet)
		if err := b.write("", file, nil); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into spreadsheets.sheet (sheet_id, file) values ($1, $2)", sheet, file)
		return err
	}

	fmt.Printf("%s: update (%d requests)\n", sheet, len(batch))
	var base string
	err := tx.QueryRow(ctx, "select file from spreadsheets.sheet where sheet_id = $1", sheet).Scan(&base)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("there is no such sheet: its create failed, or nobody asked for one")
	} else if err != nil {
		return err
	}
	if err := b.write(base, file, batch); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "update spreadsheets.sheet set file = $2 where sheet_id = $1", sheet, file)
	return err
}

// write makes the next version. A payload that is wrong will not get better; a disk that is full may.
func (b *back) write(base, file string, batch []db.Request) error {
	var updates []update
	for _, request := range batch {
		u, err := updateOf(request.Payload)
		if err != nil {
			return fmt.Errorf("request %d: %w", request.RequestID, err)
		}
		updates = append(updates, u)
	}
	if err := writeVersion(b.files, base, file, updates); err != nil {
		return locks.RetryAfter(time.Second, err)
	}
	return nil
}

// version is the name of the file that a process writes: each capture of a batch is a process of its own.
func version(process pgtype.UUID) string {
	return process.String() + ".xlsx"
}
