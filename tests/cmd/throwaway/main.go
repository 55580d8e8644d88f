// Command throwaway starts a PostgreSQL, from local binaries or else in a container, prints its superuser's address, and stops it
// when standard input ends, as it does when the program that holds the other end dies. Where neither can be had it prints "none: " and
// the reason.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/seed4787c507/locks/lockstest/server"
	"github.com/seed4787c507/locks/tests/container"
)

func main() {
	// Ctrl-C is for those who use the server: they close standard input when they are done.
	signal.Ignore(os.Interrupt)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "throwaway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	address, stop, err := start(ctx)
	if errors.Is(err, server.ErrNoBinaries) {
		fmt.Println("none:", strings.ReplaceAll(err.Error(), "\n", "; "))
		return nil
	} else if err != nil {
		return err
	}
	fmt.Println(address)
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return stop()
}

func start(ctx context.Context) (address string, stop func() error, err error) {
	s, err := server.Start(ctx, server.Options{})
	if err == nil {
		return s.URL("postgres", "postgres"), s.Stop, nil
	} else if !errors.Is(err, server.ErrNoBinaries) {
		return "", nil, err
	}
	address, stop, containerErr := container.Start(ctx)
	if containerErr != nil {
		return "", nil, errors.Join(err, containerErr)
	}
	return address, stop, nil
}
