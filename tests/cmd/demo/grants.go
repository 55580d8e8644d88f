//go:build unix

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// A contest is a kind of which exactly one of several processes gets something at the same moment.
type contest struct {
	kind, title string
	make        string   // SQL that makes the id, if it has to be made
	take        string   // SQL that each process runs; true for the winner
	afterwards  []string // SQL to show, with its answer
	forget      string   // SQL that removes the id again
}

// contests are written with the id ID, and WHO for the process that asks.
var contests = []contest{
	{
		kind: "mutex", title: "a durable flag; one of 6 processes sets it, and it stays set",
		take:       "select lock.acquire_mutex('ID', 'WHO')",
		afterwards: []string{"select owner from lock.mutex where task_id = 'ID' and acquired", "select lock.release_mutex('ID', 'somebody else')"},
		forget:     "delete from lock.mutex where task_id = 'ID'",
	},
	{
		kind: "timeout", title: "one of 6 processes gets the hour, and nobody has to give it back",
		make:       "select lock.create_timeout('ID', '1 hour')",
		take:       "select lock.acquire_timeout('ID')",
		afterwards: []string{"select date_trunc('minute', ts + timeout - now()) from lock.timeout where task_id = 'ID'"},
		forget:     "delete from lock.timeout where task_id = 'ID'",
	},
	{
		kind: "time_slot", title: "a data point for each slot of a year: the first write wins",
		take:       "select lock.acquire_time_slot('ID', '365 days')",
		afterwards: []string{"select lock.acquire_time_slot('ID', '365 days', clock_timestamp() + '365 days')"},
		forget:     "delete from lock.time_slot where task_id = 'ID'",
	},
	{
		kind: "throttle", title: "an expensive cache is rebuilt once in 15 seconds, by one of 6 processes",
		make: "select lock.create_throttled_resource('ID', '15 seconds')",
		take: "select lock.lock_throttled_resource('ID', 'WHO')",
		afterwards: []string{
			"select last_locker_details from lock.throttled_resource where resource_id = 'ID'",
			"select lock.create_throttled_resource('ID', '15 seconds', 3)", // two permits more
			"select count(*) filter (where lock.lock_throttled_resource('ID', 'again')) from generate_series(1, 9)",
		},
		forget: "with permit as (delete from lock.throttled_permit where resource_id = 'ID') delete from lock.throttled_resource where resource_id = 'ID'",
	},
	{
		kind: "rate_limit", title: "one call in an hour, for a name that nobody has set up",
		take:       "select granted from lock.take('ID', 1, '1 hour')",
		afterwards: []string{"select ceil(extract(epoch from retry_after) / 60) from lock.take('ID', 1, '1 hour')"},
		forget:     "delete from lock.rate_limit where limit_id = 'ID'",
	},
}

const contestants = 6

func init() {
	for _, c := range contests {
		sections = append(sections, section{kind: c.kind, title: c.title, show: c.show, process: c.takePart})
	}
}

func (c contest) text(sql, schema, who string) string {
	return strings.NewReplacer("ID", schema, "WHO", who).Replace(sql)
}

// show lets the processes wait for a key that it holds, so that all ask at the same moment.
func (c contest) show(ctx context.Context, d *demo) error {
	if c.make != "" {
		if _, err := d.conn.Exec(ctx, c.text(c.make, d.schema, "")); err != nil {
			return err
		}
	}
	forget := c.text(c.forget, d.schema, "")
	defer d.conn.Exec(context.WithoutCancel(ctx), forget)
	if _, err := d.conn.Exec(ctx, in(d.schema, "create table if not exists demo.answer (kind text, process text, won boolean)")); err != nil {
		return err
	}
	gate, err := connect(ctx, d.url, d.schema+"/demo")
	if err != nil {
		return err
	}
	defer gate.Close(context.WithoutCancel(ctx))
	start := "select lock.exclusive('" + d.schema + "'::text)"
	for _, sql := range []string{start, "begin", start} {
		if _, err := gate.Exec(ctx, sql); err != nil {
			return err
		}
	}
	var processes []*exec.Cmd
	for i := range contestants {
		cmd, err := d.start(ctx, c.kind, fmt.Sprintf("process %d", i+1))
		if err != nil {
			return err
		}
		processes = append(processes, cmd)
	}
	if err := d.untilWaiting(ctx, contestants); err != nil {
		return err
	}
	d.say("all %d processes are ready; now", contestants)
	if _, err := gate.Exec(ctx, "select lock.unlock('"+d.schema+"'::text)"); err != nil {
		return err
	}
	if _, err := gate.Exec(ctx, "commit"); err != nil {
		return err
	}
	for _, cmd := range processes {
		if err := cmd.Wait(); err != nil {
			return err
		}
	}
	var won, asked int
	err = d.conn.QueryRow(ctx, in(d.schema, "select count(*) filter (where won), count(*) from demo.answer where kind = $1"), c.kind).Scan(&won, &asked)
	if err != nil {
		return err
	}
	d.say("%d of %d got it", won, asked)
	for _, sql := range c.afterwards {
		sql = c.text(sql, d.schema, "")
		var answer string
		if err := d.conn.QueryRow(ctx, "select ("+sql+")::text").Scan(&answer); err != nil {
			return err
		}
		fmt.Printf("  %s  ->  %s\n", strings.ReplaceAll(sql, d.schema, "demo"), answer)
	}
	if won != 1 || asked != contestants {
		return fmt.Errorf("%d of %d processes got it", won, asked)
	}
	_, err = d.conn.Exec(ctx, "select lock.unlock('"+d.schema+"'::text)")
	return err
}

func (c contest) takePart(ctx context.Context, p *process) error {
	conn, err := connect(ctx, p.URL, p.application())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "select lock.shared('"+p.Schema+"'::text)"); err != nil {
		return err
	}
	var won bool
	if err := conn.QueryRow(ctx, c.text(c.take, p.Schema, p.Name)).Scan(&won); err != nil {
		return err
	}
	if won {
		p.say("gets it")
	}
	_, err = conn.Exec(ctx, in(p.Schema, "insert into demo.answer values ($1, $2, $3)"), c.kind, p.Name, won)
	return err
}
