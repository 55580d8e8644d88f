//go:build linux

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed4787c507/locks"
)

// A Fault is something that goes wrong. Run injects it, undoes it, and returns when it is over. An error means that it did not happen as
// it should have, or could not be undone.
type Fault struct {
	Name string
	Run  func(ctx context.Context) error
}

// Faults are those that this machine and this cluster can do.
func (c *Cluster) Faults() (able []Fault) {
	missing := c.Missing()
	for _, f := range c.all() {
		if missing[f.Name] == "" {
			able = append(able, Fault{f.Name, func(ctx context.Context) error {
				if err := f.run(ctx); err != nil {
					return fmt.Errorf("%s: %w", f.Name, err)
				}
				return nil
			}})
		}
	}
	return able
}

// Missing are the other faults, and why they cannot be had.
func (c *Cluster) Missing() map[string]string {
	missing := map[string]string{}
	for _, f := range c.all() {
		if f.lacks != "" {
			missing[f.Name] = f.lacks
		}
	}
	return missing
}

type fault struct {
	Name  string
	lacks string // why it cannot be; "": it can
	run   func(ctx context.Context) error
}

func (c *Cluster) all() []fault {
	when := func(lacks bool, why string) string {
		if lacks {
			return why
		}
		return ""
	}
	c.chance.Lock()
	alone := when(c.clients == nil, "nobody has said who the clients are: SetClients")
	c.chance.Unlock()
	apart := when(!Isolated(), "not in network and mount namespaces of its own, for which Isolate needs root and unshare")
	standby := when(c.opts.Standby == "", "the cluster has no standby")
	clock := when(c.clock == "", "no libfaketime, or not in namespaces of its own")
	dump := when(!c.has("pg_dump"), "no pg_dump beside the server's binaries")
	goose := when(findGoose() == "", "no goose: make tools, or LOCKS_GOOSE")
	both := func(first, second string) string { return first + when(first == "", second) }
	return []fault{
		{"backend terminated", "", func(ctx context.Context) error { return c.terminate(ctx, "anywhere", "true") }},
		{"backend terminated in a lock", "", func(ctx context.Context) error {
			return c.terminate(ctx, "in a lock", `wait_event_type = 'Lock' or query ~* 'lock\.(try_)?(exclusive|shared|acquire|await|assert)' and state <> 'idle'`)
		}},
		{"backend terminated in a settlement", "", func(ctx context.Context) error {
			return c.terminate(ctx, "in a settlement", `query ~* 'settle|set_status|release|renew' and state <> 'idle'`)
		}},
		{"backend terminated in a commit", "", func(ctx context.Context) error {
			return c.terminate(ctx, "in a commit", `wait_event in ('SyncRep', 'WALSync', 'WALWrite') or query ~* '^\s*commit' and state = 'active'`)
		}},
		{"client killed", alone, c.killClient},
		{"client stopped", alone, c.stopClient},
		{"latency", "", func(ctx context.Context) error {
			attributes := fmt.Sprintf(`"latency": %d, "jitter": %d`, 20+c.chosen(200), c.chosen(100))
			return c.disturb(ctx, 1, toxic{"latency", "downstream", attributes}, toxic{"latency", "upstream", attributes})
		}},
		{"black hole", "", func(ctx context.Context) error {
			return c.disturb(ctx, 0.3, toxic{"timeout", "downstream", `"timeout": 0`}, toxic{"timeout", "upstream", `"timeout": 0`})
		}},
		{"answers lost", "", func(ctx context.Context) error {
			return c.disturb(ctx, 0.5, toxic{"timeout", "downstream", `"timeout": 0`})
		}},
		{"requests lost", "", func(ctx context.Context) error {
			return c.disturb(ctx, 0.5, toxic{"timeout", "upstream", `"timeout": 0`})
		}},
		{"connections reset", "", func(ctx context.Context) error {
			return c.disturb(ctx, 0.5, toxic{"reset_peer", "downstream", fmt.Sprintf(`"timeout": %d`, c.chosen(300))})
		}},
		{"packets dropped", apart, c.dropForAWhile},
		{"server killed", "", func(ctx context.Context) error { return c.kill(ctx, 1) }},
		{"server killed again and again", "", func(ctx context.Context) error { return c.kill(ctx, 4) }},
		{"server's power cut", "", c.cutPower},
		{"standby frozen", standby, c.freezeStandby},
		{"failover", standby, func(ctx context.Context) error { return c.failover(ctx, false) }},
		{"host vanished, and failover", both(standby, apart), func(ctx context.Context) error { return c.failover(ctx, true) }},
		{"disk full on WAL", apart, c.fillDisk},
		{"clock set forward", clock, func(ctx context.Context) error { return c.moveClock(ctx, 1) }},
		{"clock set back", clock, func(ctx context.Context) error { return c.moveClock(ctx, -1) }},
		{"autovacuum", "", c.autovacuum},
		{"vacuum full", "", func(ctx context.Context) error { return c.maintain(ctx, "vacuum (full, analyze) %s") }},
		{"reindex", "", func(ctx context.Context) error { return c.maintain(ctx, "reindex table %s") }},
		{"reindex concurrently", "", c.reindex},
		{"dump", dump, c.dump},
		{"held snapshot", "", c.holdSnapshot},
		{"migrations down and up", goose, c.migrate},
		{"migrations down and up on a copy", goose, c.migrateCopy},
	}
}

