//go:build unix

package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// showConsole starts the console and plays the demo again and again beside it, until the program is interrupted.
func showConsole(interrupted context.Context, t *target, conn *pgx.Conn, program string) error {
	ctx, cancel := context.WithCancelCause(interrupted)
	defer cancel(nil)
	address := t.url
	if u, err := url.Parse(t.url); err == nil && t.stop != nil {
		const role = "locks_console"
		for _, sql := range []string{"create role " + role + " login", "grant pg_monitor to " + role, "select lock.grant_monitor_to('" + role + "')"} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		u.User = url.User(role)
		address = u.String()
	}
	console := exec.CommandContext(ctx, program, "console", "--listen", *listen)
	console.Env = append(os.Environ(), "LOCKS_CONSOLE_URL="+address)
	console.Stdout, console.Stderr = os.Stdout, os.Stderr
	console.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	console.Cancel = func() error { return console.Process.Signal(syscall.SIGTERM) }
	console.WaitDelay = 15 * time.Second
	if err := console.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(fmt.Errorf("the console: %w", console.Wait()))
	}()
	defer func() {
		cancel(nil)
		<-ended
	}()
	fmt.Println("The demo plays again and again, for the console to show. Ctrl-C ends both.")
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		play := exec.CommandContext(ctx, self, "-root", *root)
		play.Env = append(os.Environ(), "LOCKS_DEMO_URL="+t.url)
		play.Stderr = os.Stderr
		play.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		play.Cancel = func() error { return play.Process.Signal(syscall.SIGTERM) }
		play.WaitDelay = 30 * time.Second
		if err := play.Run(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("the demo: %w", err)
		}
	}
	if interrupted.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}
