//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed4787c507/locks"
)

func init() {
	sections = append(sections, section{
		kind: "key", title: "processes contend for shared and exclusive locks on the same two keys",
		show: showKeys, process: visitKeys,
	})
}

const (
	keyNumber = int64(-42) // unlikely to be somebody's
	keyName   = "demo:customer:42"
	keyRounds = 3
	keyDoomed = "writer 1" // is killed in its second round
)

var keys = []string{strconv.FormatInt(keyNumber, 10), keyName}

// The ledger is evidence, so the locks do not protect it: every row is written and committed by a connection of its own while
// the lock is held by another. A visit that nobody saw end counts as going on for ever.
var keyLedger = []string{
	`create table demo.ledger (
		visit    text         not null,
		process  text         not null,
		key      text         not null,
		mode     text         not null,
		event    text         not null check (event in ('enter', 'leave')),
		at       timestamptz  not null default clock_timestamp(),
		primary key (visit, event)
	)`,
	`create view demo.stay as
	select enter.visit, enter.process, enter.key, enter.mode, enter.at as entered, coalesce(leave.at, 'infinity') as gone
	from demo.ledger as enter
	left join demo.ledger as leave on leave.visit = enter.visit and leave.event = 'leave'
	where enter.event = 'enter'`,
	`create view demo.overlap as
	select one.key, one.process, one.mode, other.process as other_process, other.mode as other_mode,
		'exclusive' in (one.mode, other.mode) as forbidden
	from demo.stay as one
	join demo.stay as other on other.key = one.key and other.visit > one.visit and other.entered < one.gone and one.entered < other.gone`,
}

const (
	keyVerdict = "select key, count(*) filter (where not forbidden) as shared_together, count(*) filter (where forbidden) as forbidden from demo.overlap group by key"
	keyPlant   = `insert into demo.ledger
		values ('a', 'a', 'planted', 'exclusive', 'enter', '2000-01-01 00:00:01'), ('a', 'a', 'planted', 'exclusive', 'leave', '2000-01-01 00:00:03'),
			('b', 'b', 'planted', 'exclusive', 'enter', '2000-01-01 00:00:02'), ('b', 'b', 'planted', 'exclusive', 'leave', '2000-01-01 00:00:04'),
			('c', 'c', 'planted', 'shared', 'enter', '2000-01-01 00:00:03.5'), ('c', 'c', 'planted', 'shared', 'leave', '2000-01-01 00:00:05')`
)

