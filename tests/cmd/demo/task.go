//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
	"github.com/seed4787c507/locks/db"
)

func init() {
	sections = append(sections, section{
		kind: "task", title: "four processes share 200 tasks; one is killed at work, one is told to stop, and a task fails until it is given up",
		show: showTasks, process: workTasks,
	})
}

const (
	taskCount   = 200
	taskTimeout = "1 second"
	poisonTries = 4
)

// showTasks lets the workers write what they did into a ledger, and judges by it: no attempt of a task twice, every task done.
func showTasks(ctx context.Context, d *demo) error {
	if _, err := d.conn.Exec(ctx, in(d.schema, "create table demo.work (task_id text, attempt bigint, worker text, at timestamptz default clock_timestamp())")); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var processes []*exec.Cmd
	defer func() {
		cancel()
		for _, cmd := range processes {
			cmd.Wait()
		}
		background := context.WithoutCancel(ctx)
		d.conn.Exec(background, "delete from lock.task where queue_id = $1", d.schema)
		d.conn.Exec(background, "delete from lock.idle_worker where queue_id = $1", d.schema)
	}()
	for i := range 4 {
		cmd, err := d.start(ctx, "task", fmt.Sprintf("worker %d", i+1))
		if err != nil {
			return err
		}
		processes = append(processes, cmd)
	}
	if _, err := d.conn.Exec(ctx, "select lock.create_tasks(array(select 'task ' || n from generate_series(1, "+fmt.Sprint(taskCount)+") as n), $1, timeout => '"+taskTimeout+"')", d.schema); err != nil {
		return err
	}
	d.say("creates %d tasks with a timeout of %s", taskCount, taskTimeout)
	if err := d.untilTasks(ctx, taskCount/3); err != nil {
		return err
	}
	if err := processes[0].Process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	d.say("kills worker 1")
	if err := processes[1].Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	d.say("tells worker 2 to stop")
	processes[1].Wait()
	var left int
	if err := d.conn.QueryRow(ctx, "select count(*) from lock.task where queue_id = $1 and owner = 'worker 2' and status = 'in_progress'", d.schema).Scan(&left); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("worker 2 left %d tasks in progress", left)
	}
	if err := d.untilTasks(ctx, taskCount); err != nil {
		return err
	}
	if err := d.showPoison(ctx); err != nil {
		return err
	}
	var twice, retried int
	err := d.conn.QueryRow(ctx, in(d.schema, `select count(*) - count(distinct (task_id, attempt)), count(distinct task_id) filter (where attempt > 1) from demo.work`)).Scan(&twice, &retried)
	if err != nil {
		return err
	}
	rows, err := d.conn.Query(ctx, in(d.schema, "select worker, count(*) from demo.work group by worker order by worker"))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var worker string
		var count int
		if err := rows.Scan(&worker, &count); err != nil {
			return err
		}
		fmt.Printf("  %s did %d\n", worker, count)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	d.say("all %d tasks are done; %d were taken over, and no attempt was given out twice", taskCount, retried)
	if twice > 0 {
		return fmt.Errorf("%d attempts were given out twice", twice)
	}
	return nil
}

// showPoison shows a task that fails whenever it is tried.
func (d *demo) showPoison(ctx context.Context) error {
	if _, err := d.conn.Exec(ctx, "select lock.create_task('poison', $1)", d.schema); err != nil {
		return err
	}
	d.say("creates a task that always fails, and has no limit of its own")
	var tries int
	var message string
	err := until(ctx, func() (bool, error) {
		err := d.conn.QueryRow(ctx, "select tries, message from lock.dead_letter where queue_id = $1 and id = 'poison'", d.schema).Scan(&tries, &message)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return fmt.Errorf("the poison is no dead letter: %w", err)
	}
	d.say("it is a dead letter after %d tries: %q", tries, message)
	if tries != poisonTries {
		return fmt.Errorf("%d tries", tries)
	}
	return nil
}

// until waits until a condition holds.
func until(ctx context.Context, condition func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if holds, err := condition(); err != nil || holds {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// untilTasks waits until so many tasks are done.
func (d *demo) untilTasks(ctx context.Context, count int) error {
	var done int
	err := until(ctx, func() (bool, error) {
		err := d.conn.QueryRow(ctx, "select count(*) from lock.task where queue_id = $1 and status = 'done'", d.schema).Scan(&done)
		return done >= count, err
	})
	if err != nil {
		return fmt.Errorf("%d of %d tasks are done: %w", done, count, err)
	}
	return nil
}

func workTasks(ctx context.Context, p *process) error {
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
	options := &locks.TaskOptions{
		Owner: p.Name, Concurrency: 5, ShortestPause: 100 * time.Millisecond, MaxTries: poisonTries,
		Settled: func(_ context.Context, result locks.TaskResult) {
			if result.Err != nil {
				p.say("try %d of %s fails: %v", result.Task.Tries, result.Task.ID, result.Err)
			}
		},
		WorkerOptions: locks.WorkerOptions{Poll: time.Second},
	}
	err = locks.WorkTasks(ctx, pool, p.Schema, func(ctx context.Context, task db.Task) error {
		if task.ID == "poison" {
			return errors.New("no antidote")
		}
		if task.Attempt > 1 {
			p.say("takes over %s, attempt %d", task.ID, task.Attempt)
		}
		_, err := pool.Exec(ctx, in(p.Schema, "insert into demo.work values ($1, $2, $3)"), task.ID, task.Attempt, p.Name)
		time.Sleep(time.Duration(20+rand.IntN(40)) * time.Millisecond) // the work
		return err
	}, options)
	if errors.Is(err, context.Canceled) {
		p.say("has stopped, and finished what it was at")
		return nil
	}
	return err
}
