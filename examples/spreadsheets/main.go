// Command spreadsheets is a small service on package locks: a front end takes requests for spreadsheets by HTTP, and any number
// of back ends write them as .xlsx files. See README.md; back.go is the part to read first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// queue is where the front ends leave requests for the back ends. An entity of it is a sheet.
const queue = "spreadsheets"

const usage = `usage: spreadsheets COMMAND [FLAGS], on the PostgreSQL that DATABASE_URL names
  migrate [-grant ROLE]                     make or upgrade the schemas, and let a role use them
  front [-listen ADDRESS] [-files DIR]      take requests
  back [-files DIR] [-poll DURATION]        do them; start as many as you like
  demo                                      a front end, three back ends, users, and a kill -9`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "spreadsheets:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	grant := flags.String("grant", "", "a role that will use the schemas")
	listen := flags.String("listen", "127.0.0.1:8080", "the address of the front end")
	files := flags.String("files", "sheets", "the directory of the .xlsx files, the same for all")
	poll := flags.Duration("poll", 30*time.Second, "how late a back end finds, at worst, what another left that was killed")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New(usage)
	}
	address := os.Getenv("DATABASE_URL")
	switch arguments[0] {
	case "migrate":
		return migrate(ctx, address, *grant)
	case "demo":
		return demo(ctx, os.Getenv("LOCKS_DEMO_URL"))
	case "front", "back":
	default:
		return errors.New(usage)
	}

	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := os.MkdirAll(*files, 0o755); err != nil {
		return err
	}
	if arguments[0] == "front" {
		return (&front{pool: pool, files: *files}).serve(ctx, *listen)
	}
	return (&back{files: *files}).work(ctx, pool, *poll)
}
