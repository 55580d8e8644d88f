//go:build linux

// Package faults starts a PostgreSQL server, with a standby if that is asked for, behind proxies, and does to them what happens to servers:
// crashes, failovers, full disks, silent networks, wrong clocks. Everything is on this machine and on its loopback interface.
package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/seed4787c507/locks/lockstest/server"
)

// Options say what to start. The zero value is one server without a standby.
type Options struct {
	Standby  string                        // "": none; "sync": commits wait for it; "async": they do not
	Seed     uint64                        // of what is left to chance
	Logf     func(format string, a ...any) // is told what each fault did. Default: nobody is.
	Settings []string                      // of the servers, name=value
	Stop     time.Duration                 // for how long a client is stopped: longer than every ttl. Default: 10 s.
	Silence  time.Duration                 // for how long a network is silent. Default: 5 s.
	Database string                        // with the schema lock, which the caller makes. Default: torture.
}

// A Cluster is a primary and at most one standby, each behind a proxy.
type Cluster struct {
	opts  Options
	dir   string // for people: the servers' logs
	work  string // what the servers and the faults need
	clock string // the file that says by how much the servers' clock is wrong; "": it cannot be
	front *toxiproxy.ApiServer

	turn  sync.Mutex   // of those faults that stop servers: one at a time
	mu    sync.RWMutex // guards the order of the nodes
	nodes []*node      // the primary first

	chance  sync.Mutex
	rand    *rand.Rand
	clients func() []int
}

// A node is a place for a server: its address stays when a promoted standby's old primary is made anew there.
type node struct {
	name   string
	server *server.Server
	proxy  *toxiproxy.Proxy
	volume string // where its WAL is; "": with its data
}

const (
	volumeSize = 1 << 30
	admin      = "postgres"
	myName     = "locks_faults" // application_name of the faults' own connections
)

// Start starts a cluster. Its servers' logs are in dir after Close.
func Start(ctx context.Context, dir string, opts Options) (_ *Cluster, err error) {
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	for value, standard := range map[*time.Duration]time.Duration{&opts.Stop: 10 * time.Second, &opts.Silence: 5 * time.Second} {
		if *value == 0 {
			*value = standard
		}
	}
	if opts.Database == "" {
		opts.Database = "torture"
	}
	switch opts.Standby {
	case "", "sync", "async":
	default:
		return nil, fmt.Errorf("standby %q: \"\", sync or async", opts.Standby)
	}
	c := &Cluster{opts: opts, dir: dir, rand: rand.New(rand.NewPCG(opts.Seed, 0))}
	c.front = toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if c.work, err = os.MkdirTemp("", "locks-faults-"); err != nil {
		return nil, err
	}
	if err = os.Chmod(c.work, 0o755); err != nil { // The servers run as another user.
		return nil, err
	}
	options := server.Options{Durable: true, Settings: append([]string{
		// So that a full disk can be had, crashes are over soon, and a standby that was stopped for a while finds what it missed.
		"max_wal_size=256MB", "wal_keep_size=128MB", "min_wal_size=32MB",
		"wal_sender_timeout=5s", "wal_receiver_timeout=5s", "wal_retrieve_retry_interval=100ms", "restart_after_crash=on",
	}, opts.Settings...)}
	if Isolated() {
		if err := prepareIsolation(); err != nil {
			return nil, err
		}
		if library := fakeTime(); library != "" {
			c.clock = filepath.Join(c.work, "clock")
			if err := c.setClock("+0"); err != nil {
				return nil, err
			}
			options.Env = []string{"LD_PRELOAD=" + library, "FAKETIME_TIMESTAMP_FILE=" + c.clock, "FAKETIME_CACHE_DURATION=1",
				"FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_ONLY_CMDS=postgres"}
		}
	}
	primary := &node{name: "a"}
	if primary.server, err = server.Start(ctx, options); err != nil {
		return nil, err
	}
	c.nodes = append(c.nodes, primary)
	if err := c.settle(ctx, primary); err != nil {
		return nil, err
	}
	if opts.Standby != "" {
		standby := &node{name: "b"}
		if standby.server, err = primary.server.Standby(ctx); err != nil {
			return nil, fmt.Errorf("standby: %w", err)
		}
		c.nodes = append(c.nodes, standby)
		if err := c.settle(ctx, standby); err != nil {
			return nil, err
		}
		if err := c.replicate(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// settle moves a new server's WAL to a volume of its own, where that can be, and puts the proxy before it.
func (c *Cluster) settle(ctx context.Context, n *node) error {
	if Isolated() {
		volume := filepath.Join(c.work, "wal-"+n.name)
		if n.volume == "" {
			if err := mountVolume(volume, volumeSize); err != nil {
				return err
			}
			n.volume = volume
		}
		if err := n.server.Kill(); err != nil {
			return err
		}
		wal := filepath.Join(n.server.Dir, "data", "pg_wal")
		to := filepath.Join(n.volume, filepath.Base(n.server.Dir))
		for _, command := range [][]string{{"cp", "-a", wal, to}, {"rm", "-r", wal}, {"ln", "-s", to, wal}} {
			if err := tool(command[0], command[1:]...); err != nil {
				return err
			}
		}
		if err := n.server.Restart(ctx); err != nil {
			return err
		}
	}
	upstream := "127.0.0.1:" + strconv.Itoa(n.server.Port)
	if n.proxy == nil {
		n.proxy = toxiproxy.NewProxy(c.front, n.name, "127.0.0.1:0", upstream)
	} else {
		n.proxy.Stop()
		n.proxy.Upstream = upstream
	}
	return n.proxy.Start()
}

// discard removes a node's server and what it had.
func (c *Cluster) discard(n *node) error {
	err := c.keepLog(n)
	err = errors.Join(err, n.server.Stop())
	if n.volume != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Join(n.volume, filepath.Base(n.server.Dir))))
	}
	return err
}