func (c *Cluster) has(program string) bool {
	_, err := os.Stat(filepath.Join(c.primary().server.BinDir, program))
	return err == nil
}

// terminate ends the back end of a client that is somewhere, or after 5 s without one, of any client.
func (c *Cluster) terminate(ctx context.Context, where, condition string) error {
	conn, err := c.connect(ctx, c.url())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for began := time.Now(); ; {
		if time.Since(began) > 5*time.Second && where != "anywhere" {
			where, condition = "anywhere, since there was none "+where, "true"
		}
		var pid int
		var state string
		// What a back end does changes in less time than an answer takes to come here: so one statement looks and terminates.
		err := conn.QueryRow(ctx, `
			select pid, concat_ws(' ', state, wait_event, left(query, 60)) from pg_stat_activity
			where backend_type = 'client backend' and application_name <> $1 and datname = current_database() and (`+condition+`)
			order by md5(pid::text || $2::text) limit 1`, myName, fmt.Sprint(c.chosen(math.MaxInt32))).Scan(&pid, &state)
		if err == nil {
			var done bool
			err = conn.QueryRow(ctx, "select pg_terminate_backend($1)", pid).Scan(&done)
			if err == nil && done {
				c.opts.Logf("back end %d terminated %s: %s", pid, where, strings.Join(strings.Fields(state), " "))
				return nil
			}
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if time.Since(began) > 10*time.Second {
			return errors.New("there was no client")
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *Cluster) client() (int, error) {
	c.chance.Lock()
	clients := c.clients
	c.chance.Unlock()
	pids := clients()
	if len(pids) == 0 {
		return 0, errors.New("there is no client")
	}
	return pids[c.chosen(len(pids))], nil
}

func (c *Cluster) killClient(ctx context.Context) error {
	pid, err := c.client()
	if err != nil {
		return err
	}
	c.opts.Logf("client %d killed", pid)
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (c *Cluster) stopClient(ctx context.Context) error {
	pid, err := c.client()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, c.opts.Stop)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) { // Another fault may have killed it.
		return err
	}
	c.opts.Logf("client %d stopped for %v", pid, c.opts.Stop)
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

type toxic struct{ kind, stream, attributes string }

var toxics atomic.Int64

// disturb puts toxics on a share of the connections to the primary, those that there are and those to come, for a while. What it
// held up is closed afterwards.
func (c *Cluster) disturb(ctx context.Context, share float64, wanted ...toxic) error {
	n, lasting := c.primary(), c.between(c.opts.Silence/2, c.opts.Silence)
	var names []string
	var failed error
	for _, t := range wanted {
		name := fmt.Sprintf("%s %d", t.kind, toxics.Add(1))
		text := fmt.Sprintf(`{"name": %q, "type": %q, "stream": %q, "toxicity": %v, "attributes": {%s}}`, name, t.kind, t.stream, share, t.attributes)
		if _, failed = n.proxy.Toxics.AddToxicJson(strings.NewReader(text)); failed != nil {
			break
		}
		names = append(names, name)
		c.opts.Logf("proxy %s: %s", n.name, text)
	}
	if failed == nil {
		pause(ctx, lasting)
	}
	for _, name := range names {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		failed = errors.Join(failed, n.proxy.Toxics.RemoveToxic(removing, name))
		cancel()
	}
	c.opts.Logf("proxy %s: over after %v", n.name, lasting)
	return failed
}

// port is that of an address.
func port(address string) (n int) {
	fmt.Sscanf(address[strings.LastIndex(address, ":"):], ":%d", &n)
	return n
}

func (c *Cluster) dropForAWhile(ctx context.Context) error {
	n, lasting := c.primary(), c.between(c.opts.Silence/2, c.opts.Silence)
	undo, err := dropPackets(port(n.proxy.Listen))
	if err != nil {
		return err
	}
	pause(ctx, lasting)
	c.opts.Logf("packets between clients and server %s dropped for %v", n.name, lasting)
	return undo()
}

// kill stops the primary as pg_ctl stop -m immediate does, so often, and starts it again.
func (c *Cluster) kill(ctx context.Context, times int) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	n := c.primary()
	for range times {
		began := time.Now()
		if err := n.server.Kill(); err != nil {
			return err
		}
		pause(ctx, c.between(0, time.Second))
		if err := n.server.Restart(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		away, err := c.serving(ctx, began)
		if err != nil {
			return err
		}
		c.opts.Logf("server %s killed, away for %v", n.name, away)
	}
	return nil
}

// cutPower kills all processes of the primary at once.
func (c *Cluster) cutPower(ctx context.Context) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	n, began := c.primary(), time.Now()
	if err := n.crash(); err != nil {
		return err
	}
	if err := n.server.Restart(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	away, err := c.serving(ctx, began)
	c.opts.Logf("all processes of server %s killed, away for %v", n.name, away)
	return err
}

// receiver is the process of the standby that receives WAL.
func (c *Cluster) receiver(ctx context.Context) (pid int, err error) {
	conn, err := c.connect(ctx, c.standby().server.URL(admin, "postgres"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	looking, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = again(looking, func() error {
		return conn.QueryRow(looking, "select pid from pg_stat_wal_receiver where status = 'streaming'").Scan(&pid)
	})
	return pid, err
}

// freezeStandby makes the standby receive nothing for a while: commits that wait for it go on waiting.
func (c *Cluster) freezeStandby(ctx context.Context) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	pid, err := c.receiver(ctx)
	if err != nil {
		return err
	}
	lasting := c.between(c.opts.Silence/4, c.opts.Silence/2)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, lasting)
	c.opts.Logf("the standby was frozen for %v", lasting)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return err
	}
	return c.replicate(ctx)
}

// failover kills the primary, promotes the standby, and makes the old primary anew as the new one's standby. When the host vanishes, its
// packets are dropped first: nobody is told that anything has ended. An asynchronous standby then lacks what was last acknowledged.
func (c *Cluster) failover(ctx context.Context, silently bool) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	began := time.Now()
	old, undo, err := c.promote(ctx, silently)
	if err != nil {
		return err
	}
	away, err := c.serving(ctx, began)
	if err != nil {
		return errors.Join(err, undo())
	}
	c.opts.Logf("server %s lost, %s promoted, away for %v", old.name, c.primary().name, away)
	if silently {
		pause(ctx, c.opts.Silence)
	}
	return c.rebuild(context.WithoutCancel(ctx), old, undo)
}

// promote is the first half of a failover. Until undo nothing answers at the old primary's address.
func (c *Cluster) promote(ctx context.Context, silently bool) (old *node, undo func() error, err error) {
	undo = func() error { return nil }
	old, next := c.primary(), c.standby()
	frozen := 0
	if c.opts.Standby == "async" {
		if frozen, err = c.receiver(ctx); err != nil {
			return nil, nil, err
		}
		if err = syscall.Kill(frozen, syscall.SIGSTOP); err != nil {
			return nil, nil, err
		}
		pause(ctx, c.between(100*time.Millisecond, time.Second)) // in which the primary grants what the standby will not know
	}
	if silently {
		if undo, err = dropPackets(port(old.proxy.Listen), old.server.Port); err != nil {
			return nil, nil, err
		}
	}
	if err := old.crash(); err != nil {
		return nil, nil, errors.Join(err, undo())
	}
	ctx = context.WithoutCancel(ctx)
	if frozen != 0 { // It ends before it reads what has come meanwhile.
		syscall.Kill(frozen, syscall.SIGTERM)
		syscall.Kill(frozen, syscall.SIGCONT)
	}
	conn, err := c.connect(ctx, next.server.URL(admin, "postgres"))
	if err != nil {
		return nil, nil, errors.Join(err, undo())
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"alter system set synchronous_standby_names = ''", "select pg_reload_conf()", "select pg_promote()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", sql, err), undo())
		}
	}
	c.mu.Lock()
	c.nodes = []*node{next, old}
	c.mu.Unlock()
	return old, undo, nil
}

