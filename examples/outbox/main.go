// Sends what the triggers recorded to another service, in order for each customer: outbox DSN URL
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

var client = http.Client{Timeout: 5 * time.Second} // the transaction is open for so long

func send(ctx context.Context, url string, request db.Request) error {
	body := bytes.NewReader(request.Payload)
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	// A change is sent again when this program dies before the commit: the receiver looks at this.
	post.Header.Set("Idempotency-Key", strconv.FormatInt(request.RequestID, 10))
	answer, err := client.Do(post)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		return fmt.Errorf("request %d: %s", request.RequestID, answer.Status)
	}
	return nil
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
	work := func(ctx context.Context, _ pgx.Tx, batch []db.Request) error {
		for _, request := range batch { // the changes of one customer, oldest first
			if err := send(ctx, os.Args[2], request); err != nil {
				return locks.RetryAfter(time.Second, err) // the whole batch: nothing overtakes it
			}
		}
		return nil
	}
	err = locks.WorkRequests(ctx, pool, "outbox", work, &locks.RequestOptions{MaxTries: 1000})
	log.Print(err)
}