// showKeys starts four readers (shared) and three writers (exclusive) while it has both keys itself, lets go when all of them
// wait, and judges by the ledger.
func showKeys(ctx context.Context, d *demo) error {
	for _, sql := range keyLedger {
		if _, err := d.conn.Exec(ctx, in(d.schema, sql)); err != nil {
			return err
		}
	}
	fmt.Println("  Would the ledger's query notice? Planted: two exclusive visits that overlap, and a shared one in the second.")
	if _, err := d.conn.Exec(ctx, in(d.schema, keyPlant)); err != nil {
		return err
	}
	planted, err := d.judgeKeys(ctx)
	if err != nil {
		return err
	}
	if v := planted["planted"]; v.forbidden != 2 || v.together != 0 {
		return fmt.Errorf("the ledger's query is wrong: it finds %d forbidden overlaps where 2 were planted", v.forbidden)
	}
	fmt.Printf("  It finds both.\n\n")
	if _, err := d.conn.Exec(ctx, in(d.schema, "delete from demo.ledger")); err != nil {
		return err
	}
	if err := d.forgetKeys(ctx); err != nil {
		return err
	}

	gate, err := connect(ctx, d.url, d.schema+"/demo")
	if err != nil {
		return err
	}
	defer gate.Close(context.WithoutCancel(ctx))
	// On the row engine two sharers go together once the key is known, so it is made known first.
	both := fmt.Sprintf("select lock.exclusive(%d::bigint), lock.exclusive('%s'::text)", keyNumber, keyName)
	for _, sql := range []string{both, "begin", both} {
		if _, err := gate.Exec(ctx, sql); err != nil {
			return err
		}
	}
	d.say("has %s and %s", keys[0], keys[1])
	var all bool
	err = d.conn.QueryRow(ctx, "select lock.try_all(array['"+keyName+":of nobody', $1], array[$2::bigint])", keyName, keyNumber).Scan(&all)
	if err != nil {
		return err
	}
	d.say("lock.try_all asks for both and a free one, all or nothing, and is told %v", all)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	processes := map[string]*exec.Cmd{}
	defer func() {
		cancel()
		for _, cmd := range processes {
			cmd.Wait()
		}
	}()
	for _, crowd := range []struct {
		mode, name string
		size       int
	}{{"shared", "reader", 4}, {"exclusive", "writer", 3}} {
		for i := range crowd.size {
			name := fmt.Sprintf("%s %d", crowd.name, i+1)
			processes[name], err = d.start(ctx, "key", name, crowd.mode, strconv.Itoa(i))
			if err != nil {
				delete(processes, name)
				return err
			}
		}
		if err := d.untilWaiting(ctx, len(processes)); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond) // The last ones are about to say that they wait.
	var waiting int
	var behind string
	err = d.conn.QueryRow(ctx, "select count(*), coalesce(string_agg(distinct split_part(root_application, '/', 2) || ', ' || root_state, '; '), 'nobody') "+
		"from lock.blocked where application like $1 || '/%'", d.schema).Scan(&waiting, &behind)
	if err != nil {
		return err
	}
	d.say("asks lock.blocked: %d wait, and the root of it is %s", waiting, behind)
	d.say("lets go of both")
	if _, err := gate.Exec(ctx, "commit"); err != nil {
		return err
	}
	for name, cmd := range processes {
		err := cmd.Wait()
		delete(processes, name)
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); name == keyDoomed && ok && status.Signal() == syscall.SIGKILL {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}

	fmt.Printf("\n  Who was inside at the same time? The ledger was written outside the locks' transactions.\n\n  %s;\n\n", in(d.schema, keyVerdict))
	found, err := d.judgeKeys(ctx)
	if err != nil {
		return err
	}
	failure := ""
	for _, key := range keys {
		v := found[key]
		fmt.Printf("  %-18s %d visits: %2d pairs of shared ones overlapped, and %d pairs with an exclusive one\n", key, v.visits, v.together, v.forbidden)
		switch {
		case v.visits == 0:
			failure = "nobody visited " + key
		case v.forbidden > 0:
			failure = key + " was held exclusively while somebody else had it"
		case v.together == 0:
			failure = "nobody shared " + key
		}
	}
	if failure != "" {
		return errors.New("the locks failed: " + failure)
	}
	fmt.Println("  Nobody was inside together with an exclusive holder.")
	return nil
}

// forgetKeys has the demo's keys forgotten at the end, unless they were known before.
func (d *demo) forgetKeys(ctx context.Context) error {
	for _, key := range []string{fmt.Sprintf("%d::bigint", keyNumber), "lock.key('" + keyName + "')"} {
		var known bool
		if err := d.conn.QueryRow(ctx, "select exists (select from lock.locked_keys where key = "+key+")").Scan(&known); err != nil {
			return err
		}
		if known {
			continue
		}
		d.undo(func(ctx context.Context, conn *pgx.Conn) error {
			// The server may not have noticed yet that a process of ours is dead.
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "select lock.try_exclusive("+key+", '10 seconds')"); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "select lock.unlock("+key+")")
				return err
			})
		})
	}
	return nil
}

