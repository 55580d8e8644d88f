// A worker that delivers mail into a directory, and a digest each hour: work_queue DSN DIRECTORY
package main

import (
	"context"
	"log"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

type letter struct {
	Text string `json:"text"`
}

var mail = locks.Queue[letter]{Name: "mail"} // producers in Go call mail.Create

// The task of the next full hour. Its id is the hour: there is one, however often this is called.
const next = `
	select lock.create_task('digest ' || to_char(slot at time zone 'UTC', 'YYYY-MM-DD HH24'), 'mail',
		timeout => '5 minutes', available_at => slot)
	from date_bin('1 hour', clock_timestamp() + interval '1 hour', '2000-01-01 00:00Z') as hour (slot)`

func schedule(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, next)
	return err
}

// deliver is called twice with one task when a worker died: it writes the same file again.
func deliver(directory string, task locks.Task[letter]) error {
	path := filepath.Join(directory, url.PathEscape(task.ID)+".mail")
	if err := os.WriteFile(path+".new", []byte(task.Payload.Text), 0o600); err != nil {
		return err // tried again after a second or two, then later and later
	}
	return os.Rename(path+".new", path)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.DialFunc = locks.Dial
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := schedule(ctx, pool); err != nil {
		log.Fatal(err)
	}
	work := func(ctx context.Context, task locks.Task[letter]) error {
		if strings.HasPrefix(task.ID, "digest ") {
			// First the next one: this one may fail for good.
			if err := schedule(ctx, pool); err != nil {
				return err
			}
		}
		return deliver(os.Args[2], task)
	}
	err = mail.Work(ctx, pool, work, &locks.TaskOptions{Concurrency: 4})
	log.Print(err)
}