// rebuild is the second half of a failover: a new standby in the place of the old primary.
func (c *Cluster) rebuild(ctx context.Context, old *node, undo func() error) error {
	old.proxy.Stop()
	if err := errors.Join(undo(), c.discard(old)); err != nil {
		return err
	}
	standby, err := c.primary().server.Standby(ctx)
	if err != nil {
		return err
	}
	old.server = standby
	if err := c.settle(ctx, old); err != nil {
		return err
	}
	return c.replicate(ctx)
}

// fillDisk leaves no room on the volume of the primary's WAL, until the server has failed for it, and for a while after that.
func (c *Cluster) fillDisk(ctx context.Context) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	n := c.primary()
	filler := filepath.Join(n.volume, "filler")
	defer os.Remove(filler)
	file, err := os.Create(filler)
	if err != nil {
		return err
	}
	defer file.Close()
	block := make([]byte, 1<<20)
	for len(block) > 0 {
		if _, err := file.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/4096*2048] // down to a page
		} else if err != nil {
			return err
		}
	}
	began := time.Now()
	conn, err := c.connect(ctx, c.url())
	for segments := 0; err == nil; segments++ {
		_, err = conn.Exec(ctx, "select pg_current_xact_id(), pg_switch_wal()")
		if err == nil && segments == 1000 {
			return errors.Join(errors.New("the server never ran out of WAL"), conn.Close(ctx))
		}
	}
	c.opts.Logf("server %s has no room for WAL: %v", n.name, err)
	pause(ctx, c.between(0, c.opts.Silence/2))
	if err := os.Remove(filler); err != nil {
		return err
	}
	file.Close()
	ctx = context.WithoutCancel(ctx)
	byItself, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	away, err := c.serving(byItself, began)
	how := "by itself"
	if err != nil {
		how = "started again"
		n.server.Kill() // It has ended.
		if err := n.server.Restart(ctx); err != nil {
			return err
		}
		if away, err = c.serving(ctx, began); err != nil {
			return err
		}
	}
	c.opts.Logf("server %s has room again, %s, away for %v", n.name, how, away)
	return nil
}