// untilWaiting returns when so many of the demo's processes wait for a lock, or after a while: it is only about the order of
// the show, and not every server tells.
func (d *demo) untilWaiting(ctx context.Context, count int) error {
	deadline := time.After(3 * time.Second)
	for {
		var waiting int
		err := d.conn.QueryRow(ctx, "select count(*) from pg_stat_activity where application_name like $1 || '/%' and wait_event_type = 'Lock'", d.schema).Scan(&waiting)
		if err != nil || waiting >= count {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type keyFinding struct{ visits, together, forbidden int }

// judgeKeys asks the ledger, per key.
func (d *demo) judgeKeys(ctx context.Context) (map[string]keyFinding, error) {
	findings := map[string]keyFinding{}
	rows, err := d.conn.Query(ctx, in(d.schema, "select stay.key, count(*), coalesce(max(verdict.shared_together), 0), coalesce(max(verdict.forbidden), 0) "+
		"from demo.stay left join ("+keyVerdict+") as verdict on verdict.key = stay.key group by stay.key"))
	if err != nil {
		return nil, err
	}
	var key string
	var v keyFinding
	_, err = pgx.ForEachRow(rows, []any{&key, &v.visits, &v.together, &v.forbidden}, func() error {
		findings[key] = v
		return nil
	})
	return findings, err
}

// visitKeys is a reader or writer: it goes to the two keys in turn, and stays a while.
func visitKeys(ctx context.Context, p *process) error {
	mode := p.Arguments[0]
	number, err := strconv.Atoi(p.Arguments[1])
	if err != nil {
		return err
	}
	ledger, err := connect(ctx, p.URL, p.Schema+"/ledger")
	if err != nil {
		return err
	}
	defer ledger.Close(context.WithoutCancel(ctx))
	config, err := pgxpool.ParseConfig(p.URL)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["application_name"] = p.application()
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()

	var busy sync.Mutex // of the ledger's connection
	for round := range keyRounds {
		key := keys[(number+round)%len(keys)]
		visit := fmt.Sprintf("%s, round %d", p.Name, round+1)
		write := func(event string) error {
			busy.Lock()
			defer busy.Unlock()
			_, err := ledger.Exec(ctx, in(p.Schema, "insert into demo.ledger (visit, process, key, mode, event) values ($1, $2, $3, $4, $5)"), visit, p.Name, key, mode, event)
			return err
		}
		asked := time.Now()
		waits := time.AfterFunc(30*time.Millisecond, func() {
			busy.Lock()
			defer busy.Unlock()
			p.say("waits for  %-17s %-9s  behind %s", key, mode, p.ahead(ctx, ledger))
		})
		inside := func(pgx.Tx) error {
			waits.Stop()
			if err := write("enter"); err != nil {
				return err
			}
			p.say("has        %-17s %-9s  after %d ms", key, mode, time.Since(asked).Milliseconds())
			select {
			case <-time.After(300*time.Millisecond + rand.N(400*time.Millisecond)):
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := write("leave"); err != nil {
				return err
			}
			if p.Name == keyDoomed && round == 1 {
				p.say("is killed  %-17s %-9s  the lock goes with its connection", key, mode)
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			p.say("leaves     %-17s %-9s", key, mode)
			return nil
		}
		switch {
		case key == keyName && mode == "shared":
			err = locks.Shared(ctx, pool, keyName, inside)
		case key == keyName:
			err = locks.Exclusive(ctx, pool, keyName, inside)
		case mode == "shared":
			err = locks.Shared(ctx, pool, keyNumber, inside)
		default:
			err = locks.Exclusive(ctx, pool, keyNumber, inside)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ahead names those that this process waits for, as far as the server tells.
func (p *process) ahead(ctx context.Context, conn *pgx.Conn) string {
	var names *string
	err := conn.QueryRow(ctx, `
		select string_agg(coalesce(nullif(split_part(other.application_name, $1 || '/', 2), ''), 'process ' || other.pid), ', ' order by other.application_name)
		from pg_stat_activity as this
		join pg_stat_activity as other on other.pid = any (pg_blocking_pids(this.pid))
		where this.application_name = $2`, p.Schema, p.application()).Scan(&names)
	if err != nil || names == nil {
		return "somebody"
	}
	return *names
}
