//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

func init() {
	sections = append(sections, section{
		kind: "lease", title: "three processes elect a leader; the leader is stopped, and wakes up to find itself replaced",
		show: showLease, process: lead,
	})
}

const leaseTTL = 3 * time.Second

// showLease stops the first leader past its ttl, waits for the second, and lets the first go on: what it then writes is refused.
func showLease(ctx context.Context, d *demo) error {
	if _, err := d.conn.Exec(ctx, in(d.schema, "create table demo.reign (token bigint primary key, leader text not null)")); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	processes := map[string]*exec.Cmd{}
	defer func() {
		cancel()
		for _, cmd := range processes {
			cmd.Process.Signal(syscall.SIGCONT)
			cmd.Wait()
		}
		d.conn.Exec(context.WithoutCancel(ctx), "select lock.force_release_lease(name, token, 'the demo is over') from lock.lease where name = $1", d.schema)
		d.conn.Exec(context.WithoutCancel(ctx), "delete from lock.forced_release where id = $1", d.schema)
		d.conn.Exec(context.WithoutCancel(ctx), "delete from lock.lease_name where name = $1", d.schema)
	}()
	for i := range 3 {
		name := "process " + strconv.Itoa(i+1)
		cmd, err := d.start(ctx, "lease", name)
		if err != nil {
			return err
		}
		processes[name] = cmd
	}
	first, firstToken, err := d.leaderAfter(ctx, 0)
	if err != nil {
		return err
	}
	if err := processes[first].Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	d.say("stops %s, which holds token %d", first, firstToken)
	second, secondToken, err := d.leaderAfter(ctx, firstToken)
	if err != nil {
		return err
	}
	if second == first || secondToken <= firstToken {
		return fmt.Errorf("token %d of %s does not follow token %d of %s", secondToken, second, firstToken, first)
	}
	_, err = d.conn.Exec(ctx, "select lock.assert_lease($1, $2)", d.schema, firstToken)
	if !errors.As(err, new(*pgconn.PgError)) {
		return fmt.Errorf("the old token was not refused: %v", err)
	}
	d.say("a write with token %d is refused: %s", firstToken, strings.ReplaceAll(err.Error(), d.schema, "demo"))
	if err := processes[first].Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	processes[first].Wait()
	delete(processes, first)
	return nil
}

// leaderAfter waits for a leader with a greater token.
func (d *demo) leaderAfter(ctx context.Context, token int64) (string, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		var leader string
		var found int64
		err := d.conn.QueryRow(ctx, in(d.schema, "select leader, token from demo.reign where token > $1 order by token limit 1"), token).Scan(&leader, &found)
		if !errors.Is(err, pgx.ErrNoRows) {
			return leader, found, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return "", 0, errors.New("no leader was elected")
		}
	}
}

func lead(ctx context.Context, p *process) error {
	config, err := pgxpool.ParseConfig(p.URL)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["application_name"] = p.application()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	err = locks.WithLease(ctx, pool, p.Schema, leaseTTL, func(ctx context.Context, lease locks.Lease) error {
		p.say("leads, with token %d", lease.Token)
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := lease.Assert(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, in(p.Schema, "insert into demo.reign values ($1, $2)"), lease.Token, p.Name)
			return err
		})
		if err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}, &locks.LeaseOptions{Wait: true, Owner: p.Name})
	if errors.Is(err, locks.ErrLeaseLost) {
		p.say("goes on, and knows at once: %v", locks.ErrLeaseLost)
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