func (c *Cluster) moveClock(ctx context.Context, direction int) error {
	offset := direction * (30 + c.chosen(570))
	if err := c.setClock(fmt.Sprintf("%+d", offset)); err != nil {
		return err
	}
	pause(ctx, max(c.opts.Silence, 3*time.Second))
	ahead, err := c.clockAhead(ctx)
	c.opts.Logf("the servers' clock was %v ahead", ahead.Round(time.Millisecond))
	if set := c.setClock("+0"); set != nil {
		return set
	}
	pause(context.WithoutCancel(ctx), 3*time.Second) // until they have noticed
	if err == nil && (ahead-time.Duration(offset)*time.Second).Abs() > 2*time.Second {
		err = fmt.Errorf("the clock was %v ahead, and should have been %d s", ahead, offset)
	}
	return err
}

// clockAhead is by how much the server's clock is ahead of this machine's.
func (c *Cluster) clockAhead(ctx context.Context) (time.Duration, error) {
	conn, err := c.connect(ctx, c.url())
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var now time.Time
	err = conn.QueryRow(ctx, "select clock_timestamp()").Scan(&now)
	return time.Until(now), err
}

// aside is an error of something that goes on beside other faults: they may cut it short, and a timeout ends what would disturb for too long.
func (c *Cluster) aside(what string, err error) error {
	if err == nil {
		return nil
	}
	code := ""
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		code = pg.Code
	}
	switch {
	case code == "", strings.HasPrefix(code, "57"), strings.HasPrefix(code, "08"), code == "55P03", code == "40P01", code == "53100", code == "58030":
		c.opts.Logf("%s was cut short: %v", what, err)
		return nil
	}
	return err
}

