//go:build linux

// Command torture calls the locks from many processes while their servers, connections and clients fail, writes down every call and
// answer, and checks afterwards that they could have been given by locks that keep their promises. docs/internals/evidence.md has the results.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed4787c507/locks/torture/faults"
)

func main() {
	if os.Getenv(clientEnv) != "" {
		client()
		return
	}
	faults.Isolate()
	log.SetFlags(log.Ltime)
	o := options{}
	flag.DurationVar(&o.duration, "duration", time.Minute, "how long to call")
	flag.Int64Var(&o.calls, "calls", 0, "end when so many calls were answered, whatever the duration")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of all dice")
	flag.StringVar(&o.faults, "faults", "", "a regular expression: only these faults; none: no faults")
	flag.StringVar(&o.mode, "mode", "sync", "sync: with a synchronous standby; async: with one that loses commits, which must be found; single: without")
	flag.DurationVar(&o.pause, "pause", 2*time.Second, "between two faults of the two that can go on at a time, on average")
	flag.IntVar(&o.clients, "clients", 6, "processes")
	flag.IntVar(&o.workers, "workers", 4, "connections of each")
	kindList := flag.String("kinds", "", "a regular expression: only these kinds")
	out := flag.String("out", "out", "where the report is written")
	report := flag.String("report", "", "docs/internals: write the report there, when enough calls were checked: 10 million, or 100,000 in the mode async")
	flag.StringVar(&o.keep, "histories", "", "keep the histories in this directory")
	flag.Parse()
	o.command = "make torture"
	flag.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "out", "report", "histories", "seed": // They say where to write, and the report has the seed.
		default:
			o.command += fmt.Sprintf(" %s='%s'", strings.ToUpper(f.Name), f.Value)
		}
	})
	for _, k := range kinds {
		if ok, err := regexp.MatchString(*kindList, k.name); err != nil {
			log.Fatal(err)
		} else if ok {
			o.kinds = append(o.kinds, k.name)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r, err := torture(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(r.text())
	dir := *out
	if *report != "" {
		enough := int64(10_000_000)
		if o.mode == "async" {
			enough = 100_000 // What is asked there is whether the checkers find the loss.
		}
		if r.Calls < enough {
			log.Printf("%d checked calls are too few for %s: see %s", r.Calls, *report, *out)
		} else {
			dir = *report
		}
	}
	if err := r.publish(dir); err != nil {
		log.Fatal(err)
	}
	if problem := r.problem(); problem != "" {
		log.Fatal(problem)
	}
}

type options struct {
	duration         time.Duration
	calls            int64
	seed             uint64
	faults           string
	mode             string
	pause            time.Duration
	clients, workers int
	kinds            []string
	keep             string
	command          string
}

// torture runs the clients and the faults, and then checks.
func torture(ctx context.Context, o options) (_ *report, err error) {
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "locks-torture-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
	}
	standby := o.mode
	switch o.mode {
	case "single":
		standby = ""
	case "sync":
	case "async":
		if o.faults == "" {
			o.faults = "^failover$" // what such a standby is about
		}
	default:
		return nil, fmt.Errorf("mode is %q", o.mode)
	}
	cluster, err := startCluster(ctx, dir, standby, o.seed)
	if err != nil {
		return nil, err
	}
	defer cluster.Close()
	if err := prepare(ctx, cluster.AdminURL()); err != nil {
		return nil, err
	}
	log.Printf("seed %d, histories in %s", o.seed, dir)
	r := newReport(o)
	if err := r.versions(ctx, cluster.AdminURL()); err != nil {
		return nil, err
	}
	histories := filepath.Join(dir, "histories")
	crowd := newCrowd(o, cluster.URL(), histories, len(o.faults) == 0 || o.faults != "none")
	cluster.SetClients(crowd.pids)
	crowd.startAll()
	r.start = crowd.start

	faultsCtx, cancel := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() { over <- r.inject(faultsCtx, cluster, o) }()
	deadline := time.After(o.duration)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	told := time.Now()
wait:
	for {
		select {
		case <-ticker.C:
			if o.calls > 0 && crowd.count() >= o.calls {
				break wait
			}
			if time.Since(told) > 10*time.Second {
				log.Printf("%d calls", crowd.count())
				told = time.Now()
			}
		case <-deadline:
			if o.calls == 0 {
				break wait
			}
		case err := <-over:
			cancel()
			crowd.stop()
			if err == nil {
				err = ctx.Err()
			}
			return nil, fmt.Errorf("faults: %w", err)
		}
	}
	cancel()
	if err := <-over; err != nil {
		crowd.stop()
		return nil, fmt.Errorf("faults: %w", err)
	}
	// After the last fault, some calm: what is unknown is found out.
	time.Sleep(time.Second)
	crowd.stop()
	r.took = time.Duration(now() - r.start)
	r.Killed = crowd.killed()
	log.Printf("%d calls in %v, draining the queues", crowd.count(), r.took.Round(time.Second))
	if err := drain(ctx, cluster.URL(), cluster.AdminURL(), database, histories, r.start); err != nil {
		return nil, fmt.Errorf("drain: %w", err)
	}
	log.Print("checking")
	began := time.Now()
	var moved []span
	for _, e := range r.Events {
		if strings.HasPrefix(e.Name, "clock") {
			moved = append(moved, span{r.start + int64(e.At), r.start + int64(e.At+e.Took) + int64(2*time.Second)})
		}
	}
	if r.checker, err = check(ctx, cluster.AdminURL(), database, histories, r.start, moved...); err != nil {
		return nil, err
	}
	r.finish()
	log.Printf("checked in %v", time.Since(began).Round(time.Second))
	return r, nil
}

// inject lets faults happen, one after the other, each sort before any comes again.
func (r *report) inject(ctx context.Context, cluster cluster, o options) error {
	r.Missing = cluster.Missing()
	if o.faults == "none" {
		<-ctx.Done()
		return nil
	}
	chosen := cluster.Faults()
	n := 0
	for _, fault := range chosen {
		if ok, err := regexp.MatchString(o.faults, fault.Name); err != nil {
			return err
		} else if ok {
			chosen[n] = fault
			n++
		}
	}
	if chosen = chosen[:n]; n == 0 {
		return fmt.Errorf("there is no fault %q", o.faults)
	}
	dice := rand.New(rand.NewPCG(o.seed, 1))
	var mu sync.Mutex
	i := n
	var begun, ended int // faults
	next := func() (faults.Fault, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if i++; i >= n {
			dice.Shuffle(n, func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
			i = 0
		}
		return chosen[i], o.pause/2 + time.Duration(dice.Int64N(int64(o.pause)+1))
	}
	// Two at a time, so that one may meet the other.
	group, ctx := errgroup.WithContext(ctx)
	for range 2 {
		group.Go(func() error {
			for {
				fault, pause := next()
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(pause):
				}
				mu.Lock()
				alone := begun == ended
				begun++
				before := begun
				mu.Unlock()
				began := now()
				log.Printf("fault: %s", fault.Name)
				// A fault that has begun is brought to its end.
				err := fault.Run(context.WithoutCancel(ctx))
				mu.Lock()
				alone = alone && begun == before
				ended++
				r.Events = append(r.Events, event{fault.Name, time.Duration(began - r.start), time.Duration(now() - began), err != nil})
				mu.Unlock()
				if err != nil && alone {
					return err
				} else if err != nil { // What it could not undo is seen by the draining at the latest.
					log.Printf("fault cut short by another: %v", err)
				}
			}
		})
	}
	return group.Wait()
}
