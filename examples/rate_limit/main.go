// Serves an API with a limit per key: rate_limit DSN PERMITS WINDOW, such as 100 1m
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

type limit struct {
	pool    *pgxpool.Pool
	permits int32 // up to 100, in any window
	window  time.Duration
}

// allow says whether a key has a call left.
func (l limit) allow(ctx context.Context, key string) (bool, error) {
	throttle := locks.NewThrottle(l.pool, "api")
	name := fmt.Sprintf("api:%x", sha256.Sum256([]byte(key))) // keys are secrets, and names are not
	granted, err := throttle.Acquire(ctx, name)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "P0002" {
		return granted, err
	}
	// The first call of this key. When two calls come here at once, the second one changes nothing.
	_, err = db.New(l.pool).CreateThrottledResource(ctx, db.CreateThrottledResourceParams{
		ResourceID: name, ThrottleInterval: l.window, Permits: l.permits,
	})
	if err != nil {
		return false, err
	}
	return throttle.Acquire(ctx, name)
}

func main() {
	permits, err := strconv.ParseInt(os.Args[2], 10, 32)
	window, err2 := time.ParseDuration(os.Args[3])
	config, err3 := pgxpool.ParseConfig(os.Args[1])
	if err := errors.Join(err, err2, err3); err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.DialFunc = locks.Dial
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	limit := limit{pool: pool, permits: int32(permits), window: window}
	log.Fatal(http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch granted, err := limit.allow(r.Context(), r.Header.Get("X-Api-Key")); {
		case err != nil: // the database is away: nobody is let in
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		case !granted:
			http.Error(w, "too many calls", http.StatusTooManyRequests)
		default:
			fmt.Fprintln(w, "welcome")
		}
	})))
}