// patient is an administrator's connection that does not wait for ever.
func (c *Cluster) patient(ctx context.Context) (*pgx.Conn, error) {
	conn, err := c.connect(ctx, c.url())
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "set statement_timeout = '30s'; set lock_timeout = '5s'"); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

func (c *Cluster) tables(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, "select oid::regclass::text from pg_class where relkind = 'r' and relnamespace = to_regnamespace('lock') order by relname")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// maintain runs a command on every table of schema lock.
func (c *Cluster) maintain(ctx context.Context, command string) error {
	began := time.Now()
	err := func() error {
		conn, err := c.patient(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		tables, err := c.tables(ctx, conn)
		if err != nil {
			return err
		}
		for _, table := range tables {
			if _, err := conn.Exec(ctx, fmt.Sprintf(command, table)); err != nil {
				return err
			}
		}
		c.opts.Logf("%s: %d tables in %v", strings.TrimSuffix(command, " %s"), len(tables), time.Since(began))
		return nil
	}()
	return c.aside(strings.TrimSuffix(command, " %s"), err)
}

// reindex also drops what it leaves when it is cut short.
func (c *Cluster) reindex(ctx context.Context) error {
	err := c.maintain(ctx, "reindex table concurrently %s")
	if err != nil {
		return err
	}
	return c.aside("clearing up after reindex", func() error {
		conn, err := c.patient(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		rows, err := conn.Query(ctx, `select format('drop index if exists %s', indexrelid::regclass) from pg_index join pg_class on pg_class.oid = indexrelid
			where relnamespace = to_regnamespace('lock') and relname ~ '_cc(new|old)[0-9]*$'`)
		if err != nil {
			return err
		}
		drops, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, drop := range drops {
			if err == nil {
				_, err = conn.Exec(ctx, drop)
			}
		}
		return err
	}())
}

// autovacuum makes autovacuum come to every table once a second, for a while.
func (c *Cluster) autovacuum(ctx context.Context) error {
	settings := [][2]string{{"autovacuum_naptime", "1s"}, {"autovacuum_vacuum_threshold", "1"}, {"autovacuum_vacuum_scale_factor", "0"},
		{"autovacuum_analyze_threshold", "1"}, {"autovacuum_analyze_scale_factor", "0"}, {"autovacuum_vacuum_cost_delay", "0"}}
	each := func(ctx context.Context, format string) error {
		conn, err := c.connect(ctx, c.url())
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		for _, s := range settings {
			sql := strings.NewReplacer("NAME", s[0], "VALUE", s[1]).Replace(format)
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		_, err = conn.Exec(ctx, "select pg_reload_conf()")
		return err
	}
	if err := each(ctx, "alter system set NAME = 'VALUE'"); err != nil {
		return c.aside("autovacuum", err)
	}
	pause(ctx, c.opts.Silence)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	c.opts.Logf("autovacuum once a second for %v", c.opts.Silence)
	return again(ctx, func() error { return each(ctx, "alter system reset NAME") })
}

func (c *Cluster) dump(ctx context.Context) error {
	began := time.Now()
	cmd := exec.CommandContext(ctx, filepath.Join(c.primary().server.BinDir, "pg_dump"), "-f", os.DevNull, "-d", c.url())
	var text bytes.Buffer
	cmd.Stderr = &text
	if err := cmd.Run(); err != nil {
		if strings.Contains(text.String(), "connection") || strings.Contains(text.String(), "recovery mode") || strings.Contains(text.String(), "starting up") {
			c.opts.Logf("pg_dump was cut short: %s", bytes.TrimSpace(text.Bytes()))
			return nil
		}
		return fmt.Errorf("pg_dump: %w\n%s", err, text.Bytes())
	}
	c.opts.Logf("pg_dump: %v", time.Since(began))
	return nil
}

func (c *Cluster) holdSnapshot(ctx context.Context) error {
	conn, err := c.connect(ctx, c.url())
	if err != nil {
		return c.aside("a snapshot", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "begin isolation level repeatable read; select pg_current_xact_id()"); err != nil {
		return c.aside("a snapshot", err)
	}
	lasting := 2 * c.opts.Silence
	pause(ctx, lasting)
	_, err = conn.Exec(context.WithoutCancel(ctx), "commit")
	c.opts.Logf("a snapshot and a transaction id held for %v", lasting)
	return c.aside("a snapshot", err)
}

// goose runs the CLI on a database.
func (c *Cluster) goose(ctx context.Context, url string, command ...string) (string, error) {
	dir := filepath.Join(c.work, "migrations")
	if _, err := os.Stat(dir); err != nil {
		if err := os.CopyFS(dir, locks.Migrations()); err != nil {
			return "", err
		}
	}
	out, err := exec.CommandContext(ctx, findGoose(), append([]string{"-dir", dir, "-table", "public.lock_goose_version", "postgres", url}, command...)...).CombinedOutput()
	return string(out), err
}

// migrate takes migrations down, under load, until one refuses because rows would be lost, and up again. So that all that have rows
// stay, it first makes one that is worth keeping.
func (c *Cluster) migrate(ctx context.Context) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	conn, err := c.connect(ctx, c.url())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var owner string
	if err := conn.QueryRow(ctx, "select nspowner::regrole::text from pg_namespace where nspname = 'lock'").Scan(&owner); err != nil {
		return err
	}
	url := c.primary().server.URL(owner, c.opts.Database)
	if _, err := conn.Exec(ctx, "select lock.enqueue('create', $1::text, null, $1::text)", myName); err != nil {
		return err
	}
	downs := 0
	for {
		out, err := c.goose(ctx, url, "down")
		if err != nil && strings.Contains(out, "would drop what is needed") {
			break
		}
		if err != nil {
			return fmt.Errorf("goose down: %w\n%s", err, out)
		}
		if downs++; downs == 3 {
			return fmt.Errorf("a migration went down over rows:\n%s", out)
		}
	}
	if out, err := c.goose(context.WithoutCancel(ctx), url, "up"); err != nil {
		return fmt.Errorf("goose up: %w\n%s", err, out)
	}
	c.opts.Logf("%d migrations went down, the next refused, and up again", downs)
	_, err = conn.Exec(ctx, "delete from lock.request where queue_id = $1", myName)
	return err
}

// migrateCopy takes all migrations up, down and up, on an idle database beside the one in use.
func (c *Cluster) migrateCopy(ctx context.Context) error {
	name := fmt.Sprintf("copy_%d", toxics.Add(1))
	if err := c.exec(ctx, c.url(), "create database "+name); err != nil {
		return c.aside("a copy", err)
	}
	url := c.primary().server.URL(admin, name)
	for _, command := range [][]string{{"up"}, {"down-to", "0"}, {"up"}} {
		if out, err := c.goose(ctx, url, command...); err != nil {
			return fmt.Errorf("goose %s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	c.opts.Logf("all migrations up, down and up on %s", name)
	return c.exec(ctx, c.url(), "drop database "+name)
}
