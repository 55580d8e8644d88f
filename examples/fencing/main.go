// Pays an invoice at an outside service, once: fencing DSN URL INVOICE
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

// charge asks the service, which promises two things. There is one charge per Idempotency-Key,
// however often it is asked. It refuses a smaller Fencing-Token than it has seen for the invoice.
func charge(ctx context.Context, url, invoice, amount string, token int64) (string, error) {
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(amount))
	if err != nil {
		return "", err
	}
	post.Header.Set("Idempotency-Key", "invoice-"+invoice)
	post.Header.Set("Fencing-Token", strconv.FormatInt(token, 10))
	answer, err := http.DefaultClient.Do(post)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("charge invoice %s: %s", invoice, answer.Status)
	}
	return string(body), err
}

func pay(ctx context.Context, pool *pgxpool.Pool, lease locks.Lease, url, invoice string) error {
	// fenced runs one statement that commits only while the lease is held.
	fenced := func(sql string, args ...any) (amount string, err error) {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := lease.Assert(ctx, tx); err != nil {
				return err
			}
			return tx.QueryRow(ctx, sql, args...).Scan(&amount)
		})
		return amount, err
	}
	// 1. Say what will be done. After a crash the next run finds 'sending', and goes on from here.
	amount, err := fenced(`update invoice set state = 'sending'
		where id = $1 and state <> 'paid' returning amount::text`, invoice)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // it is paid, or there is none
	} else if err != nil {
		return err
	}
	// 2. Do it. When the answer is lost, the next run asks again: the same key, a greater token.
	receipt, err := charge(ctx, url, invoice, amount, lease.Token)
	if err != nil {
		return err
	}
	// 3. Say that it was done.
	_, err = fenced(`update invoice set state = 'paid', receipt = $2
		where id = $1 returning amount::text`, invoice, receipt)
	return err
}

func main() {
	ctx := context.Background()
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
	work := func(ctx context.Context, lease locks.Lease) error {
		return pay(ctx, pool, lease, os.Args[2], os.Args[3])
	}
	err = locks.WithLease(ctx, pool, "invoice:"+os.Args[3], 15*time.Second, work, nil)
	if err != nil {
		log.Fatal(err)
	}
}
