//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// clientEnv names the variable that makes this binary a client process.
const clientEnv = "LOCKS_TORTURE_CLIENT"

// A clientConfig is what a client process is told.
type clientConfig struct {
	URL, Database, Dir  string
	Start               int64
	Seed                uint64
	Client, Incarnation int
	Workers             int
	Kinds               []string
	Mortal              bool          // it kills itself now and then, at a point with a name
	Linger              time.Duration // between reading and writing what a lock protects, so that no mistake goes unnoticed
}

// client is a client process. It ends when its standard input does.
func client() {
	var config clientConfig
	if err := json.Unmarshal([]byte(os.Getenv(clientEnv)), &config); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // of the panics that are meant
	var count atomic.Int64
	ended := make(chan struct{})
	go func() {
		config.work(ctx, &count, func(err error) { fmt.Fprintln(os.Stderr, err) })
		close(ended)
	}()
	ticker := time.NewTicker(200 * time.Millisecond)
	for {
		select {
		case <-ticker.C:
			fmt.Println(count.Load())
		case <-ended:
			fmt.Println(count.Load())
			return
		}
	}
}

// work runs the workers of one client until ctx ends and each has finished its round.
func (config clientConfig) work(ctx context.Context, count *atomic.Int64, warn func(error)) {
	var deck []*kind
	for _, name := range config.Kinds {
		k := kindNamed(name)
		for range k.weight {
			deck = append(deck, k)
		}
	}
	var wg sync.WaitGroup
	for index := range config.Workers {
		wg.Go(func() {
			s := &session{
				recorder: newRecorder(config.Dir, config.Start, config.Client, config.Incarnation, index, count),
				ctx:      ctx, url: config.URL, database: config.Database, known: map[string]bool{}, warn: warn, linger: config.Linger,
				dice: rand.New(rand.NewPCG(config.Seed, uint64(config.Client*1000+config.Incarnation)<<16|uint64(index))),
			}
			defer s.close()
			s.die = func(point string) {
				if config.Mortal && s.dice.IntN(10000) == 0 {
					fmt.Println("killed: " + point)
					syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
			}
			for ctx.Err() == nil {
				if s.connected() != nil || deck[s.dice.IntN(len(deck))].round(s) != nil {
					return
				}
			}
		})
	}
	wg.Wait()
}

// A crowd is the client processes. Whoever dies is started again.
type crowd struct {
	config clientConfig
	n      int
	start  int64
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int64 // of each incarnation
	alive  map[int]io.Closer
	deaths map[string]int
}

func newCrowd(o options, url, dir string, mortal bool) *crowd {
	c := &crowd{n: o.clients, start: now(), counts: map[string]int64{}, alive: map[int]io.Closer{}, deaths: map[string]int{}}
	c.config = clientConfig{URL: url, Database: database, Dir: dir, Start: c.start, Seed: o.seed, Workers: o.workers, Kinds: o.kinds, Mortal: mortal}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

func (c *crowd) startAll() {
	for client := range c.n {
		c.wg.Go(func() {
			for incarnation := 0; c.ctx.Err() == nil; incarnation++ {
				if err := c.run(client, incarnation); err != nil {
					log.Printf("client %d: %v", client, err)
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
}

// run is the life of one client process.
func (c *crowd) run(client, incarnation int) error {
	config := c.config
	config.Client, config.Incarnation = client, incarnation
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), clientEnv+"="+string(text), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it; its standard input ends with us
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid, me := cmd.Process.Pid, fmt.Sprintf("%d-%d", client, incarnation)
	c.mu.Lock()
	c.alive[pid] = in
	c.mu.Unlock()
	if c.ctx.Err() != nil {
		in.Close()
	}
	point := "by others"
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if told, ok := strings.CutPrefix(lines.Text(), "killed: "); ok {
			point = told
		} else if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
			c.mu.Lock()
			c.counts[me] = n
			c.mu.Unlock()
		}
	}
	err = cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.alive, pid)
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		c.deaths[point]++
		return nil
	}
	return err
}

// pids are the processes that live.
func (c *crowd) pids() (pids []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid := range c.alive {
		pids = append(pids, pid)
	}
	return pids
}

func (c *crowd) count() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, count := range c.counts {
		n += count
	}
	return n
}

// killed says how many client processes were killed, and where they were.
func (c *crowd) killed() map[string]int { return c.deaths }

// stop lets every worker finish its round. Whoever cannot within a minute is killed: its last call is unknown.
func (c *crowd) stop() {
	c.cancel()
	c.mu.Lock()
	for _, in := range c.alive {
		in.Close()
	}
	c.mu.Unlock()
	ended := make(chan struct{})
	go func() { c.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		for _, pid := range c.pids() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		<-ended
	}
}