func (c *Cluster) keepLog(n *node) error {
	text, err := os.ReadFile(filepath.Join(n.server.Dir, "log"))
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(c.dir, "server-"+n.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

// replicate waits until the standby streams, and makes commits wait for it if they should.
func (c *Cluster) replicate(ctx context.Context) error {
	url := c.primary().server.URL(admin, "postgres")
	if err := c.until(ctx, url, "select exists (select from pg_stat_replication where state = 'streaming' and application_name = 'walreceiver')"); err != nil {
		return err
	}
	state := "async"
	if c.opts.Standby == "sync" {
		state = "sync"
		for _, sql := range []string{"alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"} {
			if err := c.exec(ctx, url, sql); err != nil {
				return err
			}
		}
	}
	return c.until(ctx, url, "select exists (select from pg_stat_replication where state = 'streaming' and sync_state = $1)", state)
}

// URL is what clients connect to, as a superuser unless they say otherwise: all hosts, of which the primary is taken, through the proxies.
func (c *Cluster) URL() string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	hosts := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		hosts[i] = n.proxy.Listen
	}
	return fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=3", admin, strings.Join(hosts, ","))
}

// AdminURL is a superuser's direct connection to the present primary.
func (c *Cluster) AdminURL() string { return c.primary().server.URL(admin, "postgres") }

// url is that of the database with the schema lock.
func (c *Cluster) url() string { return c.primary().server.URL(admin, c.opts.Database) }

// primary is the node that is the primary now, and standby the other one, or nil.
func (c *Cluster) primary() *node {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.nodes[0]
}

func (c *Cluster) standby() *node {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.nodes) < 2 {
		return nil
	}
	return c.nodes[1]
}

// SetClients says who asks for the clients' processes, of which some are killed and stopped.
func (c *Cluster) SetClients(clients func() []int) {
	c.chance.Lock()
	defer c.chance.Unlock()
	c.clients = clients
}

// Close stops the servers and removes what they had.
func (c *Cluster) Close() error {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed error
	for _, n := range c.nodes {
		if n.proxy != nil {
			n.proxy.Stop()
		}
		failed = errors.Join(failed, c.discard(n))
		if n.volume != "" {
			failed = errors.Join(failed, unmountVolume(n.volume))
		}
	}
	c.nodes = nil
	return errors.Join(failed, os.RemoveAll(c.work))
}

func (c *Cluster) chosen(n int) int {
	c.chance.Lock()
	defer c.chance.Unlock()
	return c.rand.IntN(n)
}

// between is a random time.
func (c *Cluster) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.chosen(int(most-least)+1))
}

func (c *Cluster) connect(ctx context.Context, address string) (*pgx.Conn, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("application_name", myName)
	u.RawQuery = query.Encode()
	return pgx.Connect(ctx, u.String())
}

func (c *Cluster) exec(ctx context.Context, url, sql string, args ...any) error {
	conn, err := c.connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err = conn.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%.100s: %w", sql, err)
	}
	return nil
}

// until waits until a question is answered with true.
func (c *Cluster) until(ctx context.Context, url, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return again(ctx, func() error {
		conn, err := c.connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		var yes bool
		if err = conn.QueryRow(ctx, sql, args...).Scan(&yes); err == nil && !yes {
			err = fmt.Errorf("%.100s: not yet", sql)
		}
		return err
	})
}

// again tries until there is no error or ctx ends.
func again(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// serving waits until the primary takes writes from clients' own address, and says how long that took from a time.
func (c *Cluster) serving(ctx context.Context, since time.Time) (time.Duration, error) {
	err := c.until(ctx, "postgres://"+admin+"@"+c.primary().proxy.Listen+"/postgres?sslmode=disable&connect_timeout=2",
		"select not pg_is_in_recovery() and pg_current_xact_id() is not null")
	return time.Since(since), err
}

// crash ends all processes of a server at once, as a power cut does.
func (n *node) crash() error {
	pid, err := n.postmaster()
	if err != nil {
		return err
	}
	// The postmaster first, so that it starts no others.
	all := append([]int{pid}, children(pid)...)
	syscall.Kill(pid, syscall.SIGSTOP)
	all = append(all, children(pid)...)
	for _, pid := range all {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	n.server.Kill() // waits for the first
	// The rest are nobody's children by now. Until they have ended, no server starts in their place.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return again(ctx, func() error {
		for _, pid := range all {
			if running(pid) {
				return fmt.Errorf("process %d goes on", pid)
			}
		}
		return nil
	})
}

// running says whether a process has not ended yet. Who has ended and was not waited for is a zombie.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

func (n *node) postmaster() (int, error) {
	text, err := os.ReadFile(filepath.Join(n.server.Dir, "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(line)
}

func children(pid int) (pids []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, field := range strings.Fields(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// fakeTime is the library that makes a clock wrong; "": there is none.
func fakeTime() string {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// setClock makes the servers' clocks wrong by an offset such as +60 seconds. They notice within three seconds.
func (c *Cluster) setClock(offset string) error {
	next := c.clock + ".next"
	if err := os.WriteFile(next, []byte(offset+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(next, c.clock)
}

func findGoose() string {
	if path := os.Getenv("LOCKS_GOOSE"); path != "" {
		return path
	}
	for _, dir := range []string{".bin", "../.bin", "../../.bin"} {
		path := filepath.Join(dir, "goose")
		if _, err := os.Stat(path); err == nil {
			if path, err = filepath.Abs(path); err == nil {
				return path
			}
		}
	}
	path, _ := exec.LookPath("goose")
	return path
}
